// SPDX-License-Identifier: Apache-2.0
// docs/run-file.md and the example run files against the table of keys. When the reference differs, the text it should
// have is written to the build folder.
#include <gtest/gtest.h>

#include <fstream>

#include "config/input.h"
#include "config/schema.h"
#include "config_testing.h"

namespace kvplug::config {
namespace {

const std::string kSource = KVPLUG_SOURCE_DIR;

std::string allowed(const Key& key) {
  std::string text;
  for (const std::string& word : split_words(key.words)) text += (text.empty() ? "`" : ", `") + word + "`";
  const bool integer = key.type != Type::kNumber;
  const bool bounded = key.range.min != -std::numeric_limits<double>::infinity();
  if (bounded && key.type != Type::kIds && key.type != Type::kIdLists && key.type != Type::kSize)
    text = describe_range(key.range, integer).substr(9);
  if (text == "0 to 2147483647") text = "0 or more";
  if (text == "1 to 2147483647") text = "1 or more";
  return text;
}

std::string type_word(Type type) {
  constexpr const char* kWords[] = {"true, false", "integer",        "number", "text",    "word",
                                    "path",        "size",           "texts",  "words",   "paths",
                                    "token ids",   "token id lists", "table",  "messages"};
  return kWords[static_cast<int>(type)];
}

std::string reference() {
  std::string text, section;
  for (const Key& key : keys()) {
    const std::size_t dot = key.path.rfind('.');
    const std::string its(dot == std::string_view::npos ? "" : key.path.substr(0, dot));
    if (text.empty() || its != section) {
      const std::size_t bracket = its.find("[]");
      const std::string title = its.empty()                    ? "Top"
                                : bracket != std::string::npos ? "`[[" + its.substr(0, bracket) + "]]`"
                                                               : "`[" + its + "]`";
      text += "### " + title + "\n\n| key | type | default | meaning |\n|---|---|---|---|\n";
      section = its;
    }
    const std::string limits = allowed(key);
    const std::string fallback = key.path == "config_version" ? "required"
                                 : key.fallback.empty()       ? "-"
                                                              : "`" + std::string(key.fallback) + "`";
    text += "| `" + std::string(key.path.substr(dot == std::string_view::npos ? 0 : dot + 1)) + "` | " +
            type_word(key.type) + (limits.empty() ? "" : ": " + limits) + " | " + fallback + " | " +
            std::string(key.help) + " |\n";
    const std::size_t next = static_cast<std::size_t>(&key - keys().data()) + 1;
    const bool last =
        next == keys().size() || std::string_view(keys()[next].path).substr(0, keys()[next].path.rfind('.')) != its;
    if (key.path == "prompts[].seed")
      text += "| `generation` | table | - | any key of [generation] but those of the cache, for this prompt |\n";
    if (last || its.empty()) text += "\n";
  }
  return text;
}

TEST(Reference, DocumentsEveryKey) {
  const std::string docs = read_text_file(kSource + "/docs/run-file.md", "docs");
  const std::string start = "## Keys\n\n", end = "## Output\n";
  const std::size_t from = docs.find(start), to = docs.find(end);
  ASSERT_NE(from, std::string::npos);
  ASSERT_NE(to, std::string::npos);
  const std::string expected = reference();
  if (docs.substr(from + start.size(), to - from - start.size()) == expected) return;
  const std::string path = std::string(KVPLUG_TEST_BUILD) + "/run-file-keys.md";
  std::ofstream(path) << expected;
  FAIL() << "the section Keys of docs/run-file.md differs from the table of keys; it should be as in " << path;
}

TEST(Reference, ExamplesAreValid) {
  int tried = 0;
  for (const auto& file : std::filesystem::directory_iterator(kSource + "/examples")) {
    if (file.path().extension() != ".toml") continue;
    Config config;
    ASSERT_NO_THROW(config.merge_toml(read_text_file(file.path().string(), "example"), file.path().filename().string(),
                                      file.path().parent_path()))
        << file.path();
    const auto run = config.resolve();
    EXPECT_NO_THROW(check_complete(run));
    EXPECT_FALSE(read_prompts(run).empty());
    EXPECT_TRUE(run.notices.empty()) << file.path() << ": " << run.notices[0].text;
    ++tried;
  }
  EXPECT_GE(tried, 5);
}

TEST(Reference, ShortestFileOfTheDocumentation) {
  const std::string docs = read_text_file(kSource + "/docs/run-file.md", "docs");
  const std::size_t from = docs.find("```toml\n") + 8;
  Config config;
  config.merge_toml(docs.substr(from, docs.find("```", from) - from), "docs", "/");
  EXPECT_EQ(config.resolve().prompts.size(), 1u);
}

}  // namespace
}  // namespace kvplug::config
