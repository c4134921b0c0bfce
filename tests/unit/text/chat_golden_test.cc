// SPDX-License-Identifier: Apache-2.0
// Transformers' results for the tiny chat model: ids of texts, rendered chats and their ids, a batch padded on the
// left.
#include <gtest/gtest.h>

#include <algorithm>

#include "test_data.h"
#include "text/chat_template.h"

namespace kvplug::text {
namespace {

using Json = nlohmann::ordered_json;
using Ids = std::vector<int32_t>;

std::vector<Json> cases_named(std::string_view prefix) {
  static const Json golden = read_data("golden/chat.json");
  std::vector<Json> found;
  for (const Json& c : golden.at("cases")) {
    if (text_at(c, "id").starts_with(prefix)) found.push_back(c);
  }
  return found;
}

TEST(ChatGolden, EncodeAndDecode) {
  const auto tokenizer = chat_tokenizer();
  const auto cases = cases_named("encode/");
  EXPECT_EQ(cases.size(), 21u);
  for (const Json& c : cases) {
    SCOPED_TRACE(text_at(c, "id"));
    const Ids ids = c.at("ids");
    EXPECT_EQ(tokenizer->encode(text_at(c, "text"), true), ids);
    EXPECT_EQ(tokenizer->decode(ids, false), text_at(c, "decoded"));
    EXPECT_EQ(tokenizer->decode(ids, true), text_at(c, "decoded_skip_special"));
    std::vector<std::string> tokens;
    for (const int32_t id : ids) tokens.push_back(tokenizer->id_to_token(id));
    EXPECT_EQ(tokens, c.at("tokens").get<std::vector<std::string>>());
  }
}

TEST(ChatGolden, Templates) {
  const auto tokenizer = chat_tokenizer();
  const auto cases = cases_named("template/");
  EXPECT_EQ(cases.size(), 45u);
  size_t from_folder = 0;
  for (const Json& c : cases) {
    SCOPED_TRACE(text_at(c, "id"));
    ASSERT_FALSE(c.contains("error"));
    const auto own = ChatTemplate::from_source(text_at(c, "template"), text_at(c, "id"));
    ChatOptions options;
    options.add_generation_prompt = c.at("add_generation_prompt");
    options.kwargs_json = c.at("extra").dump();
    options.special_tokens = {{"bos_token", text_at(c, "bos_token")}, {"eos_token", text_at(c, "eos_token")}};
    const std::string messages = c.at("messages").dump();
    const std::string text = own->render(messages, options);
    EXPECT_EQ(text, text_at(c, "text"));
    EXPECT_EQ(tokenizer->encode(text, false), c.at("ids").get<Ids>());
    if (text_at(c, "id").starts_with("template/chatml/")) {
      ++from_folder;
      options.special_tokens = tokenizer->special_tokens();
      EXPECT_EQ(ChatTemplate::load(data_path("models/llama_chat"))->render(messages, options), text_at(c, "text"));
    }
  }
  EXPECT_EQ(from_folder, 10u);
}

TEST(ChatGolden, BatchPaddedOnTheLeft) {
  const auto tokenizer = chat_tokenizer();
  const auto cases = cases_named("batch/left");
  ASSERT_EQ(cases.size(), 1u);
  std::vector<Ids> rows;
  size_t longest = 0;
  for (const std::string text : cases[0].at("texts")) {
    rows.push_back(tokenizer->encode(text, true));
    longest = std::max(longest, rows.back().size());
  }
  for (Ids& row : rows) row.insert(row.begin(), longest - row.size(), tokenizer->pad_id().value());
  EXPECT_EQ(rows, cases[0].at("ids").get<std::vector<Ids>>());
}

}  // namespace
}  // namespace kvplug::text
