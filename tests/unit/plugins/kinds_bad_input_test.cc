// SPDX-License-Identifier: Apache-2.0
// What nobody should ask of a cache, and somebody will: each is refused in words that name the value and what was
// expected, and leaves the cache, the folder and the memory as they were.
#include <gtest/gtest.h>

#include "kinds_filled.h"

namespace kvplug::test {
namespace {

class KindBadInput : public ::testing::TestWithParam<Kind> {
 protected:
  const Kind& kind() const { return GetParam(); }
  const kvp_cache_iface* iface() const { return iface_of(kind()); }

  void expect_refused(const kvp_cache_create& create, int32_t status, const std::vector<std::string>& words) {
    test::expect_refused(iface(), create, status, words);
  }
};

TEST_P(KindBadInput, ACapacityOfNothing) {
  for (const int64_t tokens : {int64_t{0}, int64_t{-1}, int64_t{-5}}) {
    const KindArgs args(kind(), {kFull}, kF32, 1, tokens);
    if (kind().fixed) {
      expect_refused(args.create, KVP_INVALID_ARGUMENT, {kind().name, "capacity", std::to_string(tokens)});
    } else {
      LoadedCache cache(iface(), args.create);  // an expectation, not a limit
    }
  }
}

TEST_P(KindBadInput, APromptBeyondTheCapacity) {
  for (const LayerShape& layer : {kFull, LayerShape{4, 2, 8, 4, KVP_LAYER_SLIDING, kCapacity + 1}}) {
    Filled at(kind(), {layer});
    const Values k = at.k(0, 2, kCapacity + 1), v = at.v(0, 2, kCapacity + 1);
    kvp_tensor out_k{}, out_v{};
    if (!kind().fixed) {
      ASSERT_EQ(at.append(2, kCapacity + 1), KVP_OK) << at.cache.text();
      at.expect_same();
      continue;
    }
    ASSERT_NO_FATAL_FAILURE(at.expect_refused(at.cache.update(0, k, v, nullptr, nullptr, &out_k, &out_v), KVP_CAPACITY,
                                              {std::to_string(kCapacity), std::to_string(kCapacity + 1)}));
    EXPECT_EQ(out_k.ndim, 0);
    const int64_t counts[2] = {kCapacity, 3};  // what the rows really take fits
    ASSERT_EQ(at.cache.update(0, k, v, nullptr, counts, nullptr, nullptr), KVP_OK) << at.cache.text();
    at.want.append(0, k, v, nullptr, counts);
    ASSERT_NO_FATAL_FAILURE(at.expect_same());
    ASSERT_NO_FATAL_FAILURE(at.expect_refused(at.append(2, 1), KVP_CAPACITY, {"row 0", std::to_string(kCapacity)}));
    ASSERT_NO_FATAL_FAILURE(
        at.expect_refused(at.cache.reserve(2, kCapacity + 1), KVP_CAPACITY, {std::to_string(kCapacity + 1)}));
    kvp_memory memory{};
    memory.struct_size = sizeof memory;
    EXPECT_EQ(iface()->plan(&at.args.create, 1, kCapacity + 1, &memory, nullptr), KVP_CAPACITY);
  }
}

TEST_P(KindBadInput, WindowsThatAreNone) {
  for (const int32_t layer_kind : {KVP_LAYER_SLIDING, KVP_LAYER_CHUNKED}) {
    for (const int64_t window : {int64_t{0}, int64_t{-1}, INT64_MIN, INT64_MAX}) {
      const KindArgs args(kind(), {kFull, {4, 2, 8, 4, layer_kind, window}}, kF32, 1, kCapacity);
      expect_refused(args.create, KVP_INVALID_ARGUMENT, {"layer 1", std::to_string(window), "window"});
    }
  }
}

TEST_P(KindBadInput, AWindowOfOneKeepsNothing) {
  Filled at(kind(), {{4, 2, 8, 4, KVP_LAYER_SLIDING, 1}, kFull});
  for (const int64_t tokens : {5, 1, 1, 3}) {
    ASSERT_EQ(at.append(2, tokens), KVP_OK) << at.cache.text();
    EXPECT_EQ(at.cache.lengths(0, 1).kv_len, 1);
    EXPECT_EQ(at.cache.memory(0).unquantized, 0u);
    ASSERT_NO_FATAL_FAILURE(at.expect_same());
  }
  ASSERT_EQ(at.cache.crop({4}), KVP_OK) << at.cache.text();  // the next token needs nothing
  at.want.crop({4});
  ASSERT_NO_FATAL_FAILURE(at.expect_same());
}

TEST_P(KindBadInput, UpdatesOfNothing) {
  Filled at(kind(), {kFull, kSliding});
  kvp_tensor k{}, v{};
  for (const bool filled : {false, true}) {
    if (filled) {
      ASSERT_EQ(at.append(2, 12), KVP_OK);
    }
    for (size_t i = 0; i < 2; ++i) {
      const Values none_k = at.k(i, 2, 0), none_v = at.v(i, 2, 0);
      const auto layer = static_cast<int32_t>(i);
      ASSERT_EQ(at.cache.update(layer, none_k, none_v, nullptr, nullptr, nullptr, nullptr), KVP_OK) << at.cache.text();
      ASSERT_EQ(at.cache.update(layer, none_k, none_v, nullptr, nullptr, &k, &v), KVP_OK) << at.cache.text();
      EXPECT_EQ(k.shape[2], filled ? at.want.kv_len(i, 0) : 0);
    }
    ASSERT_NO_FATAL_FAILURE(at.expect_same());
  }
}

TEST_P(KindBadInput, AnotherBatchOrTypeInMidLife) {
  Filled at(kind(), {kFull, kSliding});
  ASSERT_EQ(at.append(2, 12), KVP_OK);
  for (const int64_t batch : {1, 3}) {
    ASSERT_NO_FATAL_FAILURE(
        at.expect_refused(at.append(batch, 1), KVP_INVALID_ARGUMENT, {"batch is " + std::to_string(batch), "2 rows"}));
  }
  const Values half_k = random_tensor(kBF16, 2, 2, 1, 8, at.random),
               half_v = random_tensor(kBF16, 2, 2, 1, 4, at.random);
  for (int32_t i = 0; i < 2; ++i) {
    ASSERT_NO_FATAL_FAILURE(at.expect_refused(at.cache.update(i, half_k, half_v, nullptr, nullptr, nullptr, nullptr),
                                              KVP_INVALID_ARGUMENT, {"bfloat16", "float32"}));
  }
  ASSERT_NO_FATAL_FAILURE(
      at.expect_refused(at.cache.update(0, at.k(0, 2, 1), half_v, nullptr, nullptr, nullptr, nullptr),
                        KVP_INVALID_ARGUMENT, {"v is bfloat16"}));
  // Emptied, it is free for another batch.
  ASSERT_EQ(at.cache.crop({12}), KVP_OK);
  at.want.crop({12});
  ASSERT_EQ(at.append(3, 2), KVP_OK) << at.cache.text();
  ASSERT_NO_FATAL_FAILURE(at.expect_same());
}

TEST_P(KindBadInput, CropsBeyondWhatIsKept) {
  Filled at(kind(), {kFull, kSliding});
  ASSERT_EQ(at.cache.set_rollback(3), KVP_OK);
  at.want.set_rollback(3);
  ASSERT_EQ(at.append(2, 20), KVP_OK);
  for (const uint32_t flag : {KVP_CALL_CHECK, 0u}) {
    ASSERT_NO_FATAL_FAILURE(
        at.expect_refused(at.cache.crop({4}, flag), KVP_INVALID_STATE, {"layer 1", "window of 8", "set_rollback"}));
    ASSERT_NO_FATAL_FAILURE(at.expect_refused(at.cache.crop({1, 4}, flag), KVP_INVALID_STATE, {"row 1"}));
    ASSERT_NO_FATAL_FAILURE(at.expect_refused(at.cache.crop({19}, flag), KVP_INVALID_STATE, {"layer 1"}));
    ASSERT_NO_FATAL_FAILURE(
        at.expect_refused(at.cache.crop({1, 1, 1}, flag), KVP_INVALID_ARGUMENT, {"3 counts", "2 rows"}));
    ASSERT_NO_FATAL_FAILURE(at.expect_refused(at.cache.crop({-1}, flag), KVP_INVALID_ARGUMENT, {"-1"}));
  }
  for (const std::vector<int64_t>& counts : {std::vector<int64_t>{1, 2}, {2, 1}}) {  // in a row they add up
    ASSERT_EQ(at.cache.crop(counts), KVP_OK) << at.cache.text();
    at.want.crop(counts);
    ASSERT_NO_FATAL_FAILURE(at.expect_same());
  }
  ASSERT_NO_FATAL_FAILURE(at.expect_refused(at.cache.crop({1}), KVP_INVALID_STATE, {"layer 1"}));
  ASSERT_EQ(at.cache.crop({1000}), KVP_OK) << at.cache.text();  // all of it can always go
  at.want.crop({1000});
  ASSERT_NO_FATAL_FAILURE(at.expect_same());
  ASSERT_EQ(at.append(1, 9), KVP_OK) << at.cache.text();
  ASSERT_NO_FATAL_FAILURE(at.expect_same());
}

TEST_P(KindBadInput, GathersOfRowsThatAreNotThere) {
  Filled at(kind(), {kFull, kSliding});
  ASSERT_EQ(at.append(3, 12), KVP_OK);
  ASSERT_EQ(at.cache.gather({2}), KVP_OK);
  at.want.gather({2});
  for (const uint32_t flag : {KVP_CALL_CHECK, 0u}) {
    ASSERT_NO_FATAL_FAILURE(
        at.expect_refused(at.cache.gather({0, 1}, flag), KVP_INVALID_ARGUMENT, {"src_rows[1] is 1"}));
    ASSERT_NO_FATAL_FAILURE(
        at.expect_refused(at.cache.gather({INT64_MAX}, flag), KVP_INVALID_ARGUMENT, {"src_rows[0]"}));
    ASSERT_NO_FATAL_FAILURE(
        at.expect_refused(at.cache.gather({-2}, flag), KVP_INVALID_ARGUMENT, {"src_rows[0] is -2"}));
    ASSERT_NO_FATAL_FAILURE(at.expect_refused(at.cache.gather({}, flag), KVP_INVALID_ARGUMENT, {"0 rows"}));
    ASSERT_NO_FATAL_FAILURE(at.expect_refused(at.cache.reserve(1, -1, flag), KVP_INVALID_ARGUMENT, {"-1"}));
    ASSERT_NO_FATAL_FAILURE(at.expect_refused(at.cache.reserve(-1, 1, flag), KVP_INVALID_ARGUMENT, {"-1"}));
    ASSERT_NO_FATAL_FAILURE(at.expect_refused(at.cache.set_rollback(-1, flag), KVP_INVALID_ARGUMENT, {"-1"}));
  }
}

TEST_P(KindBadInput, ACloneOfNothingIsACache) {
  for (const bool once_used : {false, true}) {
    Filled at(kind(), {kFull, kSliding});
    if (once_used) {
      ASSERT_EQ(at.append(3, 12), KVP_OK);
      ASSERT_EQ(at.cache.reset(), KVP_OK);
      at.want.reset();
    }
    ASSERT_EQ(at.cache.set_rollback(2), KVP_OK);
    at.want.set_rollback(2);
    LoadedCache copy = at.cache.cloned(2);
    std::swap(at.cache, copy);  // work on the copy
    ASSERT_NO_FATAL_FAILURE(at.expect_same());
    ASSERT_EQ(at.append(2, 12), KVP_OK) << at.cache.text();
    ASSERT_EQ(at.cache.crop({2}), KVP_OK) << at.cache.text();  // the promise was copied too
    at.want.crop({2});
    ASSERT_NO_FATAL_FAILURE(at.expect_same());
    EXPECT_EQ(copy.lengths(0, 0).seen, 0);
  }
  EXPECT_EQ(TestHost::get().held(), 0u);
}

TEST_P(KindBadInput, ACrossLayerIsFilledOnce) {
  if (kind().quantized) {  // cross attention has a choice of its own
    const KindArgs args(kind(), {kFull, {4, 2, 8, 4, KVP_LAYER_CROSS}}, kF32, 1);
    return expect_refused(args.create, KVP_UNSUPPORTED, {"layer 1", "cross attention"});
  }
  Filled at(kind(), {kFull, {4, 2, 8, 4, KVP_LAYER_CROSS}});
  ASSERT_EQ(at.append(2, 12), KVP_OK) << at.cache.text();
  ASSERT_NO_FATAL_FAILURE(
      at.expect_refused(at.cache.update(1, at.k(1, 2, 1), at.v(1, 2, 1), nullptr, nullptr, nullptr, nullptr),
                        KVP_INVALID_STATE, {"layer 1", "12 tokens"}));
}

// A window that keeps more than its views show: the queries see slots that bias has no columns for.
TEST_P(KindBadInput, ABiasWithoutTheColumns) {
  Filled at(kind(), {kSliding, kFull});
  ASSERT_EQ(at.cache.set_rollback(5), KVP_OK);
  at.want.set_rollback(5);
  ASSERT_EQ(at.append(2, 20), KVP_OK) << at.cache.text();
  const Values q = random_tensor(kF32, 2, 4, 1, 8, at.random);
  const Values bias = make(kF32, {2, 4, 1, at.want.kv_len(0, 0)});
  Values out = make(kF32, {2, 4, 1, 4});
  kvp_attend_args args{};
  args.struct_size = sizeof args;
  args.flags = KVP_ATTEND_CAUSAL;
  args.q = &q.t;
  args.bias = &bias.t;
  args.scale = 1;
  ASSERT_NO_FATAL_FAILURE(
      at.expect_refused(at.cache.attend(args, &out.t, nullptr), KVP_INVALID_ARGUMENT, {"slots from 12", "slot 13"}));
  args.bias = nullptr;
  ASSERT_EQ(at.cache.attend(args, &out.t, nullptr), KVP_OK) << at.cache.text();
}

INSTANTIATE_TEST_SUITE_P(All, KindBadInput, ::testing::ValuesIn(kKinds), name_of);

}  // namespace
}  // namespace kvplug::test
