// SPDX-License-Identifier: Apache-2.0
// C++ clothes for the Rust shim's C types: views of strings, and owned results that free themselves. Internal to this
// room. `failure_of` runs a call and gives its message if it failed.
#pragma once

#include <kvplug_text.h>

#include <optional>
#include <string>
#include <string_view>

namespace kvplug::text {

inline kvtext_view view_of(std::string_view text) { return {text.data(), text.size()}; }

class ShimBytes {
 public:
  ShimBytes() = default;
  ~ShimBytes() { kvtext_bytes_free(&bytes_); }
  ShimBytes(const ShimBytes&) = delete;
  ShimBytes& operator=(const ShimBytes&) = delete;

  kvtext_bytes* out() { return &bytes_; }
  std::string str() const { return bytes_.size == 0 ? std::string() : std::string(bytes_.data, bytes_.size); }

 private:
  kvtext_bytes bytes_{};
};

// Runs f(error), a shim call of the kind "0 or error". Nothing on success, else the message.
template <class F>
std::optional<std::string> failure_of(F&& f) {
  ShimBytes error;
  if (f(error.out()) == 0) return std::nullopt;
  return error.str();
}

}  // namespace kvplug::text
