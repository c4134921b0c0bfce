// SPDX-License-Identifier: Apache-2.0
// Finds the first of several stop strings in text that comes in pieces. What could still become a stop string is held
// back, so no part of one is ever given out. The result does not depend on where the pieces are cut: the first match is
// the one that is complete first, and among those the longest. Cost: text length times number of stop strings.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvplug::text {

// One sequence, one thread at a time.
class StopMatcher {
 public:
  // Throws Error (kInvalidArgument) for an empty stop string. No stop strings: all text passes at once.
  explicit StopMatcher(const std::vector<std::string>& stop_strings);

  // The text that may be shown now. After a match: the text before it, then nothing more.
  std::string feed(std::string_view text);
  // The held text of a sequence that ended without a match.
  std::string finish();

  bool stopped() const { return match_.has_value(); }
  // Index of the stop string that matched.
  std::optional<size_t> match() const { return match_; }

 private:
  // Knuth-Morris-Pratt: matched = length of the longest prefix of `text` that the input so far ends with.
  struct Pattern {
    std::string text;
    std::vector<size_t> fallback;  // fallback[n]: that length for the input text[1..n)
    size_t matched = 0;

    explicit Pattern(std::string stop);
    bool step(char c);  // true: `text` is complete
  };

  std::vector<Pattern> patterns_;
  std::string held_;
  std::optional<size_t> match_;
};

}  // namespace kvplug::text
