// SPDX-License-Identifier: Apache-2.0
#include "config/input.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>

#include "config_testing.h"

namespace kvplug::config {
namespace {

class Input : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "kvplug_config_XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void write(const std::string& name, std::string_view text) const {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  config::Run run(const std::string& lines) const {
    Config config;
    config.merge_toml(std::string(kHead) + lines, "run.toml", folder_);
    return config.resolve();
  }
  std::string error(std::string_view jsonl, Code code = Code::kConfig) const {
    write("p.jsonl", jsonl);
    const auto given = run("input.jsonl = \"p.jsonl\"\n");
    return message_of([&] { read_prompts(given); }, code);
  }

  std::filesystem::path folder_;
};

TEST_F(Input, FileThenLines) {
  write("a.txt", "from a file\n");
  write("p.jsonl",
        "{\"prompt\": \"one\", \"id\": \"x\", \"label\": 3}\n\n{\"messages\": [{\"role\": \"user\", \"content\": "
        "\"Hi\"}]}\r\n"
        "{\"prompt\": \"three\", \"id\": 7}");
  const std::string lines = "input.jsonl = \"p.jsonl\"\nprompts = [ { file = \"a.txt\" } ]\ngeneration.top_k = 3\n";
  const std::vector<Prompt> prompts = read_prompts(run(lines));
  ASSERT_EQ(prompts.size(), 4u);
  EXPECT_EQ(prompts[0].text, "from a file\n");
  EXPECT_EQ(prompts[0].file, std::nullopt);
  EXPECT_EQ(prompts[1].text, "one");
  EXPECT_EQ(prompts[1].id, "x");
  EXPECT_EQ(prompts[1].generation.top_k, 3);
  EXPECT_EQ((*prompts[2].messages)[0]["content"], "Hi");
  EXPECT_EQ(prompts[2].id, "2");
  EXPECT_EQ(prompts[3].id, "7");
  EXPECT_EQ(prompts[3].where, "p.jsonl:4");
  EXPECT_EQ(read_prompts(run(lines + "input.limit = 2\n")).size(), 2u);
  EXPECT_EQ(read_prompts(run(lines + "input.limit = 1\n")).size(), 1u);
}

TEST_F(Input, Columns) {
  write("p.jsonl",
        "{\"q\": \"one\", \"chat\": null}\n{\"chat\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"prompt\": 4}\n");
  const auto prompts =
      read_prompts(run("input = { jsonl = \"p.jsonl\", text_column = \"q\", messages_column = \"chat\" }\n"));
  ASSERT_EQ(prompts.size(), 2u);
  EXPECT_EQ(prompts[0].text, "one");
  EXPECT_TRUE(prompts[1].messages.has_value());
}

TEST_F(Input, BadLinesAreNamed) {
  const std::string good = "{\"prompt\": \"a\"}\n";
  EXPECT_TRUE(error(good + "{\"prompt\": \n").starts_with("p.jsonl:2: not valid JSON"));
  EXPECT_TRUE(error(good + "[1]\n").starts_with("p.jsonl:2: expected an object, got a list"));
  EXPECT_TRUE(error(good + "{\"text\": \"a\"}\n").starts_with("p.jsonl:2: neither \"prompt\" nor \"messages\""));
  EXPECT_TRUE(error("{\"prompt\": 4}\n").starts_with("p.jsonl:1: \"prompt\" is not a string"));
  EXPECT_TRUE(error("{\"messages\": [4]}\n").starts_with("p.jsonl:1: \"messages\" is not a list of messages"));
  EXPECT_TRUE(error("{\"messages\": []}\n").starts_with("p.jsonl:1: \"messages\" is not a list of messages"));
  EXPECT_TRUE(error("{\"prompt\": \"a\", \"id\": 1}\n{\"prompt\": \"a\", \"id\": \"1\"}\n")
                  .starts_with("p.jsonl:2: two prompts have the id \"1\""));
  EXPECT_TRUE(error("{\"prompt\": \"\xff\"}\n").starts_with("p.jsonl:1: not valid JSON"));
  EXPECT_TRUE(error(std::string(100000, '[')).starts_with("p.jsonl:1: nested more than"));
  EXPECT_EQ(error(""), "no error");
}

TEST_F(Input, MissingFiles) {
  auto given = run("prompts = [ { file = \"none.txt\" } ]\n");
  EXPECT_TRUE(message_of([&] { read_prompts(given); }, Code::kNotFound)
                  .starts_with("run.toml:2:13: prompts[0]: no such file: " + folder_.string() + "/none.txt"));
  given = run("input.jsonl = \"none.jsonl\"\n");
  EXPECT_TRUE(message_of([&] { read_prompts(given, "run.toml:2: input.jsonl"); }, Code::kNotFound)
                  .starts_with("run.toml:2: input.jsonl: no such file: "));
  given = run("prompts = [ { file = \".\" } ]\n");
  EXPECT_NE(message_of([&] { read_prompts(given); }, Code::kIo).find("a folder, not a file"), std::string::npos);
  write("bad.txt", "\xC0\x80");
  given = run("prompts = [ { file = \"bad.txt\" } ]\n");
  EXPECT_NE(message_of([&] { read_prompts(given); }).find("is not UTF-8 text"), std::string::npos);
}

TEST(Utf8, ValidAndNot) {
  EXPECT_TRUE(is_utf8("plain, é, 漢, 🎉"));
  EXPECT_TRUE(is_utf8(""));
  for (const char* bad : {"\x80", "\xC3", "\xC0\xAF", "\xE0\x80\x80", "\xED\xA0\x80", "\xF0\x80\x80\x80",
                          "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "a\xE2\x82"})
    EXPECT_FALSE(is_utf8(bad)) << bad;
}

}  // namespace
}  // namespace kvplug::config
