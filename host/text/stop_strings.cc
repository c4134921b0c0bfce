// SPDX-License-Identifier: Apache-2.0
// One automaton a stop string. A stop string begins with a whole character, so text is never cut inside one.
#include "text/stop_strings.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace kvplug::text {

StopMatcher::Pattern::Pattern(std::string stop) : text(std::move(stop)), fallback(text.size() + 1, 0) {
  for (size_t n = 2, k = 0; n <= text.size(); ++n) {
    while (k > 0 && text[k] != text[n - 1]) k = fallback[k];
    if (text[k] == text[n - 1]) ++k;
    fallback[n] = k;
  }
}

bool StopMatcher::Pattern::step(char c) {
  while (matched > 0 && text[matched] != c) matched = fallback[matched];
  if (text[matched] == c) ++matched;
  return matched == text.size();
}

StopMatcher::StopMatcher(const std::vector<std::string>& stop_strings) {
  for (const std::string& stop : stop_strings) {
    if (stop.empty()) throw Error(Code::kInvalidArgument, "a stop string must not be empty");
    patterns_.emplace_back(stop);
  }
}

std::string StopMatcher::feed(std::string_view text) {
  if (stopped()) return {};
  for (const char c : text) {
    held_ += c;
    for (size_t i = 0; i < patterns_.size(); ++i) {
      const bool complete = patterns_[i].step(c);
      if (complete && (!match_ || patterns_[*match_].text.size() < patterns_[i].text.size())) match_ = i;
    }
    if (match_) {
      held_.resize(held_.size() - patterns_[*match_].text.size());
      return std::exchange(held_, {});
    }
  }
  size_t keep = 0;
  for (const Pattern& pattern : patterns_) keep = std::max(keep, pattern.matched);
  std::string out = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return out;
}

std::string StopMatcher::finish() {
  if (stopped()) return {};
  for (Pattern& pattern : patterns_) pattern.matched = 0;
  return std::exchange(held_, {});
}

}  // namespace kvplug::text
