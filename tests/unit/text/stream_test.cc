// SPDX-License-Identifier: Apache-2.0
// Streaming equals decoding at once, in whole characters, for every kind of decoder and for nonsense ids too.
#include "text/stream.h"

#include <gtest/gtest.h>

#include <ctime>
#include <random>

#include "test_data.h"

namespace kvplug::text {
namespace {

using Ids = std::vector<int32_t>;

const std::string kEmoji = "\xF0\x9F\x98\x80";
const std::string kFamily = "\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA7";  // ZWJ sequence
const std::string kHangul = "\xED\x95\x9C\xEA\xB5\xAD\xEC\x96\xB4";

std::vector<std::pair<std::string, std::shared_ptr<const Tokenizer>>> all_tokenizers() {
  std::vector<std::pair<std::string, std::shared_ptr<const Tokenizer>>> all{{"llama_chat", chat_tokenizer()}};
  for (const std::string& name : sample_names()) all.emplace_back(name, sample_tokenizer(name));
  return all;
}

void expect_stream_equals_decode(const std::shared_ptr<const Tokenizer>& tokenizer, const Ids& ids, bool skip_special) {
  StreamDecoder stream(tokenizer, skip_special);
  std::string text;
  for (const int32_t id : ids) {
    const std::string piece = stream.push(id);
    ASSERT_TRUE(is_utf8(piece));
    text += piece;
  }
  text += stream.finish();
  ASSERT_EQ(text, tokenizer->decode(ids, skip_special));
  ASSERT_EQ(stream.finish(), "");
}

TEST(StreamDecoder, EqualsDecodeOnRealText) {
  const std::string text =
      "  Leading spaces, caf\xC3\xA9 " + kHangul + " " + kEmoji + kFamily + "\n\ttail  <|im_end|> x";
  for (const auto& [name, tokenizer] : all_tokenizers()) {
    SCOPED_TRACE(name);
    const Ids ids = tokenizer->encode(text, true);
    for (size_t n = 0; n <= ids.size(); ++n) {  // stop anywhere, in the middle of characters too
      for (const bool skip : {false, true})
        expect_stream_equals_decode(tokenizer, Ids(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(n)), skip);
    }
  }
}

TEST(StreamDecoder, EqualsDecodeOnRandomIds) {
  std::mt19937 random(11);
  for (const auto& [name, tokenizer] : all_tokenizers()) {
    SCOPED_TRACE(name);
    const auto vocabulary = static_cast<uint32_t>(tokenizer->vocab_size());
    for (int round = 0; round < 300; ++round) {
      Ids ids(random() % 120);
      // Some rounds draw from few ids: long runs of bytes, of special tokens, of the same token.
      const uint32_t low = random() % 3 == 0 ? 0 : random() % vocabulary;
      const uint32_t range = 1 + random() % (random() % 2 ? 8 : vocabulary + 20);
      for (int32_t& id : ids) id = static_cast<int32_t>(low + random() % range);
      ASSERT_NO_FATAL_FAILURE(expect_stream_equals_decode(tokenizer, ids, random() % 2 == 0));
    }
  }
}

TEST(StreamDecoder, CharactersComeWhole) {
  const auto tokenizer = chat_tokenizer();
  for (const std::string& character : {kEmoji, kHangul.substr(0, 3), std::string("\xC3\xA9")}) {
    const Ids ids = tokenizer->encode("x" + character, false);
    ASSERT_GT(ids.size(), 2u);
    StreamDecoder stream(tokenizer);
    EXPECT_EQ(stream.push(ids[0]), "x");
    for (size_t i = 1; i + 1 < ids.size(); ++i) EXPECT_EQ(stream.push(ids[i]), "");
    EXPECT_EQ(stream.push(ids.back()), character);
    EXPECT_EQ(stream.finish(), "");
  }
}

TEST(StreamDecoder, AnIncompleteTailIsFlushedOnce) {
  const auto tokenizer = chat_tokenizer();
  Ids ids = tokenizer->encode("ok" + kEmoji, false);
  ids.pop_back();
  StreamDecoder stream(tokenizer);
  std::string text;
  for (const int32_t id : ids) text += stream.push(id);
  EXPECT_EQ(text, "ok");
  EXPECT_EQ(stream.finish(), "\xEF\xBF\xBD");
  EXPECT_EQ(stream.finish(), "");
}

TEST(StreamDecoder, ByteFallback) {
  const auto tokenizer = sample_tokenizer("metaspace");
  const auto byte = [&](const char* name) { return tokenizer->token_to_id(name).value(); };
  const int32_t word = tokenizer->encode("the", false).at(0);
  StreamDecoder stream(tokenizer);
  EXPECT_EQ(stream.push(byte("<0xC3>")), "");
  EXPECT_EQ(stream.push(byte("<0xA9>")), "");  // whole now, but an invalid byte may still follow
  EXPECT_EQ(stream.push(word).substr(0, 2), "\xC3\xA9");
  stream.finish();
  // One stray byte spoils the whole run, as in one-shot decoding.
  const Ids spoiled = {byte("<0xC3>"), byte("<0xA9>"), byte("<0xC3>")};
  ASSERT_NO_FATAL_FAILURE(expect_stream_equals_decode(tokenizer, spoiled, true));
  EXPECT_EQ(tokenizer->decode(spoiled, true), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
}

TEST(StreamDecoder, LeadingSpacesStayInside) {
  const auto tokenizer = sample_tokenizer("metaspace");
  const Ids ids = tokenizer->encode("the end and the end and the end and the end and the end and the end", false);
  ASSERT_GT(ids.size(), 20u);  // longer than the decoder's window
  ASSERT_NO_FATAL_FAILURE(expect_stream_equals_decode(tokenizer, ids, true));
}

TEST(StreamDecoder, SpecialAndUnknownIds) {
  const auto tokenizer = chat_tokenizer();
  const auto beyond = static_cast<int32_t>(tokenizer->vocab_size());
  StreamDecoder skipping(tokenizer, true), showing(tokenizer, false);
  EXPECT_EQ(skipping.push(2), "");
  EXPECT_EQ(showing.push(2), "<|im_end|>");
  for (const int32_t id : {beyond, beyond + 1000, -1}) EXPECT_EQ(skipping.push(id) + showing.push(id), "");
  // A character whose bytes have a skipped token between them.
  Ids ids = tokenizer->encode(kEmoji, false);
  for (int i = 0; i < 40; ++i) ids.insert(ids.begin() + 2, i % 2 ? 2 : beyond);
  ASSERT_NO_FATAL_FAILURE(expect_stream_equals_decode(tokenizer, ids, true));
  EXPECT_EQ(tokenizer->decode(ids, true), kEmoji);
}

// Processor seconds to push n ids of which none ever completes a character.
double seconds_for(const std::shared_ptr<const Tokenizer>& tokenizer, int32_t id, int n) {
  StreamDecoder stream(tokenizer);
  const clock_t start = clock();
  for (int i = 0; i < n; ++i) stream.push(id);
  stream.finish();
  return static_cast<double>(clock() - start) / CLOCKS_PER_SEC;
}

TEST(StreamDecoder, CostIsLinearEvenForNonsense) {
  const auto bytes = sample_tokenizer("metaspace");
  const std::pair<std::shared_ptr<const Tokenizer>, int32_t> endless[] = {
      {chat_tokenizer(), chat_tokenizer()->encode(kEmoji, false).at(0)},
      {bytes, bytes->token_to_id("<0xF0>").value()},
      {chat_tokenizer(), chat_tokenizer()->encode("a", false).at(0)}};
  for (const auto& [tokenizer, id] : endless) {
    const double little = seconds_for(tokenizer, id, 2000) + 1e-3;
    EXPECT_LT(seconds_for(tokenizer, id, 32000),
              60 * little);  // 16 times the ids; quadratic would be 256 times the time
  }
}

}  // namespace
}  // namespace kvplug::text
