// SPDX-License-Identifier: Apache-2.0
// Ids under the pre-tokenizers of well-known models (against the Python library) and what tokenizer_config.json adds.
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <thread>

#include "test_data.h"

namespace kvplug::text {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

// Three tokens and a post-processor that does nothing.
json tiny() {
  return json::parse(R"({"version": "1.0", "added_tokens": [], "normalizer": null,
      "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": null, "decoder": null,
      "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1, "<s>": 2, "</s>": 3, "?": 4}, "unk_token": "?"}})");
}

std::shared_ptr<const Tokenizer> load_with(const json& tokenizer, const std::string& config) {
  const TempFolder folder;
  folder.write("tokenizer.json", tokenizer.dump());
  if (!config.empty()) folder.write("tokenizer_config.json", config);
  return Tokenizer::load(folder.path());
}

TEST(Tokenizer, PreTokenizersOfWellKnownModels) {
  const auto data = read_data("text/pretokenizers.json");
  size_t checked = 0;
  for (const auto& c : data.at("cases")) {
    if (!c.contains("text")) continue;
    const std::string text = text_at(c, "text"), name = text_at(c, "tokenizer");
    SCOPED_TRACE(name + ": " + text);
    const auto tokenizer = sample_tokenizer(name);
    const Ids ids = c.at("ids");
    EXPECT_EQ(tokenizer->encode(text, false), ids);
    EXPECT_EQ(tokenizer->decode(ids, false), text_at(c, "decoded"));
    ++checked;
  }
  EXPECT_EQ(checked, 8u * 23u);
}

TEST(Tokenizer, SpecialTokens) {
  const auto tokenizer = chat_tokenizer();
  EXPECT_EQ(tokenizer->vocab_size(), 400u);
  EXPECT_EQ(tokenizer->bos_id(), 1);
  EXPECT_EQ(tokenizer->eos_id(), 2);
  EXPECT_EQ(tokenizer->pad_id(), 0);
  EXPECT_EQ(tokenizer->special_tokens().at("unk_token"), "<|endoftext|>");
  EXPECT_TRUE(tokenizer->traits(1).special);
  EXPECT_FALSE(tokenizer->traits(42).special);
  EXPECT_TRUE(tokenizer->traits(42).known);
  EXPECT_FALSE(tokenizer->traits(400).known);
  EXPECT_FALSE(tokenizer->traits(-1).known);
  EXPECT_TRUE(sample_tokenizer("metaspace")->traits(3 + 0x41).byte);
  EXPECT_EQ(tokenizer->token_to_id("<|im_end|>"), 2);
  EXPECT_EQ(tokenizer->token_to_id("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer->id_to_token(2), "<|im_end|>");
  EXPECT_EQ(tokenizer->id_to_token(400), "");
}

TEST(Tokenizer, IdsBeyondTheVocabularyDecodeToNothing) {
  const auto tokenizer = chat_tokenizer();
  EXPECT_EQ(tokenizer->decode(Ids{400, 42, 100000, -1, 42, INT32_MIN}, false), "HH");
  EXPECT_EQ(tokenizer->decode(Ids{}, false), "");
}

TEST(Tokenizer, ConfigMayBeMissing) {
  const auto tokenizer = load_with(tiny(), "");
  EXPECT_EQ(tokenizer->bos_id(), std::nullopt);
  EXPECT_TRUE(tokenizer->special_tokens().empty());
  EXPECT_EQ(tokenizer->encode("a b x", true), (Ids{0, 1, 4}));
  EXPECT_EQ(tokenizer->decode(Ids{0, 1}, true), "a b");
}

TEST(Tokenizer, SpecialTokensAsStringsObjectsOrNull) {
  const auto tokenizer = load_with(
      tiny(), R"({"bos_token": {"content": "<s>", "lstrip": false, "__type": "AddedToken"}, "eos_token": "</s>",
                  "pad_token": null, "cls_token": "[NEW]"})");
  EXPECT_EQ(tokenizer->bos_id(), 2);
  EXPECT_EQ(tokenizer->eos_id(), 3);
  EXPECT_EQ(tokenizer->pad_id(), std::nullopt);
  EXPECT_EQ(tokenizer->vocab_size(), 6u);  // [NEW] got an id of its own
  // Once named they are found inside text and skipped on demand.
  EXPECT_EQ(tokenizer->encode("a<s>b[NEW]", false), (Ids{0, 2, 1, 5}));
  EXPECT_EQ(tokenizer->decode(Ids{0, 2, 1, 5}, true), "a b");
}

TEST(Tokenizer, AddedTokensOfTheConfig) {
  const auto tokenizer = load_with(tiny(), R"({"added_tokens_decoder": {
      "6": {"content": "<y>", "special": true}, "5": {"content": "<x>", "special": false}}})");
  EXPECT_EQ(tokenizer->encode("<y>a<x>", false), (Ids{6, 0, 5}));
  EXPECT_FALSE(tokenizer->traits(5).special);
  EXPECT_TRUE(tokenizer->traits(6).special);
}

TEST(Tokenizer, SpecialTokensMapOfOlderFolders) {
  const TempFolder folder;
  folder.write("tokenizer.json", tiny().dump());
  folder.write("tokenizer_config.json", R"({"eos_token": "</s>"})");
  folder.write("special_tokens_map.json", R"({"bos_token": "<s>", "eos_token": "b"})");
  const auto tokenizer = Tokenizer::load(folder.path());
  EXPECT_EQ(tokenizer->bos_id(), 2);
  EXPECT_EQ(tokenizer->eos_id(), 3);  // the config wins
}

TEST(Tokenizer, BosAndEosAroundTheText) {
  const std::string names = R"("bos_token": "<s>", "eos_token": "</s>")";
  EXPECT_EQ(load_with(tiny(), "{" + names + "}")->encode("a", true), (Ids{0}));
  EXPECT_EQ(load_with(tiny(), "{" + names + R"(, "add_bos_token": true})")->encode("a", true), (Ids{2, 0}));
  const auto both = load_with(tiny(), "{" + names + R"(, "add_bos_token": true, "add_eos_token": true})");
  EXPECT_EQ(both->encode("a", true), (Ids{2, 0, 3}));
  EXPECT_EQ(both->encode("a", false), (Ids{0}));
  EXPECT_EQ(sample_tokenizer("metaspace")->encode("", true), (Ids{1}));
}

TEST(Tokenizer, DoubledBosIsNoticed) {
  const auto tokenizer = load_with(tiny(), R"({"bos_token": "<s>", "add_bos_token": true})");
  EXPECT_TRUE(tokenizer->begins_with_doubled_bos(tokenizer->encode("<s> a", true)));
  EXPECT_FALSE(tokenizer->begins_with_doubled_bos(tokenizer->encode("<s> a", false)));
  EXPECT_FALSE(tokenizer->begins_with_doubled_bos(tokenizer->encode("a", true)));
  EXPECT_FALSE(tokenizer->begins_with_doubled_bos(Ids{2}));
  EXPECT_FALSE(load_with(tiny(), "")->begins_with_doubled_bos(Ids{2, 2}));
}

TEST(Tokenizer, TruncationAndPaddingOfTheFileAreOff) {
  json tokenizer = tiny();
  tokenizer["truncation"] = {{"direction", "Right"}, {"max_length", 1}, {"strategy", "LongestFirst"}, {"stride", 0}};
  tokenizer["padding"] = {
      {"strategy", {{"Fixed", 8}}}, {"direction", "Right"}, {"pad_to_multiple_of", nullptr}, {"pad_id", 4},
      {"pad_type_id", 0},           {"pad_token", "?"}};
  EXPECT_EQ(load_with(tokenizer, "")->encode("a b a", true), (Ids{0, 1, 0}));
}

TEST(Tokenizer, ManyThreadsUseOne) {
  const auto tokenizer = chat_tokenizer();
  const std::string text = "The quick brown fox jumps over it. ";
  const Ids expected = tokenizer->encode(text, true);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        wrong[t] += tokenizer->encode(text, true) != expected || tokenizer->decode(expected, true) != text;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

}  // namespace
}  // namespace kvplug::text
