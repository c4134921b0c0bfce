// SPDX-License-Identifier: Apache-2.0
// Slots a row that a run needs, and the message where a fixed capacity has fewer.
#pragma once

#include <cstdint>
#include <string>

#include "config/run.h"

namespace kvplug::generate {

// Of the row that needs most: its prompt with all padding before it, and its new tokens.
struct SlotNeed {
  int64_t prompt = 0, new_tokens = 1;

  int64_t slots() const { return prompt + new_tokens - 1; }  // the last token is never fed
  void include(int64_t row_prompt, int64_t row_new_tokens) {
    if (row_prompt + row_new_tokens > prompt + new_tokens) *this = {row_prompt, row_new_tokens};
  }
  std::string text() const;  // "prompt 12 + max_new_tokens 64 - 1 = 75"
};

// Throws kConfig where generation.max_cache_len is too small.
void check_max_cache_len(const SlotNeed& need, const config::Run& run);

}  // namespace kvplug::generate
