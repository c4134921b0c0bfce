// SPDX-License-Identifier: Apache-2.0
// Broken and hostile files and input: an Error with the place, never a signal.
#include <gtest/gtest.h>

#include <thread>

#include "test_data.h"
#include "text/chat_template.h"
#include "text/stream.h"

namespace kvplug::text {
namespace {

const std::string kDeepOpen(100000, '[');
const std::string kDeep = kDeepOpen + std::string(100000, ']');
const std::string kDeepObject = [] {
  std::string text;
  for (int i = 0; i < 100000; ++i) text += R"({"a":)";
  return text + "1" + std::string(100000, '}');
}();

std::string good_tokenizer() { return read_bytes(data_path("models/llama_chat/tokenizer.json")); }

void expect_refused(const TempFolder& folder, const std::string& what) {
  SCOPED_TRACE(what.substr(0, 60));
  const Error error = error_of([&] { Tokenizer::load(folder.path()); });
  EXPECT_EQ(error.code(), Code::kModel);
  EXPECT_NE(error.where().find(folder.path().string()), std::string::npos) << error.what();
}

TEST(Hostile, TokenizerJson) {
  const TempFolder folder;
  const std::string good = good_tokenizer();
  std::string bad_utf8 = good;
  bad_utf8[bad_utf8.find("im_start")] = '\xFF';
  for (const std::string& content :
       {std::string(), std::string("not JSON"), std::string("null"), std::string("{}"), std::string("[1, 2]"),
        kDeepOpen, kDeep, kDeepObject, R"({"version": "1.0", "model": )" + kDeep + "}", good.substr(0, good.size() / 2),
        good.substr(0, good.size() - 2), bad_utf8, std::string("\0\0\0\0", 4),
        std::string(R"({"version": "1.0", "model": {"type": "NoSuchModel"}})"),
        std::string(R"({"version": "1.0", "model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}})"),
        std::string(R"({"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0}, "merges": ["a b"]}})")}) {
    folder.write("tokenizer.json", content);
    expect_refused(folder, content);
  }
}

// tokenizers panics on this one; the message comes back and the standard error stream stays empty.
TEST(Hostile, APanicIsAnError) {
  const TempFolder folder;
  auto tokenizer = nlohmann::json::parse(good_tokenizer());
  tokenizer["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", ""}};
  folder.write("tokenizer.json", tokenizer.dump());
  testing::internal::CaptureStderr();
  const Error error = error_of([&] { Tokenizer::load(folder.path()); });
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
  EXPECT_EQ(error.code(), Code::kModel);
  EXPECT_NE(error.message().find("precompiled_charsmap"), std::string::npos) << error.message();
}

// A file that breaks off anywhere, and one with a byte changed anywhere: an Error or a tokenizer that works.
TEST(Hostile, TokenizerJsonCutOrChangedAnywhere) {
  const TempFolder folder;
  const std::string good = good_tokenizer();
  const auto try_it = [&](const std::string& content) {
    folder.write("tokenizer.json", content);
    try {
      const auto tokenizer = Tokenizer::load(folder.path());
      const auto ids = tokenizer->encode("The quick fox", true);
      (void)tokenizer->decode(ids, true);
    } catch (const Error&) {
    }
  };
  for (size_t at = 0; at < good.size(); at += 97) {
    try_it(good.substr(0, at));
    std::string changed = good;
    changed[at] = changed[at] == '"' ? ' ' : '"';
    try_it(changed);
    changed[at] = '9';
    try_it(changed);
  }
}

TEST(Hostile, UnknownPartsAreRefusedNotGuessed) {
  const TempFolder folder;
  auto tokenizer = nlohmann::json::parse(good_tokenizer());
  tokenizer["pre_tokenizer"] = {{"type", "FromTheFuture"}};
  folder.write("tokenizer.json", tokenizer.dump());
  expect_refused(folder, "unknown pre-tokenizer");
  tokenizer["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"Regex", "(((("}}}, {"behavior", "Isolated"}, {"invert", false}};
  folder.write("tokenizer.json", tokenizer.dump());
  expect_refused(folder, "regex that does not compile");
}

TEST(Hostile, TokenizerConfig) {
  const TempFolder folder;
  folder.write("tokenizer.json", good_tokenizer());
  for (const std::string& content :
       {std::string("not JSON"), std::string("[]"), kDeepOpen, kDeep, kDeepObject, std::string(R"({"bos_token": 1})"),
        std::string(R"({"bos_token": {"content": 1}})"), std::string(R"({"eos_token": ["a"]})"),
        std::string(R"({"added_tokens_decoder": [1]})"), std::string(R"({"added_tokens_decoder": {"x": "a"}})"),
        std::string(R"({"added_tokens_decoder": {"1": 2}})"), std::string("{\"bos_token\": \"\xFF\"}")}) {
    folder.write("tokenizer_config.json", content);
    if (content == kDeepObject) {
      EXPECT_NO_THROW(Tokenizer::load(folder.path()));  // valid JSON, and no key of it is ours
      continue;
    }
    expect_refused(folder, content);
  }
}

TEST(Hostile, MissingAndUnreadableFiles) {
  const TempFolder folder;
  const Error missing = error_of([&] { Tokenizer::load(folder.path()); });
  EXPECT_EQ(missing.code(), Code::kNotFound);
  EXPECT_NE(missing.hint().find("save_pretrained"), std::string::npos);
  EXPECT_EQ(error_of([&] { Tokenizer::load(folder.path() / "no such folder"); }).code(), Code::kNotFound);
  std::filesystem::create_directory(folder.path() / "tokenizer.json");
  EXPECT_EQ(error_of([&] { Tokenizer::load(folder.path()); }).code(), Code::kIo);
  std::filesystem::create_directory(folder.path() / "chat_template.jinja");
  EXPECT_EQ(error_of([&] { ChatTemplate::load(folder.path()); }).code(), Code::kIo);
}

TEST(Hostile, TextToEncode) {
  const auto tokenizer = chat_tokenizer();
  for (const std::string text : {"\xFF", "ok\xC3", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xC0\x80"}) {
    EXPECT_EQ(error_of([&] { (void)tokenizer->encode(text, true); }).code(), Code::kInvalidArgument);
  }
  const std::string with_nul("a\0b", 3);
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(with_nul, true), true), with_nul);
}

TEST(Hostile, MessagesAndKwargs) {
  const auto chat = ChatTemplate::from_source("{{ messages | tojson }}{{ x }}", "test");
  for (const std::string& messages :
       {std::string(), std::string("{}"), std::string("[1]"), std::string("[[]]"), kDeepOpen, kDeep, kDeepObject,
        std::string("[{\"role\": \"\xFF\"}]"), std::string("[] []")}) {
    EXPECT_EQ(error_of([&] { chat->render(messages, {}); }).code(), Code::kInvalidArgument) << messages.substr(0, 30);
  }
  for (const std::string& kwargs : {std::string("[]"), std::string("x"), kDeepObject}) {
    ChatOptions options;
    options.kwargs_json = kwargs;
    const Error error = error_of([&] { chat->render("[]", options); });
    EXPECT_NE(error.message().find("chat template kwargs"), std::string::npos) << error.message();
  }
}

TEST(Hostile, Templates) {
  std::string nested_blocks, nested_calls = "{{ ", nested_lists = "{{ ";
  for (int i = 0; i < 20000; ++i) nested_blocks += "{% if true %}";
  for (int i = 0; i < 20000; ++i) nested_calls += "f(";
  for (int i = 0; i < 20000; ++i) nested_lists += "[";
  for (const std::string& source : {nested_blocks, nested_calls, nested_lists, std::string("\xFF"), std::string("{%"),
                                    std::string("{{ '"), std::string("{# "), std::string("{% generation %}")}) {
    EXPECT_EQ(error_of([&] { ChatTemplate::from_source(source, "test"); }).code(), Code::kModel)
        << source.substr(0, 20);
  }
}

}  // namespace
}  // namespace kvplug::text
