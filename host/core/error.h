// SPDX-License-Identifier: Apache-2.0
// The one exception type of the host. Thrown inside C++ code, caught only at the C borders (api, plugin calls) and
// in main. `code` is a KVP_ or KVPLUG_E_ number, so translation at a border is a copy, not a table.
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

namespace kvplug {

// Status numbers shared with <kvplug/abi.h> (below 100) and <kvplug/kvplug.h> (100 and up).
enum class Code : int32_t {
  kOk = 0,
  kUnsupported = 10,
  kInvalidArgument = 11,
  kInvalidState = 12,
  kCapacity = 13,
  kCancelled = 14,
  kOutOfMemory = 20,
  kIo = 21,
  kCorrupt = 22,
  kDevice = 30,
  kInternal = 31,
  kPoisoned = 32,
  kConfig = 100,
  kNotFound = 101,
  kModel = 102,
  kPlanExceeded = 103,
  kPlugin = 104,
  kAbi = 105,
  kBusy = 106,
};

// The word used in JSON errors ("config", "out_of_memory", ...); unknown numbers read "internal".
const char* code_word(Code code);

class Error : public std::exception {
 public:
  // where: "run.toml:9: generation.max_cache_len" or a path; hint: the next step, may hold several lines; both may be
  // empty.
  Error(Code code, std::string message, std::string hint = {}, std::string where = {})
      : code_(code), message_(std::move(message)), hint_(std::move(hint)), where_(std::move(where)) {
    text_ = where_.empty() ? message_ : where_ + ": " + message_;
    if (!hint_.empty()) text_ += "\n  " + hint_;
  }

  Code code() const noexcept { return code_; }
  const std::string& message() const noexcept { return message_; }
  const std::string& hint() const noexcept { return hint_; }
  const std::string& where() const noexcept { return where_; }
  // "where: message" on the first line, the hint on the following ones.
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  Code code_;
  std::string message_, hint_, where_, text_;
};

// A plugin failed inside: a panic, an exception, INTERNAL. The stack poisons what INTERNAL leaves behind; at the C
// border it is a fault of the plugin (KVPLUG_E_PLUGIN), not of the host.
class PluginFault : public Error {
 public:
  using Error::Error;
};

}  // namespace kvplug
