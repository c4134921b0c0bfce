// SPDX-License-Identifier: Apache-2.0
// Every function of the hand-written kvplug_text.h is called as the header declares it: a signature that no longer fits
// the Rust side shows here.
#include <gtest/gtest.h>
#include <kvplug_text.h>

#include <string>
#include <string_view>

#include "test_data.h"

namespace kvplug::text {
namespace {

kvtext_view view(std::string_view text) { return {text.data(), text.size()}; }

std::string take(kvtext_bytes& bytes) {
  std::string text = bytes.size == 0 ? "" : std::string(bytes.data, bytes.size);
  kvtext_bytes_free(&bytes);
  EXPECT_EQ(bytes.data, nullptr);
  EXPECT_EQ(bytes.size, 0u);
  return text;
}

TEST(Shim, Tokenizer) {
  const std::string content = read_bytes(data_path("models/llama_chat/tokenizer.json"));
  kvtext_bytes error{}, text{};
  kvtext_tokenizer* tokenizer = nullptr;
  ASSERT_EQ(kvtext_tokenizer_load(view(content), view({}), &tokenizer, &error), 0);
  ASSERT_EQ(kvtext_tokenizer_vocab_size(tokenizer), 400u);

  kvtext_ids ids{};
  ASSERT_EQ(kvtext_tokenizer_encode(tokenizer, view("Hello<|im_end|>"), 1, &ids, &error), 0);
  ASSERT_EQ(ids.size, 5u);
  EXPECT_EQ(ids.data[0], 42u);
  EXPECT_EQ(ids.data[4], 2u);
  ASSERT_EQ(kvtext_tokenizer_decode(tokenizer, ids.data, ids.size, 0, &text, &error), 0);
  EXPECT_EQ(take(text), "Hello<|im_end|>");
  ASSERT_EQ(kvtext_tokenizer_decode(tokenizer, ids.data, ids.size, 1, &text, &error), 0);
  EXPECT_EQ(take(text), "Hello");
  ASSERT_EQ(kvtext_tokenizer_decode(tokenizer, nullptr, 0, 1, &text, &error), 0);
  EXPECT_EQ(text.data, nullptr);
  kvtext_ids_free(&ids);
  EXPECT_EQ(ids.data, nullptr);
  kvtext_ids_free(&ids);
  kvtext_ids_free(nullptr);
  kvtext_bytes_free(nullptr);

  EXPECT_EQ(kvtext_tokenizer_token_to_id(tokenizer, view("<|im_start|>")), 1);
  EXPECT_EQ(kvtext_tokenizer_token_to_id(tokenizer, view("nope")), -1);
  EXPECT_EQ(kvtext_tokenizer_token_to_id(tokenizer, view("\xFF")), -1);
  EXPECT_EQ(kvtext_tokenizer_token_flags(tokenizer, 1), KVTEXT_TOKEN_KNOWN + KVTEXT_TOKEN_SPECIAL);
  EXPECT_EQ(kvtext_tokenizer_token_flags(tokenizer, 42), KVTEXT_TOKEN_KNOWN);
  EXPECT_EQ(kvtext_tokenizer_token_flags(tokenizer, 4000000000u), 0u);
  ASSERT_EQ(kvtext_tokenizer_id_to_token(tokenizer, 1, &text, &error), 0);
  EXPECT_EQ(take(text), "<|im_start|>");

  EXPECT_NE(kvtext_tokenizer_id_to_token(tokenizer, 400, &text, &error), 0);
  EXPECT_EQ(take(error), "id 400 is not in the vocabulary");
  EXPECT_NE(kvtext_tokenizer_id_to_token(tokenizer, 400, &text, nullptr), 0);  // the message is optional
  EXPECT_NE(kvtext_tokenizer_encode(tokenizer, view("\xC3("), 0, &ids, &error), 0);
  EXPECT_NE(take(error).find("UTF-8"), std::string::npos);
  EXPECT_EQ(ids.data, nullptr);  // untouched on failure
  kvtext_tokenizer_free(tokenizer);
  kvtext_tokenizer_free(nullptr);
}

TEST(Shim, TokenizerSettings) {
  const std::string content = read_bytes(data_path("models/llama_chat/tokenizer.json"));
  kvtext_bytes error{};
  kvtext_tokenizer* tokenizer = nullptr;
  for (const char* settings : {"{", R"({"added_tokens": [1]})", R"({"template": {"bos": "not a token"}})"}) {
    EXPECT_NE(kvtext_tokenizer_load(view(content), view(settings), &tokenizer, &error), 0) << settings;
    EXPECT_NE(take(error), "");
    EXPECT_EQ(tokenizer, nullptr);
  }
}

TEST(Shim, Template) {
  kvtext_bytes error{}, text{};
  kvtext_template* chat = nullptr;
  ASSERT_EQ(kvtext_template_compile(
                view("{{ bos }}{{ x }}{% if messages %}{{ messages[0].role }}{% endif %}{{ add_generation_prompt }}"),
                &chat, &error),
            0);
  const auto render = [&](std::string_view messages, std::string_view special, std::string_view kwargs,
                          uint32_t flags) {
    return kvtext_template_render(chat, view(messages), view(special), view(kwargs), flags, &text, &error);
  };
  ASSERT_EQ(render(R"([{"role": "user"}])", R"({"bos": "B"})", R"({"x": 1})", KVTEXT_ADD_GENERATION_PROMPT), 0);
  EXPECT_EQ(take(text), "B1userTrue");
  ASSERT_EQ(render("[]", "", "", 0), 0);
  EXPECT_EQ(take(text), "False");
  EXPECT_NE(render("[]", "", "", KVTEXT_CONTINUE_FINAL_MESSAGE), 0);
  EXPECT_NE(take(error), "");
  kvtext_template_free(chat);
  kvtext_template_free(nullptr);
  EXPECT_NE(kvtext_template_compile(view("{{"), &chat, &error), 0);
  EXPECT_NE(take(error).find("line 1"), std::string::npos);
}

}  // namespace
}  // namespace kvplug::text
