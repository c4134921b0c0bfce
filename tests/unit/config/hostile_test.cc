// SPDX-License-Identifier: Apache-2.0
// Texts made to hurt: each ends in an Error (or in nothing), none in a crash, a hang or a lot of memory.
#include <gtest/gtest.h>

#include "config_testing.h"

namespace kvplug::config {
namespace {

std::string repeat(std::string_view part, int times) {
  std::string text;
  text.reserve(part.size() * static_cast<std::size_t>(times));
  for (int i = 0; i < times; ++i) text += part;
  return text;
}

TEST(Hostile, DeepNesting) {
  EXPECT_NE(toml_error("a = " + repeat("[", 100000)), "no error");
  EXPECT_NE(toml_error("a = " + repeat("[", 100000) + repeat("]", 100000)), "no error");
  EXPECT_NE(toml_error("a = " + repeat("{ a = ", 100000)), "no error");
  EXPECT_NE(toml_error("[" + repeat("a.", 100000) + "a]").find("run.toml:2: a dotted key of more than 32 parts"),
            std::string::npos);
  EXPECT_NE(toml_error(repeat("a.", 100000) + "a = 1").find("dotted key"), std::string::npos);
  EXPECT_NE(toml_error(repeat("'a'.\"b\".", 100000) + "a = 1").find("dotted key"), std::string::npos);
  EXPECT_NE(toml_error("x = { " + repeat("a . ", 100000) + "a = 1 }").find("dotted key"), std::string::npos);
  const auto json = [](const std::string& text) {
    return message_of([&] { Config().merge_json(text, "x.json", "/b"); });
  };
  EXPECT_NE(json(repeat("[", 1000000)).find("nested more than"), std::string::npos);
  EXPECT_NE(json(repeat("{\"a\":", 1000000)).find("nested more than"), std::string::npos);
  EXPECT_NE(message_of([] { Config().set_checkpoint(repeat("[", 1000000)); }).find("nested more than"),
            std::string::npos);
}

// Dots in texts, comments and numbers are not keys.
TEST(Hostile, ManyDotsThatAreNoKeys) {
  const std::string dots = repeat(".", 1000);
  EXPECT_EQ(toml_error("run.name = \"" + dots + "\" # " + dots + "\n"), "no error");
  EXPECT_EQ(toml_error("run.name = '" + dots + "'\n"), "no error");
  EXPECT_EQ(toml_error("run.name = \"\"\"" + dots + "\"\n" + dots + "\\\"" + dots + "\"\"\"\n"), "no error");
  EXPECT_EQ(toml_error("tokenizer.chat_template_kwargs.x = [" + repeat("1.5, ", 1000) + "1.5]\n"), "no error");
}

TEST(Hostile, BadBytes) {
  EXPECT_NE(toml_error(std::string("run.name = \"a\0b\"", 16)), "no error");
  EXPECT_NE(toml_error(std::string("\0", 1)), "no error");
  EXPECT_NE(toml_error("run.name = \"\\u0000\"").find("NUL"), std::string::npos);
  EXPECT_NE(toml_error("run.name = \"\xff\xfe\""), "no error");
  EXPECT_NE(toml_error("run.name = \"\xed\xa0\x80\""), "no error");
  EXPECT_NE(toml_error("run.name = \"open"), "no error");
  EXPECT_NE(toml_error("run.name = \"\"\"open\\"), "no error");
  EXPECT_NE(toml_error("run.name = 'open"), "no error");
}

// Files that break assertions of toml++.
TEST(Hostile, BadKeys) {
  for (const char* text : {"[`]", "[[`]]", "[ =", "[\x01]", "a.` = 1", "a = { ` = 1 }", "[#]", "[", "[[", "= 1", "."})
    EXPECT_NE(toml_error(text).find("not valid TOML"), std::string::npos) << text;
}

// Letters beyond ASCII where toml++ asks whether they are blanks.
TEST(Hostile, Letters) {
  for (const char* letter : {"\u00e9", "\u0404", "\u3041", "\ufe10", "\U0001F389"}) {
    const std::string text = letter;
    for (const std::string& bad :
         {"run.name = " + text, text + " = 1", "[" + text + "]", "run.seed = 1 " + text, "run.seed = 1" + text})
      EXPECT_NE(toml_error(bad).find("not valid TOML"), std::string::npos) << bad;
    Config config = from_toml("run.name = \"\"\"\\\n  " + text + " # \"\"\" # " + text + "\n");
    EXPECT_EQ(config.resolve().run.name, text + " # ");
  }
}

TEST(Hostile, BigNumbers) {
  EXPECT_NE(toml_error("run.seed = 99999999999999999999999999"), "no error");
  EXPECT_NE(toml_error("run.seed = -9223372036854775808").find("out of range"), std::string::npos);
  EXPECT_NE(toml_error("generation.top_k = 9223372036854775807").find("out of range"), std::string::npos);
  EXPECT_NE(toml_error("generation.temperature = inf").find("finite"), std::string::npos);
  EXPECT_NE(toml_error("generation.cache_config.x = inf").find("finite"), std::string::npos);
  EXPECT_NE(toml_error("generation.temperature = 1e999"), "no error");
  const auto json = [](const std::string& text) { return message_of([&] { Config().set_checkpoint(text); }); };
  EXPECT_NE(json(R"({"top_k": 18446744073709551615})").find("out of range"), std::string::npos);
  EXPECT_NE(json(R"({"top_k": 1e999})"), "no error");
  EXPECT_NE(json(R"({"cache_config": {"x": 18446744073709551615}})").find("out of range"), std::string::npos);
}

TEST(Hostile, LongNames) {
  const std::string name = repeat("n", 1000000);
  const std::string message = toml_error(name + " = 1\n");
  EXPECT_NE(message.find("unknown key"), std::string::npos);
  EXPECT_LT(message.size(), 1000u);
  EXPECT_LT(toml_error("run.log_level = \"" + name + "\"\n").size(), 1000u);
  EXPECT_LT(toml_error("generation.unset = [\"" + name + "\"]\n").size(), 2000u);
  EXPECT_LT(toml_error("run.seed = \"" + name + "\"\n").size(), 1000u);
  EXPECT_LT(toml_error("generation.cache_implementation = \"" + name + "\"\n").size(), 1000u);
  const KindTable kinds = table_of_kinds();
  EXPECT_LT(toml_error(
                "generation.cache_implementation = \"quantized\"\ngeneration.cache_config.backend = \"" + name + "\"\n",
                &kinds)
                .size(),
            10000u);
}

TEST(Hostile, ControlCharactersDoNotReachTheTerminal) {
  const std::string message = toml_error("\"\\u001b[31mred\\n\" = 1\n");
  EXPECT_EQ(message.find('\x1b'), std::string::npos);
  EXPECT_NE(message.find("unknown key"), std::string::npos);
}

TEST(Hostile, ManyPrompts) {
  const auto run = from_toml(repeat("[[prompts]]\ntext = \"a\"\n", 2000)).resolve();
  EXPECT_EQ(run.prompts.size(), 2000u);
}

}  // namespace
}  // namespace kvplug::config
