// SPDX-License-Identifier: Apache-2.0
// Rotary position settings in their two dialects: `rope_parameters` of new files, `rope_theta` + `rope_scaling` of old
// ones. Equal meanings give equal values; a conflict or an unknown type is an error, never a default.
#pragma once

#include <cstdint>
#include <vector>

#include "model/describe/config_reader.h"
#include "model/describe/description.h"

namespace kvplug::model {

// default_theta: what the family means by an absent rope_theta.
Rope read_rope(const ConfigReader& config, int64_t max_position_embeddings, double default_theta);

// Inverse frequencies, [head_dim / 2] float32, computed as Transformers does (llama3: Llama 3.1's wavelength bands).
std::vector<float> inverse_frequencies(const Rope& rope, int64_t head_dim);

}  // namespace kvplug::model
