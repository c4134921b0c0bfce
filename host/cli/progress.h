// SPDX-License-Identifier: Apache-2.0
// A progress line on standard error for what takes longer than two seconds, when that is a terminal.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace kvplug::cli {

class ProgressLine {
 public:
  // mode: auto | always | never
  ProgressLine(std::string label, const std::string& mode);
  ~ProgressLine() { clear(); }
  void show(uint64_t done_bytes, uint64_t total_bytes);
  void show_steps(const std::string& what, uint64_t done, uint64_t total);
  void clear();

 private:
  bool due();
  std::string label_;
  bool enabled_, at_once_, drawn_ = false;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now(), last_{};
};

}  // namespace kvplug::cli
