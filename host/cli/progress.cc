// SPDX-License-Identifier: Apache-2.0
#include "cli/progress.h"

#include <cstdio>

#include "cli/terminal.h"

namespace kvplug::cli {

ProgressLine::ProgressLine(std::string label, const std::string& mode)
    : label_(std::move(label)),
      enabled_(mode == "always" || (mode == "auto" && stderr_is_terminal())),
      at_once_(mode == "always") {}

bool ProgressLine::due() {
  using namespace std::chrono_literals;
  const auto now = std::chrono::steady_clock::now();
  if (!enabled_ || (!at_once_ && now - start_ < 2s) || now - last_ < 100ms) return false;
  last_ = now;
  return drawn_ = true;
}

void ProgressLine::show_steps(const std::string& what, uint64_t done, uint64_t total) {
  if (total == 0 || !due()) return;
  std::fprintf(stderr, "\r%-60.60s %3u %%", what.c_str(), static_cast<unsigned>(100 * done / total));
  std::fflush(stderr);
}

void ProgressLine::show(uint64_t done, uint64_t total) {
  if (total == 0 || !due()) return;
  const int cells = static_cast<int>(30 * done / total);
  std::fprintf(stderr, "\r%s [%-30.*s] %3u %%  %llu of %llu MB", label_.c_str(), cells,
               "##############################", static_cast<unsigned>(100 * done / total),
               static_cast<unsigned long long>(done / 1000000), static_cast<unsigned long long>(total / 1000000));
  std::fflush(stderr);
}

void ProgressLine::clear() {
  if (!std::exchange(drawn_, false)) return;
  std::fprintf(stderr, "\r%*s\r", 79, "");
  std::fflush(stderr);
}

}  // namespace kvplug::cli
