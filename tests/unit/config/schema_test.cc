// SPDX-License-Identifier: Apache-2.0
// Over the whole table of keys: every misspelling is caught with the right advice, every wrong type has its place,
// every default is valid.
#include "config/schema.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "config/unbuilt.h"
#include "config_testing.h"
#include "core/did_you_mean.h"

namespace kvplug::config {
namespace {

// `key = value` where the key is "a.b.c" or "prompts[].text"; on line 2, after `indent` blanks.
std::string line_for(std::string path, const std::string& value, const std::string& indent = "") {
  for (const char* list : {"prompts[].", "plugins.load[].", "bench.cache[].", "diff.candidate[]."}) {
    const std::string prefix = list;
    if (!path.starts_with(prefix)) continue;
    const std::string table = prefix.substr(0, prefix.size() - 3);
    return table + " = [ { " + path.substr(prefix.size()) + " = " + value + " } ]\n";
  }
  return indent + path + " = " + value + "\n";
}

std::string wrong_value(Type type) {
  switch (type) {
    case Type::kBool:
    case Type::kInteger:
    case Type::kNumber: return "\"x\"";
    default: return "1979-05-27";
  }
}

std::string word_of(std::string_view path) { return std::string(path.substr(path.rfind('.') + 1)); }

TEST(Schema, PathsAreUniqueAndDefaultsValid) {
  std::set<std::string_view> seen;
  for (const Key& key : keys()) {
    EXPECT_TRUE(seen.insert(key.path).second) << key.path;
    EXPECT_FALSE(key.help.empty()) << key.path;
    EXPECT_TRUE(!key.fallback.empty() || !key.example.empty() || !key.off.empty()) << key.path;
    EXPECT_EQ(find_unbuilt(key.path), nullptr) << key.path;
    if (key.fallback.empty() || key.path == "config_version" || key.path.find('[') != std::string_view::npos) continue;
    Config config;
    EXPECT_NO_THROW(config.set(key.path, key.fallback)) << key.path;  // JSON scalars and lists are TOML values
  }
}

TEST(Schema, ExamplesAreValid) {
  for (const Key& key : keys()) {
    if (key.example.empty()) continue;
    Config config;
    EXPECT_NO_THROW(
        config.merge_toml(std::string(kHead) + line_for(std::string(key.path), std::string(key.example)), "x", "/b"))
        << key.path;
  }
}

// One letter left out, one doubled, two swapped, one replaced.
std::vector<std::string> misspellings(const std::string& word) {
  std::vector<std::string> result;
  for (std::size_t i = 0; i < word.size(); ++i) {
    result.push_back(word.substr(0, i) + word.substr(i + 1));
    result.push_back(word.substr(0, i) + word[i] + word.substr(i));
    result.push_back(word.substr(0, i) + (word[i] == 'x' ? 'y' : 'x') + word.substr(i + 1));
    if (i + 1 < word.size()) {
      std::string swapped = word;
      std::swap(swapped[i], swapped[i + 1]);
      result.push_back(swapped);
    }
  }
  return result;
}

TEST(Schema, EveryMisspellingIsCaughtAndTheRightKeyNamed) {
  int tried = 0;
  for (const Key& key : keys()) {
    if (key.path == "config_version") continue;
    const std::string word = word_of(key.path);
    const std::string section(key.path.substr(0, key.path.size() - word.size()));
    const std::vector<std::string> siblings = words_below(section.substr(0, section.size() - 1));
    for (const std::string& wrong : misspellings(word)) {
      if (wrong.empty() || std::find(siblings.begin(), siblings.end(), wrong) != siblings.end()) continue;
      // top_x is as near to top_k as to top_p: only a nearest word is promised.
      const bool tie = std::any_of(siblings.begin(), siblings.end(), [&](const std::string& other) {
        return other != word && edit_distance(wrong, other) <= edit_distance(wrong, word);
      });
      const std::string message = toml_error(line_for(section + wrong, "1"));
      EXPECT_NE(message.find(wrong + ": unknown key\n"), std::string::npos) << message;
      EXPECT_TRUE(message.starts_with("run.toml:2")) << message;
      EXPECT_TRUE(tie || message.find("did you mean `" + word + "`?") != std::string::npos) << wrong << "\n" << message;
      ++tried;
    }
  }
  EXPECT_GT(tried, 1000);
}

TEST(Schema, EveryWrongTypeHasLineAndColumn) {
  for (const Key& key : keys()) {
    if (key.path == "config_version") continue;
    std::string shown(key.path);
    const bool in_list = shown.find("[]") != std::string::npos;
    if (in_list) shown.replace(shown.find("[]"), 2, "[0]");
    const std::string message = toml_error(line_for(std::string(key.path), wrong_value(key.type), "  "));
    const std::string column = in_list ? std::to_string(line_for(std::string(key.path), "").find("{ ") + 3)
                                       : std::to_string(3 + (shown.rfind('.') + 1));
    EXPECT_TRUE(message.starts_with("run.toml:2:" + column + ": " + shown + ": expected ")) << message;
    EXPECT_NE(message.find(", got "), std::string::npos) << message;
  }
}

TEST(Schema, RangesAreKept) {
  int tried = 0;
  for (const Key& key : keys()) {
    if (key.type != Type::kInteger && key.type != Type::kNumber) continue;
    if (key.range.min == -std::numeric_limits<double>::infinity() || key.path == "config_version") continue;
    const bool integer = key.type == Type::kInteger;
    const auto text = [&](double value) {
      return integer ? std::to_string(static_cast<long long>(value)) : std::to_string(value);
    };
    const std::string low = text(key.range.above_min ? key.range.min : key.range.min - 1);
    const std::string path(key.path);
    EXPECT_NE(toml_error(line_for(path, low)).find("out of range; expected "), std::string::npos) << path;
    if (key.range.max < 1e9) {
      const std::string high = text(key.range.below_max ? key.range.max : key.range.max + 1);
      EXPECT_NE(toml_error(line_for(path, high)).find("out of range; expected "), std::string::npos) << path;
    }
    ++tried;
  }
  EXPECT_GT(tried, 20);
}

TEST(Schema, UnbuiltKeysSaySo) {
  for (const UnbuiltKey& key : unbuilt_keys()) {
    const std::string message = toml_error(line_for(std::string(key.path), "1"));
    EXPECT_NE(message.find(": not part of this release\n  "), std::string::npos) << key.path << "\n" << message;
    EXPECT_TRUE(message.starts_with("run.toml:2")) << message;
  }
  EXPECT_EQ(toml_error("generation.num_beams = 4\n"),
            "run.toml:2:12: generation.num_beams: not part of this release\n"
            "  beam search comes later; leave the key out for greedy decoding or sampling");
  EXPECT_NE(toml_error("[debug]\npoison_buffers = true\n").find("run.toml:2:2: debug: not part"), std::string::npos);
}

TEST(Schema, IndicesAreNoPartOfTheSchema) {
  EXPECT_EQ(schema_path("prompts[12].generation.top_p"), "prompts[].generation.top_p");
  ASSERT_NE(find_key("prompts[].generation.top_p"), nullptr);
  EXPECT_EQ(find_key("prompts[].generation.cache_implementation"), nullptr);
  EXPECT_EQ(find_key("prompts[].generation.cache_config"), nullptr);
}

}  // namespace
}  // namespace kvplug::config
