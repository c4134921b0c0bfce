// SPDX-License-Identifier: Apache-2.0
// Taking a failed step back. A step that fails at layer k has already appended to the layers before it, while crop of
// an instance removes from all its layers at once. So the layers that are behind are first filled with zeros up to the
// others, and then all are cropped to where they were; an instance that was empty is reset.
#pragma once

#include <cstdint>
#include <vector>

#include "core/cache_instance.h"

namespace kvplug {

// The rows before the step; empty vectors: nothing was stored.
struct StepMark {
  bool active = false;
  int64_t batch = 0;
  int64_t seen = 0;
  std::vector<int64_t> row_seen, row_pad;
};

// Brings one instance back to `mark`. Throws kvplug::Error when it cannot: the instance is then to be reset.
void take_back(const CacheInstance& instance, const kvp_call& call, const StepMark& mark, kvp_dtype dtype);

}  // namespace kvplug
