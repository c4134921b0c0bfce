// SPDX-License-Identifier: Apache-2.0
// What plan promises, every kind holds to the byte: what is allocated once the tokens are there, however they came, is
// plan's `reserved`; what was held on the way stays within its `peak`; memory() says the same.
#include <gtest/gtest.h>

#include <optional>

#include "kinds.h"

namespace kvplug::test {
namespace {

constexpr int64_t kWindows[] = {1, 2, 8, 63, 64, 65, 100, 200, 1000};

class KindPlans : public ::testing::TestWithParam<Kind> {};
class OffloadedKindPlans : public KindPlans {};
class FixedKindPlans : public KindPlans {};

int32_t attend(LoadedCache& cache, int32_t layer, const LayerShape& s, kvp_dtype dtype, int64_t batch, int64_t tokens) {
  const Values q = make(dtype, {batch, s.q_heads, tokens, s.key_dim});
  const Values k = make(dtype, {batch, s.kv_heads, tokens, s.key_dim});
  const Values v = make(dtype, {batch, s.kv_heads, tokens, s.value_dim});
  Values out = make(dtype, {batch, s.q_heads, tokens, s.value_dim});
  kvp_attend_args args{};
  args.struct_size = sizeof args;
  args.layer = layer;
  args.flags = s.kind == KVP_LAYER_CROSS ? 0 : KVP_ATTEND_CAUSAL;
  args.q = &q.t;
  args.k = &k.t;
  args.v = &v.t;
  args.scale = 1;
  return cache.attend(args, &out.t, nullptr);
}

TEST_P(KindPlans, AreWhatIsAllocated) {
  const Kind& kind = GetParam();
  TestHost& host = TestHost::get();
  const char* given = std::getenv("KVPLUG_TEST_SEED");
  const uint64_t first = given == nullptr ? 1 : std::strtoull(given, nullptr, 10), last = given == nullptr ? 60 : first;
  for (uint64_t seed = first; seed <= last; ++seed) {
    Random random(seed);
    host.set_workers(static_cast<int32_t>(pick(random, 1, 3)));
    const kvp_dtype dtype = pick(random, 0, 1) == 0 ? kF32 : kBF16;
    std::vector<LayerShape> shapes(static_cast<size_t>(pick(random, 1, 4)));
    const int64_t list = pick(random, 0, 2);  // full, windows, mixed
    std::string what;
    for (LayerShape& s : shapes) {
      s.kv_heads = static_cast<int32_t>(pick(random, 1, 3));
      s.q_heads = s.kv_heads * static_cast<int32_t>(pick(random, 1, 3));
      s.key_dim = static_cast<int32_t>(pick(random, 1, 20));
      s.value_dim = static_cast<int32_t>(pick(random, 1, 20));
      s.kind = static_cast<int32_t>(
          list == 0   ? KVP_LAYER_FULL
          : list == 1 ? pick(random, KVP_LAYER_SLIDING, KVP_LAYER_CHUNKED)
                      : pick(random, KVP_LAYER_FULL, kind.quantized ? KVP_LAYER_CHUNKED : KVP_LAYER_CROSS));
      if (s.kind == KVP_LAYER_SLIDING || s.kind == KVP_LAYER_CHUNKED)
        s.window = kWindows[pick(random, 0, std::size(kWindows) - 1)];
      what += " " + std::to_string(s.kind) + ":" + std::to_string(s.window);
    }
    const int64_t batch = pick(random, 1, 4), tokens = pick(random, 0, 1500);
    const int64_t capacity = kind.fixed ? std::max<int64_t>(1, tokens) + pick(random, 0, 100) : -1;
    const bool reserved = pick(random, 0, 1) == 0, views = pick(random, 0, 1) == 0, late = pick(random, 0, 1) == 0;
    std::optional<TempFolder> folder;
    if (kind.offloaded && pick(random, 0, 2) != 0) folder.emplace();
    KindArgs args(kind, shapes, dtype, 5, capacity, folder ? folder->path().string() : "", pick(random, 0, 1) == 0);
    const int64_t depths[] = {-1, -1, 5, 70};
    args.create.rollback = depths[pick(random, 0, 3)];
    const kvp_memory plan = plan_of(kind, args.create, batch, tokens);
    SCOPED_TRACE("KVPLUG_TEST_SEED=" + std::to_string(seed) + ": layers" + what + ", " + std::to_string(batch) + " x " +
                 std::to_string(tokens) + ", capacity " + std::to_string(capacity) + ", rollback " +
                 std::to_string(args.create.rollback) + (folder ? ", in files" : "") + (reserved ? ", reserved" : ""));
    host.restart_peak();
    const int64_t depth = args.create.rollback;
    if (late) args.create.rollback = -1;
    LoadedCache cache(iface_of(kind), args.create);
    if (late && depth > 0) {
      ASSERT_EQ(cache.set_rollback(depth), KVP_OK) << cache.text();
    }
    if (reserved) {
      ASSERT_EQ(cache.reserve(batch, tokens), KVP_OK) << cache.text();
    }
    for (int64_t done = 0; done < tokens;) {
      const int64_t n = std::min(tokens - done, pick(random, 0, 2) == 0 ? 1 : pick(random, 1, 500));
      for (size_t i = 0; i < shapes.size(); ++i) {
        const LayerShape& s = shapes[i];
        const auto layer = static_cast<int32_t>(i);
        const bool cross = s.kind == KVP_LAYER_CROSS;
        if (cross && done > 0) continue;
        const int64_t now = cross ? tokens : n;
        if (pick(random, 0, 1) == 0) {
          ASSERT_EQ(attend(cache, layer, s, dtype, batch, now), KVP_OK) << cache.text();
          continue;
        }
        const Values k = make(dtype, {batch, s.kv_heads, now, s.key_dim}),
                     v = make(dtype, {batch, s.kv_heads, now, s.value_dim});
        kvp_tensor out_k{}, out_v{};
        ASSERT_EQ(cache.update(layer, k, v, nullptr, nullptr, views ? &out_k : nullptr, views ? &out_v : nullptr),
                  KVP_OK)
            << cache.text();
      }
      done += n;
      if (pick(random, 0, 3) == 0) {
        std::vector<int64_t> reversed(static_cast<size_t>(batch));
        for (int64_t b = 0; b < batch; ++b) reversed[static_cast<size_t>(b)] = batch - 1 - b;
        ASSERT_EQ(cache.gather(reversed), KVP_OK) << cache.text();
      }
    }
    EXPECT_LE(host.peak(), plan.peak[KVP_TIER_HOST]);
    ASSERT_EQ(cache.crop({0}), KVP_OK) << cache.text();  // the next changing call gives the views back
    if (kind.quantized && list > 0) {
      // A packed window's pages are taken as they are needed, and how many at once depends on the way there: the plan
      // is what they come to at most.
      for (int32_t purpose = 0; purpose < KVP_N_PURPOSES; ++purpose) {
        EXPECT_LE(host.held(5, purpose), plan.reserved[KVP_TIER_HOST][purpose]) << "purpose " << purpose;
        EXPECT_EQ(host.held(5, purpose), cache.memory().reserved[KVP_TIER_HOST][purpose]) << "purpose " << purpose;
      }
      ASSERT_FALSE(HasFailure());
      continue;
    }
    for (int32_t purpose = 0; purpose < KVP_N_PURPOSES; ++purpose) {
      EXPECT_EQ(host.held(5, purpose), plan.reserved[KVP_TIER_HOST][purpose]) << "purpose " << purpose;
    }
    const kvp_memory memory = cache.memory();
    for (int32_t tier = 0; tier < KVP_N_TIERS; ++tier) {
      for (int32_t purpose = 0; purpose < KVP_N_PURPOSES; ++purpose) {
        EXPECT_EQ(memory.reserved[tier][purpose], plan.reserved[tier][purpose])
            << "tier " << tier << ", purpose " << purpose;
        if (depth <= 0) {
          EXPECT_EQ(memory.used[tier][purpose], plan.used[tier][purpose])
              << "used, tier " << tier << ", purpose " << purpose;
        }
      }
    }
    if (depth <= 0) {
      EXPECT_EQ(memory.unquantized, plan.unquantized);
    }
    ASSERT_FALSE(HasFailure());
  }
  host.set_workers(1);
  EXPECT_EQ(host.held(), 0u);
}

// At most two layers are in memory, whatever there are; the rest is in the file.
TEST_P(OffloadedKindPlans, HoldTwoLayers) {
  const Kind& kind = GetParam();
  const LayerShape s{2, 2, 16, 16};
  const TempFolder folder;
  kvp_memory of[2];
  for (const size_t layers : {size_t{2}, size_t{9}}) {
    const std::vector<LayerShape> shapes(layers, s);
    const KindArgs args(kind, shapes, kF32, 5, 640, folder.path().string());
    LoadedCache cache(iface_of(kind), args.create);
    Random random(3);
    for (size_t i = 0; i < layers; ++i) {
      ASSERT_EQ(attend(cache, static_cast<int32_t>(i), s, kF32, 2, 640), KVP_OK) << cache.text();
    }
    of[layers == 2 ? 0 : 1] = cache.memory();
    EXPECT_GT(cache.counter("bytes_written"), 0u);
    EXPECT_TRUE(folder.empty()) << "the file has a name";
  }
  const uint64_t layer = 2 * 640 * 2 * 32 * 4;
  EXPECT_EQ(of[0].reserved[KVP_TIER_HOST][KVP_PURPOSE_KV], 2 * layer);
  EXPECT_EQ(of[1].reserved[KVP_TIER_HOST][KVP_PURPOSE_KV], 2 * layer);
  EXPECT_EQ(of[1].reserved[KVP_TIER_FILE][KVP_PURPOSE_KV], 9 * layer);
}

// The memory of a fixed kind is taken once: neither crop, reset nor another batch up to the largest moves it.
TEST_P(FixedKindPlans, TakeTheirMemoryOnce) {
  const Kind& kind = GetParam();
  const std::vector<LayerShape> shapes = {{2, 2, 16, 16}, {2, 2, 16, 16, KVP_LAYER_SLIDING, 70}};
  const KindArgs args(kind, shapes, kF32, 5, 300);
  LoadedCache cache(iface_of(kind), args.create);
  ASSERT_EQ(cache.reserve(3, 300), KVP_OK) << cache.text();
  const int64_t before = TestHost::get().allocations();
  for (const int64_t batch : {3, 1, 2, 3}) {
    for (const int64_t tokens : {int64_t{200}, int64_t{1}, int64_t{60}}) {
      for (int32_t i = 0; i < 2; ++i) {
        ASSERT_EQ(attend(cache, i, shapes[static_cast<size_t>(i)], kF32, batch, tokens), KVP_OK) << cache.text();
      }
    }
    ASSERT_EQ(cache.reset(), KVP_OK) << cache.text();
  }
  // A prompt's list of blocks is scratch and may come and go; K/V and tables do not.
  EXPECT_LE(TestHost::get().allocations() - before, 4 * 2);
  EXPECT_EQ(TestHost::get().held(5, KVP_PURPOSE_KV),
            plan_of(kind, args.create, 3, 1).reserved[KVP_TIER_HOST][KVP_PURPOSE_KV]);
}

INSTANTIATE_TEST_SUITE_P(All, KindPlans, ::testing::ValuesIn(kKinds), name_of);
INSTANTIATE_TEST_SUITE_P(All, OffloadedKindPlans,
                         ::testing::ValuesIn(kinds_where([](const Kind& kind) { return kind.offloaded; })), name_of);
INSTANTIATE_TEST_SUITE_P(All, FixedKindPlans,
                         ::testing::ValuesIn(kinds_where([](const Kind& kind) { return kind.fixed; })), name_of);

}  // namespace
}  // namespace kvplug::test
