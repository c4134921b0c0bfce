// SPDX-License-Identifier: Apache-2.0
// kvp_error on both sides: ErrorText is the buffer that the host hands to a callee, write_error fills a caller's.
#pragma once

#include <kvplug/error.h>
#include <kvplug/status.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace kvplug {

// Lives on the stack of one call; making one costs a few stores, so that a call that succeeds pays nothing.
class ErrorText {
 public:
  ErrorText() : error_{sizeof(kvp_error), 0, 0, text_, sizeof text_, 0} { text_[0] = '\0'; }
  ErrorText(const ErrorText&) = delete;
  ErrorText& operator=(const ErrorText&) = delete;

  kvp_error* get() { return &error_; }
  // What the callee wrote, made valid UTF-8 ('?' for stray bytes): the callee is not trusted to end or encode it.
  std::string text() const;

 private:
  kvp_error error_;
  char text_[2000];
};

// Copies what fits, cut at a character, and returns `code`. err and err->buf may be NULL.
kvp_status write_error(kvp_error* err, kvp_status code, std::string_view text);

// `text` with every byte that is not part of a well-formed UTF-8 sequence replaced by '?'.
std::string valid_utf8(std::string_view text);

}  // namespace kvplug
