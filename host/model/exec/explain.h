// SPDX-License-Identifier: Apache-2.0
// Which library multiplies what, and how: follows from shapes alone, so it can be told before weights are read.
#pragma once

#include <nlohmann/json.hpp>

#include "model/executor.h"

namespace kvplug::model {

// {"linear": [{name, count, shape, backend, layout, implementation, prefill_implementation}], "elementwise",
// "embedding",
//  "deterministic", "dtype", "threads", "attention"}
nlohmann::json explain_model(const Description& description, const LoadOptions& options);

// The same of a model on an accelerator: LibTorch chooses the kernels.
nlohmann::json explain_device(const LoadOptions& options);

}  // namespace kvplug::model
