// SPDX-License-Identifier: Apache-2.0
// Speed and memory of caches: prompts and decode steps at depths, in turns, beside the roof that memory sets.
#pragma once

#include "report/measure.h"

namespace kvplug::report {

// {..., "machine": {..., "read_bytes_per_s"}, "weight_bytes", "runs": [...]}. A row that fails has "error" instead of
// figures.
nlohmann::json bench_document(const MeasureContext& context, const config::Run& run);

}  // namespace kvplug::report
