// SPDX-License-Identifier: Apache-2.0
// "did you mean": the known word nearest to a misspelt one, by Damerau-Levenshtein distance (insert, delete, replace,
// swap of neighbours, each 1). A word is offered only while it is closer than a third of its length (at least 1, at
// most 3 edits), so that an unrelated word gets no silly advice.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace kvplug {

inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replace = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({replace, last[j] + 1, row[j - 1] + 1});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

// The nearest of `known` (any range of strings), or "" when none is near. Ties go to the earlier one.
template <class Range>
std::string did_you_mean(std::string_view word, const Range& known) {
  std::string best;
  std::size_t best_distance = 0;
  for (const auto& candidate : known) {
    const std::string_view text(candidate);
    const std::size_t limit = std::clamp<std::size_t>(std::max(word.size(), text.size()) / 3, 1, 3);
    const std::size_t distance = edit_distance(word, text);
    if (distance > limit || (!best.empty() && distance >= best_distance)) continue;
    best.assign(text);
    best_distance = distance;
  }
  return best;
}

// "a, b, c"
template <class Range>
std::string join_words(const Range& words) {
  std::string text;
  for (const auto& word : words) {
    if (!text.empty()) text += ", ";
    text += word;
  }
  return text;
}

}  // namespace kvplug
