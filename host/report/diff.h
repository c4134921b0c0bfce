// SPDX-License-Identifier: Apache-2.0
// Caches against a baseline on the same text, teacher-forced. All walk the text in step, a chunk of positions at a
// time, so that memory is a chunk of logits a cache whatever the text's length.
#pragma once

#include <string>
#include <vector>

#include "report/measure.h"

namespace kvplug::report {

struct DiffText {
  std::string id;
  std::vector<int32_t> ids;
};

// {..., "baseline", "texts", "tokens", "positions", "chunk", "candidates": [...], "noise_floor", "missed": [...]}.
// A candidate that fails has "error" instead of figures. Throws kConfig for texts with nothing to score, and what the
// baseline throws.
nlohmann::json diff_document(const MeasureContext& context, const config::Run& run, std::vector<DiffText> texts);

}  // namespace kvplug::report
