// SPDX-License-Identifier: Apache-2.0
// Memory of dynamic: plan equals what is allocated, byte for byte; an allocation that fails, whichever, changes nothing
// and loses nothing; a reserved cache does not allocate.
#include <gtest/gtest.h>

#include <functional>
#include <optional>

#include "dynamic_fixture.h"

namespace kvplug::test {
namespace {

kvp_memory plan_of(const kvp_cache_create& create, int64_t batch, int64_t tokens) {
  kvp_memory out{};
  out.struct_size = sizeof out;
  EXPECT_EQ(dynamic_iface()->plan(&create, batch, tokens, &out, nullptr), KVP_OK);
  return out;
}

int32_t append(LoadedCache& cache, int32_t layer, const LayerShape& s, kvp_dtype dtype, int64_t batch, int64_t tokens,
               bool views = false) {
  const Values k = make(dtype, {batch, s.kv_heads, tokens, s.key_dim});
  const Values v = make(dtype, {batch, s.kv_heads, tokens, s.value_dim});
  kvp_tensor out_k{}, out_v{};
  return cache.update(layer, k, v, nullptr, nullptr, views ? &out_k : nullptr, views ? &out_v : nullptr);
}

TEST(DynamicMemory, PlanIsWhatIsAllocated) {
  TestHost& host = TestHost::get();
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    host.set_workers(static_cast<int32_t>(pick(random, 1, 3)));
    const kvp_dtype dtype = pick(random, 0, 1) == 0 ? kF32 : kBF16;
    std::vector<LayerShape> shapes(static_cast<size_t>(pick(random, 1, 4)));
    for (LayerShape& s : shapes) {
      s.kv_heads = static_cast<int32_t>(pick(random, 1, 3));
      s.q_heads = s.kv_heads * static_cast<int32_t>(pick(random, 1, 3));
      s.key_dim = static_cast<int32_t>(pick(random, 1, 20));
      s.value_dim = static_cast<int32_t>(pick(random, 1, 20));
    }
    const int64_t batch = pick(random, 1, 4), tokens = pick(random, 0, 3000);
    const bool reserved = pick(random, 0, 1) == 0, views = pick(random, 0, 1) == 0;
    const CreateArgs args(shapes, dtype, 5);
    const kvp_memory plan = plan_of(args.create, batch, tokens);
    host.restart_peak();
    LoadedCache cache(dynamic_iface(), args.create);
    if (reserved) {
      ASSERT_EQ(cache.reserve(batch, tokens), KVP_OK);
    }
    for (int64_t done = 0; done < tokens;) {
      const int64_t n = std::min(tokens - done, pick(random, 1, 900));
      for (size_t i = 0; i < shapes.size(); ++i) {
        ASSERT_EQ(append(cache, static_cast<int32_t>(i), shapes[i], dtype, batch, n, views), KVP_OK) << cache.text();
      }
      done += n;
    }
    EXPECT_LE(host.peak(), plan.peak[KVP_TIER_HOST]);
    if (views) {
      ASSERT_EQ(cache.crop({0}), KVP_OK);  // the next changing call gives the views back
    }
    for (int32_t purpose = 0; purpose < KVP_N_PURPOSES; ++purpose) {
      EXPECT_EQ(host.held(5, purpose), plan.reserved[KVP_TIER_HOST][purpose]) << "purpose " << purpose;
    }
    const kvp_memory memory = cache.memory();
    EXPECT_EQ(0, std::memcmp(memory.used, plan.used, sizeof plan.used));
    EXPECT_EQ(0, std::memcmp(memory.reserved, plan.reserved, sizeof plan.reserved));
    EXPECT_EQ(memory.unquantized, plan.unquantized);
  }
  host.set_workers(1);
}

TEST(DynamicMemory, ViewsReachThePlannedPeak) {
  const LayerShape s{2, 2, 16, 16};
  const CreateArgs args({s}, kF32, 1);
  TestHost::get().restart_peak();
  LoadedCache cache(dynamic_iface(), args.create);
  ASSERT_EQ(append(cache, 0, s, kF32, 2, 500, true), KVP_OK);
  EXPECT_EQ(TestHost::get().peak(), plan_of(args.create, 2, 500).peak[KVP_TIER_HOST]);
  EXPECT_EQ(cache.memory().peak[KVP_TIER_HOST], TestHost::get().peak());
}

TEST(DynamicMemory, CropGivesPagesBackAndResetKeepsThem) {
  const LayerShape s{2, 2, 16, 16};
  const CreateArgs args({s}, kF32, 1);
  LoadedCache cache(dynamic_iface(), args.create);
  ASSERT_EQ(append(cache, 0, s, kF32, 2, 500), KVP_OK);
  ASSERT_EQ(cache.crop({400}), KVP_OK);
  EXPECT_EQ(TestHost::get().held(1, KVP_PURPOSE_KV),
            plan_of(args.create, 2, 100).reserved[KVP_TIER_HOST][KVP_PURPOSE_KV]);
  const uint64_t held = TestHost::get().held(1);
  ASSERT_EQ(cache.reset(), KVP_OK);
  EXPECT_EQ(TestHost::get().held(1), held);
  const int64_t before = TestHost::get().allocations();
  ASSERT_EQ(append(cache, 0, s, kF32, 2, 100), KVP_OK);
  EXPECT_EQ(TestHost::get().allocations(), before);
}

// Up to the reserved size nothing allocates: appends, attention, crop, reordering, sharing and parting again.
TEST(DynamicMemory, AReservedCacheDoesNotAllocate) {
  const LayerShape s{4, 2, 16, 16};
  const CreateArgs args({s, s}, kBF16, 1);
  LoadedCache cache(dynamic_iface(), args.create);
  ASSERT_EQ(cache.reserve(4, 300), KVP_OK) << cache.text();
  const int64_t before = TestHost::get().allocations();
  cache.set_call_flags(KVP_CALL_PREPARED);
  Random random(5);
  const auto step = [&](int64_t tokens) {
    const Values q = make(kBF16, {4, 4, tokens, 16}), k = make(kBF16, {4, 2, tokens, 16}),
                 v = make(kBF16, {4, 2, tokens, 16});
    Values out = make(kBF16, {4, 4, tokens, 16});
    kvp_attend_args attend{};
    attend.struct_size = sizeof attend;
    attend.flags = KVP_ATTEND_CAUSAL;
    attend.q = &q.t;
    attend.k = &k.t;
    attend.v = &v.t;
    attend.scale = 1;
    for (attend.layer = 0; attend.layer < 2; ++attend.layer) {
      ASSERT_EQ(cache.attend(attend, &out.t, nullptr), KVP_OK) << cache.text();
    }
  };
  step(200);
  ASSERT_EQ(cache.gather({0, 0, 0, 0}), KVP_OK);
  step(30);
  ASSERT_EQ(cache.gather({3, 3, 1, 2}), KVP_OK);
  step(1);
  ASSERT_EQ(cache.crop({180}), KVP_OK);
  step(250);
  ASSERT_EQ(cache.gather({3, 2, 1, 0}), KVP_OK);
  ASSERT_EQ(cache.crop({299, 100, 0, 7}), KVP_OK);
  ASSERT_EQ(cache.reset(), KVP_OK);
  step(300);
  EXPECT_EQ(TestHost::get().allocations(), before);

  // One token more does not fit; the refusal changes nothing.
  const Values k = make(kBF16, {4, 2, 30, 16});
  EXPECT_EQ(cache.update(0, k, k, nullptr, nullptr, nullptr, nullptr), KVP_INVALID_STATE);
  EXPECT_NE(cache.text().find("reserve"), std::string::npos) << cache.text();
  EXPECT_EQ(cache.lengths(0, 0).seen, 300);
  EXPECT_EQ(cache.crop({250}), KVP_OK);
  kvp_tensor out_k{}, out_v{};
  EXPECT_EQ(cache.update(0, k, k, nullptr, nullptr, &out_k, &out_v), KVP_INVALID_STATE);
  EXPECT_EQ(out_k.ndim, 0);
  EXPECT_EQ(TestHost::get().allocations(), before);
}

// Every operation, with every one of its allocations failing in turn.
TEST(DynamicMemory, AFailedAllocationChangesNothing) {
  TestHost& host = TestHost::get();
  const std::vector<LayerShape> shapes = {{2, 1, 8, 8}, {2, 2, 8, 4}};
  const CreateArgs args(shapes, kF32, 1);
  Random random(9);
  const Values k = random_kv(kF32, 2, 1, 100, 8, random), v = random_kv(kF32, 2, 1, 100, 8, random);
  const Values k2 = random_kv(kF32, 2, 2, 100, 8, random), v2 = random_kv(kF32, 2, 2, 100, 4, random);
  const Values q = random_kv(kF32, 2, 2, 100, 8, random);
  const Values k3 = random_kv(kF32, 3, 1, 10, 8, random);
  kvp_tensor out_k{}, out_v{};
  kvp_cache* copy = nullptr;

  struct Operation {
    const char* name;
    std::function<int32_t(LoadedCache&)> run;
    bool idle_on_empty = false;  // takes no memory then
  };
  const Operation operations[] = {
      {"append", [&](LoadedCache& c) { return c.update(0, k, v, nullptr, nullptr, nullptr, nullptr); }},
      {"append of many",
       [&](LoadedCache& c) {
         const Values many = make(kF32, {2, 1, 3000, 8});
         return c.update(0, many, many, nullptr, nullptr, nullptr, nullptr);
       }},
      {"update", [&](LoadedCache& c) { return c.update(1, k2, v2, nullptr, nullptr, &out_k, &out_v); }},
      {"attend",
       [&](LoadedCache& c) {
         Values out = make(kF32, {2, 2, 100, 8});
         kvp_attend_args attend{};
         attend.struct_size = sizeof attend;
         attend.q = &q.t;
         attend.k = &k.t;
         attend.v = &v.t;
         attend.scale = 1;
         return c.attend(attend, &out.t, nullptr);
       }},
      {"gather", [&](LoadedCache& c) { return c.gather({1, 0, 1, 0, -1}); }, true},
      {"reserve", [&](LoadedCache& c) { return c.reserve(3, 5000); }},
      {"clone", [&](LoadedCache& c) { return c.clone(2, &copy); }, true},
      {"another batch after a crop to nothing",
       [&](LoadedCache& c) {
         const int32_t status = c.crop({1000});
         return status != KVP_OK ? status : c.update(0, k3, k3, nullptr, nullptr, nullptr, nullptr);
       }},
  };
  ReferenceCache filled_want = reference_for(shapes);
  for (const Operation& operation : operations) {
    for (const bool filled : {false, true}) {
      SCOPED_TRACE(std::string(operation.name) + (filled ? ", filled and shared" : ", empty"));
      int64_t failures = 0;
      for (int64_t n = 1;; ++n) {
        ASSERT_LT(n, 1000);
        LoadedCache cache(dynamic_iface(), args.create);
        ReferenceCache want = reference_for(shapes);
        std::optional<LoadedCache> other;
        if (filled) {
          ASSERT_EQ(cache.update(0, k, v, nullptr, nullptr, nullptr, nullptr), KVP_OK);
          ASSERT_EQ(cache.update(1, k2, v2, nullptr, nullptr, nullptr, nullptr), KVP_OK);
          want.append(0, k, v, nullptr, nullptr);
          want.append(1, k2, v2, nullptr, nullptr);
          other.emplace(cache.cloned(3));
          filled_want = want;
        }
        host.fail_at(n);
        const int32_t status = operation.run(cache);
        host.fail_at(0);
        if (status == KVP_OK) break;
        ++failures;
        ASSERT_EQ(status, KVP_OUT_OF_MEMORY) << cache.text();
        EXPECT_NE(cache.text().find("the test said no"), std::string::npos) << cache.text();
        EXPECT_EQ(copy, nullptr);
        EXPECT_EQ(out_k.ndim, 0);
        if (std::string(operation.name).find("nothing") != std::string::npos) want.crop({1000});
        ASSERT_NO_FATAL_FAILURE(expect_same(cache, want));
        // It goes on as if nothing had been.
        ASSERT_EQ(operation.run(cache), KVP_OK) << cache.text();
        if (filled) {
          ASSERT_NO_FATAL_FAILURE(expect_same(*other, filled_want));
        }
        if (copy != nullptr) dynamic_iface()->destroy(std::exchange(copy, nullptr));
        out_k = {};
      }
      if (copy != nullptr) dynamic_iface()->destroy(std::exchange(copy, nullptr));
      out_k = {};
      EXPECT_EQ(failures > 0, filled || !operation.idle_on_empty);
      EXPECT_EQ(host.held(), 0u);
    }
  }
  EXPECT_EQ(host.wrong_frees(), 0);
}

TEST(DynamicMemory, AThousandInstancesLeaveNothing) {
  const LayerShape s{2, 2, 8, 8};
  const CreateArgs args({s, s}, kF16, 1);
  for (int i = 0; i < 1000; ++i) {
    LoadedCache cache(dynamic_iface(), args.create);
    if (i % 3 == 0) {
      ASSERT_EQ(append(cache, 1, s, kF16, 1, 70), KVP_OK);
    }
  }
  EXPECT_EQ(TestHost::get().held(), 0u);
  EXPECT_EQ(TestHost::get().wrong_frees(), 0);
}

}  // namespace
}  // namespace kvplug::test
