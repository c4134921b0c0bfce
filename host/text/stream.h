// SPDX-License-Identifier: Apache-2.0
// Turns ids that come one by one into text that can be printed at once: whole UTF-8 characters only, and the pieces put
// together are exactly Tokenizer::decode of all the ids. The cost per id is bounded, so the total is linear.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace kvplug::text {

// One sequence, one thread at a time.
class StreamDecoder {
 public:
  explicit StreamDecoder(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special = true)
      : tokenizer_(std::move(tokenizer)), skip_special_(skip_special) {}

  // The text that is now certain; often empty, when a character is not complete yet.
  std::string push(int32_t id);

  // The rest, an incomplete character as U+FFFD; then the decoder is as new.
  std::string finish();

 private:
  std::string release(const std::string& text, size_t stable);
  void shorten_window(const std::string& text);

  std::shared_ptr<const Tokenizer> tokenizer_;
  bool skip_special_;
  std::vector<int32_t> window_;  // the last ids, enough to decode the next one in context
  size_t released_ = 0;          // bytes of decode(window_) already given out
};

}  // namespace kvplug::text
