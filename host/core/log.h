// SPDX-License-Identifier: Apache-2.0
// Where the library's words go: one callback of the application, with a level. The library never prints.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kvplug {

// user, level (KVP_LOG_ERROR 0 .. KVP_LOG_DEBUG 3), area (NUL-terminated), text (len bytes). Called from any thread.
using LogFn = void (*)(void* user, int32_t level, const char* area, const char* text, std::size_t len);

class LogSink {
 public:
  LogSink(LogFn fn, void* user, int32_t level) : fn_(fn), user_(user), level_(level) {}

  void set_level(int32_t level) { level_.store(level, std::memory_order_relaxed); }
  bool wants(int32_t level) const { return fn_ != nullptr && level <= level_.load(std::memory_order_relaxed); }
  void write(int32_t level, const char* area, std::string_view text) const {
    if (wants(level)) fn_(user_, level, area, text.data(), text.size());
  }

 private:
  LogFn fn_;
  void* user_;
  std::atomic<int32_t> level_;
};

}  // namespace kvplug
