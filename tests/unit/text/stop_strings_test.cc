// SPDX-License-Identifier: Apache-2.0
// Stop strings: the cut, what is held back, and that pieces do not matter.
#include "text/stop_strings.h"

#include <gtest/gtest.h>

#include <random>

#include "core/error.h"

namespace kvplug::text {
namespace {

using Strings = std::vector<std::string>;

struct Outcome {
  std::string text;
  std::optional<size_t> match;
  bool operator==(const Outcome&) const = default;
};

// The plain definition: try every end in order, the longest stop string first.
Outcome by_definition(const std::string& text, const Strings& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::optional<size_t> best;
    for (size_t i = 0; i < stops.size(); ++i) {
      if (std::string_view(text).substr(0, end).ends_with(stops[i]) &&
          (!best || stops[i].size() > stops[*best].size())) {
        best = i;
      }
    }
    if (best) return {text.substr(0, end - stops[*best].size()), best};
  }
  return {text, std::nullopt};
}

Outcome in_pieces(const Strings& pieces, const Strings& stops) {
  StopMatcher matcher(stops);
  Outcome outcome;
  for (const std::string& piece : pieces) outcome.text += matcher.feed(piece);
  outcome.text += matcher.finish();
  outcome.match = matcher.match();
  EXPECT_EQ(matcher.stopped(), outcome.match.has_value());
  return outcome;
}

TEST(StopMatcher, CutsBeforeTheFirstMatch) {
  EXPECT_EQ(in_pieces({"ABC", "DEF", "GHI", "JKL"}, {"DEFGHIJ"}), (Outcome{"ABC", 0}));
  EXPECT_EQ(in_pieces({"line", "\n", "more"}, {"\n"}), (Outcome{"line", 0}));
  EXPECT_EQ(in_pieces({"The br", "own", " fox"}, {"own fox"}), (Outcome{"The br", 0}));
  EXPECT_EQ(in_pieces({"xab", "c"}, {"abc", "ab"}), (Outcome{"x", 1}));    // a prefix of another completes first
  EXPECT_EQ(in_pieces({"a", "a", "a", "b"}, {"aab"}), (Outcome{"a", 0}));  // overlaps itself
  EXPECT_EQ(in_pieces({"abcd", "ef"}, {"abcdef", "cd"}), (Outcome{"ab", 1}));
  EXPECT_EQ(in_pieces({"bc"}, {"c", "bc"}), (Outcome{"", 1}));  // both complete at once: the longest
  EXPECT_EQ(in_pieces({"end", "STOP"}, {"STOP"}), (Outcome{"end", 0}));
  EXPECT_EQ(in_pieces({"STOP"}, {"STOP"}), (Outcome{"", 0}));
}

TEST(StopMatcher, HoldsBackOnlyWhatMayStillMatch) {
  StopMatcher matcher({"DEFG"});
  EXPECT_EQ(matcher.feed("ABCDE"), "ABC");
  EXPECT_EQ(matcher.feed("X"), "DEX");
  EXPECT_EQ(matcher.feed("DEDEF"), "DE");
  EXPECT_FALSE(matcher.stopped());
  EXPECT_EQ(matcher.finish(), "DEF");
  EXPECT_EQ(matcher.finish(), "");
  EXPECT_EQ(matcher.feed("G"), "G");  // what was held does not count twice
  EXPECT_EQ(matcher.feed("xDEFGy"), "x");
  EXPECT_EQ(matcher.feed("z"), "");
  EXPECT_EQ(matcher.finish(), "");
}

TEST(StopMatcher, NoStopStringsPassAllAtOnce) {
  StopMatcher matcher({});
  EXPECT_EQ(matcher.feed("any"), "any");
  EXPECT_EQ(matcher.finish(), "");
}

TEST(StopMatcher, EmptyStopStringIsRefused) { EXPECT_THROW(StopMatcher({"a", ""}), Error); }

TEST(StopMatcher, EqualsTheDefinitionHoweverTheTextIsCut) {
  std::mt19937 random(7);
  const auto letters = [&](size_t most) {
    std::string s(1 + random() % most, 'a');
    for (char& c : s) c = static_cast<char>('a' + random() % 3);
    return s;
  };
  size_t stopped = 0;
  for (int round = 0; round < 20000; ++round) {
    const std::string text = letters(24);
    Strings stops;
    for (size_t n = 1 + random() % 3; n > 0; --n) {
      const std::string stop = letters(6);
      if (std::find(stops.begin(), stops.end(), stop) == stops.end()) stops.push_back(stop);
    }
    Strings pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t size = 1 + random() % 5;
      pieces.push_back(text.substr(at, size));
      at += size;
    }
    const Outcome expected = by_definition(text, stops);
    stopped += expected.match.has_value();
    ASSERT_EQ(in_pieces(pieces, stops), expected) << text;
    ASSERT_EQ(in_pieces({text}, stops), expected) << text;
  }
  EXPECT_GT(stopped, 5000u);
  EXPECT_LT(stopped, 19000u);
}

}  // namespace
}  // namespace kvplug::text
