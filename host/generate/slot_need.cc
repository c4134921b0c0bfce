// SPDX-License-Identifier: Apache-2.0
#include "generate/slot_need.h"

#include "core/error.h"

namespace kvplug::generate {

std::string SlotNeed::text() const {
  return "prompt " + std::to_string(prompt) + " + max_new_tokens " + std::to_string(new_tokens) +
         " - 1 = " + std::to_string(slots());
}

void check_max_cache_len(const SlotNeed& need, const config::Run& run) {
  const auto& given = run.generation.max_cache_len;
  if (!run.generation.use_cache || !given || need.slots() <= *given) return;
  throw Error(
      Code::kConfig, std::to_string(*given) + " positions are too few for this run: " + need.text(),
      "set max_cache_len to " + std::to_string(need.slots()) + " or more, or use cache_implementation = \"dynamic\"",
      run.max_cache_len_where);
}

}  // namespace kvplug::generate
