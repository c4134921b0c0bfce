// SPDX-License-Identifier: Apache-2.0
// Model families as data: what a family assumes when config.json is silent, and how it names its weights. A new
// decoder family that fits the block of model/exec is one more entry in families.cc.
#pragma once

#include "model/describe/config_reader.h"
#include "model/describe/description.h"

namespace kvplug::model {

// Fills everything of `out` that config.json decides: dimensions, flags, rope, layers with cache shapes and weight
// names. Throws kModel naming the part that is not supported and the known families.
void apply_family(const ConfigReader& config, Description& out);

}  // namespace kvplug::model
