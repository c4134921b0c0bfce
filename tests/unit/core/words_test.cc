// SPDX-License-Identifier: Apache-2.0
// Small pure parts of core: nearest words, kinds, digests, error texts.
#include <gtest/gtest.h>

#include "core/did_you_mean.h"
#include "core/error.h"
#include "core/error_buffer.h"
#include "core/kinds.h"
#include "core/sha256.h"

namespace kvplug {
namespace {

TEST(DidYouMean, DistanceCountsASwapAsOne) {
  EXPECT_EQ(edit_distance("", "abc"), 3U);
  EXPECT_EQ(edit_distance("nbits", "nbits"), 0U);
  EXPECT_EQ(edit_distance("nbtis", "nbits"), 1U);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3U);
}

TEST(DidYouMean, OffersNearWordsOnly) {
  const std::vector<std::string> known = {"backend", "nbits", "q_group_size"};
  EXPECT_EQ(did_you_mean("q_groupsize", known), "q_group_size");
  EXPECT_EQ(did_you_mean("nbit", known), "nbits");
  EXPECT_EQ(did_you_mean("temperature", known), "");
  EXPECT_EQ(join_words(known), "backend, nbits, q_group_size");
}

TEST(Kinds, RetiredWordsAreMappedWithANotice) {
  const std::vector<std::string> registered = {"dynamic", "static"};
  EXPECT_EQ(choose_kind("dynamic", registered, {}).kind, "dynamic");
  EXPECT_EQ(choose_kind("dynamic", registered, {}).notice, "");
  const KindChoice hybrid = choose_kind("hybrid", registered, {});
  EXPECT_EQ(hybrid.kind, "dynamic");
  EXPECT_NE(hybrid.notice.find("\"hybrid\" is a retired word"), std::string::npos);
  EXPECT_EQ(choose_kind("sliding_window", registered, {}).kind, "static");
}

std::string refusal_of(std::string_view word) {
  try {
    choose_kind(word, {"acme/kivi2", "dynamic"}, {"/opt/kvplug/plugins", "/nowhere (No such file or directory)"});
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kConfig);
    return error.what();
  }
  return "";
}

TEST(Kinds, RefusalsSayWhyAndWhereWasSearched) {
  EXPECT_NE(refusal_of("paged").find("is refused"), std::string::npos);
  EXPECT_NE(refusal_of("quantized").find("is not part of this release"), std::string::npos);
  EXPECT_NE(refusal_of("offloaded_hybrid").find("retired word"), std::string::npos);
  const std::string unknown = refusal_of("dynamc");
  EXPECT_NE(unknown.find("cache \"dynamc\" not found"), std::string::npos);
  EXPECT_NE(unknown.find("did you mean \"dynamic\"?"), std::string::npos);
  EXPECT_NE(unknown.find("known kinds: acme/kivi2, dynamic"), std::string::npos);
  EXPECT_NE(unknown.find("/opt/kvplug/plugins, /nowhere (No such file or directory)"), std::string::npos);
}

TEST(Kinds, NamesOfThirdPartiesHaveAVendor) {
  EXPECT_TRUE(valid_kind_name("dynamic", builtin_cache_kinds()));
  EXPECT_TRUE(valid_kind_name("acme/kivi2", builtin_cache_kinds()));
  for (const char* name : {"", "kivi2", "acme/", "/kivi2", "Acme/kivi2", "acme/ki vi", "acme/../x", "a/b/c"}) {
    EXPECT_FALSE(valid_kind_name(name, builtin_cache_kinds())) << name;
  }
}

TEST(Sha256, KnownDigests) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Sha256 sum;
  const std::string thousand(1000, 'a');
  for (int i = 0; i < 1000; ++i) sum.update(thousand.data(), thousand.size());
  EXPECT_EQ(sum.hex(), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(ErrorBuffer, TextIsCutAtACharacter) {
  char buffer[6];
  kvp_error err{sizeof err, 0, 0, buffer, sizeof buffer, 0};
  EXPECT_EQ(write_error(&err, KVP_IO, "abcä!"), KVP_IO);  // ä is two bytes: 3 + 2 fit, 6 do not.
  EXPECT_STREQ(buffer, "abcä");
  EXPECT_EQ(err.len, 6U);
  EXPECT_EQ(err.code, KVP_IO);
  err.cap = 5;
  write_error(&err, KVP_IO, "abcä!");
  EXPECT_STREQ(buffer, "abc");
  err.cap = 1;
  write_error(&err, KVP_IO, "abc");
  EXPECT_STREQ(buffer, "");
  err.cap = 0;
  err.buf = nullptr;
  EXPECT_EQ(write_error(&err, KVP_IO, "abc"), KVP_IO);
  EXPECT_EQ(write_error(nullptr, KVP_IO, "abc"), KVP_IO);
}

TEST(ErrorBuffer, StrayBytesBecomeQuestionMarks) {
  EXPECT_EQ(valid_utf8("grün 中 😀"), "grün 中 😀");
  EXPECT_EQ(valid_utf8("a\xff\xc3(\xe4\xb8"),
            "a?"
            "?(?"
            "?");
  EXPECT_EQ(valid_utf8("\xc0\x80\xed\xa0\x80\xf4\x90\x80\x80"), "?????????");
}

TEST(ErrorWords, EveryCodeHasItsWord) {
  EXPECT_STREQ(code_word(Code::kOutOfMemory), "out_of_memory");
  EXPECT_STREQ(code_word(Code::kPlanExceeded), "plan_exceeded");
  EXPECT_STREQ(code_word(static_cast<Code>(77)), "internal");
  const Error error(Code::kConfig, "unknown key", "did you mean `nbits`?", "run.toml:3");
  EXPECT_STREQ(error.what(), "run.toml:3: unknown key\n  did you mean `nbits`?");
}

}  // namespace
}  // namespace kvplug
