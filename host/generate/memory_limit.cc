// SPDX-License-Identifier: Apache-2.0
#include "generate/memory_limit.h"

#include <algorithm>
#include <string>

#include "core/error.h"

namespace kvplug::generate {

uint64_t usable_bytes(uint64_t limit, const config::MemorySection& memory) {
  return std::max<uint64_t>(static_cast<uint64_t>(static_cast<double>(limit) * (1.0 - memory.headroom)), 1);
}

void check_fits(uint64_t weights, uint64_t cache, uint64_t usable) {
  if (weights + cache <= usable) return;
  throw Error(
      Code::kPlanExceeded,
      "this run needs " + std::to_string(weights + cache) + " bytes (weights " + std::to_string(weights) + ", cache " +
          std::to_string(cache) + "), and may use " + std::to_string(usable),
      "generate fewer tokens, use a smaller batch or dtype, or raise memory.max_host_bytes; `kvplug plan` shows "
      "the parts",
      "memory.max_host_bytes");
}

}  // namespace kvplug::generate
