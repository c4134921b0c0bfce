// SPDX-License-Identifier: Apache-2.0
// dynamic against the reference cache: random sequences of operations on several instances that share pages, every
// type, exact equality after every step. A failure prints the seed.
#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "dynamic_fixture.h"

namespace kvplug::test {
namespace {

const std::vector<LayerShape> kShapes = {{4, 2, 4, 8}, {3, 1, 8, 4}};

struct Pair {
  LoadedCache cache;
  ReferenceCache want;
  uint64_t owner;
};

class Sequence {
 public:
  Sequence(kvp_dtype dtype, uint64_t seed) : dtype_(dtype), random_(seed), args_(kShapes, dtype, next_owner_) {
    add({LoadedCache(dynamic_iface(), args_.create), reference_for(kShapes), next_owner_});
  }

  void step() {
    const int64_t at = pick(random_, 0, static_cast<int64_t>(pairs_.size()) - 1);
    Pair& pair = *pairs_[static_cast<size_t>(at)];
    const int64_t choice = pick(random_, 0, 99);
    if (choice < 60) {
      update(pair);
    } else if (choice < 70) {
      crop(pair);
    } else if (choice < 82) {
      gather(pair);
    } else if (choice < 88) {
      if (pairs_.size() < 4) {
        add({pair.cache.cloned(next_owner_), pair.want, next_owner_});
      } else {
        pairs_.erase(pairs_.begin() + at);
      }
    } else if (choice < 91) {
      ASSERT_EQ(pair.cache.reserve(pick(random_, 1, 4), pick(random_, 0, 200)), KVP_OK) << pair.cache.text();
    } else if (choice < 93) {
      ASSERT_EQ(pair.cache.reset(), KVP_OK);
      pair.want.reset();
    } else {
      ASSERT_EQ(pair.cache.set_rollback(pick(random_, 0, 1000)), KVP_OK);
    }
    for (const auto& each_ptr : pairs_) {
      Pair& each = *each_ptr;
      ASSERT_NO_FATAL_FAILURE(expect_same(each.cache, each.want));
      const kvp_memory memory = each.cache.memory();
      for (int32_t purpose = 0; purpose < KVP_N_PURPOSES; ++purpose) {
        ASSERT_EQ(memory.reserved[KVP_TIER_HOST][purpose], TestHost::get().held(each.owner, purpose));
      }
    }
  }

 private:
  void add(Pair&& pair) {
    pairs_.push_back(std::make_unique<Pair>(std::move(pair)));
    ++next_owner_;
  }

  void update(Pair& pair) {
    const bool empty = pair.want.empty();
    const int64_t batch = empty ? pick(random_, 1, 4) : pair.want.batch();
    const int64_t sizes[] = {0, 1, 1, 1, 2, 3, pick(random_, 4, 70), 130};
    const int64_t tokens = sizes[pick(random_, 0, 7)];
    // A step that stops half way leaves layers at different lengths.
    const size_t layers = pick(random_, 0, 9) == 0 ? 1 : kShapes.size();
    for (size_t i = 0; i < layers; ++i) {
      const LayerShape& s = kShapes[i];
      std::vector<int64_t> pad(static_cast<size_t>(batch)), count(static_cast<size_t>(batch));
      const bool ragged = pick(random_, 0, 2) == 0, padded = pick(random_, 0, 2) == 0;
      for (size_t b = 0; b < static_cast<size_t>(batch); ++b) {
        count[b] = ragged ? pick(random_, 0, tokens) : tokens;
        const std::vector<ReferenceCache::Row>& rows = pair.want.layer(i).rows;
        const bool holds = !empty && rows[b].seen() > rows[b].pad();
        pad[b] = holds || pick(random_, 0, 1) == 0 ? 0 : pick(random_, 0, count[b]);
      }
      const Values k = random_kv(dtype_, batch, s.kv_heads, tokens, s.key_dim, random_);
      const Values v = random_kv(dtype_, batch, s.kv_heads, tokens, s.value_dim, random_);
      const auto layer = static_cast<int32_t>(i);
      const int64_t kv_len = pair.cache.lengths(layer, tokens).kv_len;
      const bool views = pick(random_, 0, 1) == 0;
      kvp_tensor out_k{}, out_v{};
      ASSERT_EQ(pair.cache.update(layer, k, v, padded ? pad.data() : nullptr, ragged ? count.data() : nullptr,
                                  views ? &out_k : nullptr, views ? &out_v : nullptr),
                KVP_OK)
          << pair.cache.text();
      if (tokens > 0) pair.want.append(i, k, v, padded ? pad.data() : nullptr, ragged ? count.data() : nullptr);
      if (views) {
        ASSERT_NO_FATAL_FAILURE(expect_views(pair.want, i, out_k, out_v, kv_len));
      }
    }
  }

  void crop(Pair& pair) {
    const int64_t n = pair.want.batch() > 0 && pick(random_, 0, 1) == 0 ? pair.want.batch() : 1;
    std::vector<int64_t> counts(static_cast<size_t>(n));
    const int64_t most = pick(random_, 0, 9) == 0 ? 1000 : 70;
    for (int64_t& count : counts) count = pick(random_, 0, most);
    ASSERT_EQ(pair.cache.crop(counts, KVP_CALL_CHECK), KVP_OK);
    ASSERT_NO_FATAL_FAILURE(expect_same(pair.cache, pair.want));
    ASSERT_EQ(pair.cache.crop(counts), KVP_OK) << pair.cache.text();
    pair.want.crop(counts);
  }

  void gather(Pair& pair) {
    const int64_t batch = pair.want.batch();
    if (batch == 0) return;
    std::vector<int64_t> src(static_cast<size_t>(pick(random_, 1, 4)));
    for (int64_t& row : src) row = pick(random_, pick(random_, 0, 4) == 0 ? -1 : 0, batch - 1);
    ASSERT_EQ(pair.cache.gather(src, KVP_CALL_CHECK), KVP_OK);
    ASSERT_NO_FATAL_FAILURE(expect_same(pair.cache, pair.want));
    ASSERT_EQ(pair.cache.gather(src), KVP_OK) << pair.cache.text();
    pair.want.gather(src);
  }

  kvp_dtype dtype_;
  Random random_;
  uint64_t next_owner_ = 1;
  CreateArgs args_;
  std::vector<std::unique_ptr<Pair>> pairs_;
};

constexpr uint64_t kSeeds[] = {1, 2, 3, 4, 5, 6};

TEST(Dynamic, EqualsTheReferenceOverRandomSequences) {
  for (const kvp_dtype dtype : {kF32, kF16, kBF16}) {
    for (const uint64_t seed : kSeeds) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", bits " + std::to_string(dtype.bits) + ", code " +
                   std::to_string(dtype.code));
      {
        TestHost::get().set_workers(seed % 2 == 0 ? 1 : 3);
        Sequence sequence(dtype, seed);
        for (int step = 0; step < 120; ++step) {
          SCOPED_TRACE("step " + std::to_string(step));
          ASSERT_NO_FATAL_FAILURE(sequence.step());
        }
      }
      EXPECT_EQ(TestHost::get().held(), 0u);
    }
  }
  EXPECT_EQ(TestHost::get().wrong_frees(), 0);
  TestHost::get().set_workers(1);
}

TEST(Dynamic, WritingIntoASharedPageCopiesIt) {
  const CreateArgs args({{1, 1, 4, 4}}, kF32, 1);
  LoadedCache cache(dynamic_iface(), args.create);
  ReferenceCache want = reference_for({{1, 1, 4, 4}});
  Random random(7);
  const auto append = [&](LoadedCache& to, ReferenceCache& reference, int64_t tokens) {
    const Values k = random_kv(kF32, reference.empty() ? 1 : reference.batch(), 1, tokens, 4, random);
    const Values v = random_kv(kF32, reference.empty() ? 1 : reference.batch(), 1, tokens, 4, random);
    ASSERT_EQ(to.update(0, k, v, nullptr, nullptr, nullptr, nullptr), KVP_OK) << to.text();
    reference.append(0, k, v, nullptr, nullptr);
  };
  append(cache, want, 100);
  EXPECT_EQ(cache.counter("pages"), 2u);
  LoadedCache copy = cache.cloned(2);
  ReferenceCache copy_want = want;
  EXPECT_EQ(TestHost::get().held(2, KVP_PURPOSE_KV), 0u);
  append(copy, copy_want, 1);
  EXPECT_EQ(copy.counter("pages"), 1u);
  EXPECT_EQ(copy.counter("bytes_copied_on_write"), 36u * 8 * 4);
  append(cache, want, 1);  // the other one is alone on its page now
  EXPECT_EQ(cache.counter("bytes_copied_on_write"), 0u);
  expect_same(cache, want);
  expect_same(copy, copy_want);

  // Beams: four rows on one prompt, then each its own way.
  ASSERT_EQ(cache.gather({0, 0, 0, 0}), KVP_OK);
  want.gather({0, 0, 0, 0});
  EXPECT_EQ(cache.counter("pages"), 2u);
  append(cache, want, 1);
  EXPECT_EQ(cache.counter("pages"), 5u);
  expect_same(cache, want);
}

// A copy that outlives its original keeps the shared pages, booked on the original's owner.
TEST(Dynamic, SharedPagesStayWithTheOwnerThatTookThem) {
  const CreateArgs args({{1, 1, 4, 4}}, kF32, 1);
  Random random(8);
  const Values k = random_kv(kF32, 1, 1, 64, 4, random), v = random_kv(kF32, 1, 1, 64, 4, random);
  std::optional<LoadedCache> cache(std::in_place, dynamic_iface(), args.create);
  ASSERT_EQ(cache->update(0, k, v, nullptr, nullptr, nullptr, nullptr), KVP_OK);
  {
    LoadedCache copy = cache->cloned(2);
    cache.reset();
    EXPECT_GT(TestHost::get().held(1, KVP_PURPOSE_KV), 0u);
    EXPECT_EQ(TestHost::get().held(1), TestHost::get().held(1, KVP_PURPOSE_KV));
    ReferenceCache want = reference_for({{1, 1, 4, 4}});
    want.append(0, k, v, nullptr, nullptr);
    expect_same(copy, want);
  }
  EXPECT_EQ(TestHost::get().held(), 0u);
}

// Instances that share pages live on their own threads.
TEST(Dynamic, ClonesOnDifferentThreads) {
  const CreateArgs args(kShapes, kF32, 1);
  LoadedCache cache(dynamic_iface(), args.create);
  ReferenceCache want = reference_for(kShapes);
  const auto append = [](LoadedCache& to, ReferenceCache& reference, int64_t batch, int64_t tokens, Random& random) {
    for (size_t i = 0; i < kShapes.size(); ++i) {
      const Values k = random_kv(kF32, batch, kShapes[i].kv_heads, tokens, kShapes[i].key_dim, random);
      const Values v = random_kv(kF32, batch, kShapes[i].kv_heads, tokens, kShapes[i].value_dim, random);
      ASSERT_EQ(to.update(static_cast<int32_t>(i), k, v, nullptr, nullptr, nullptr, nullptr), KVP_OK) << to.text();
      reference.append(i, k, v, nullptr, nullptr);
    }
  };
  Random random(20);
  append(cache, want, 2, 150, random);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    auto copy = std::make_shared<LoadedCache>(cache.cloned(10 + t));
    threads.emplace_back([copy, t, reference = want, &append]() mutable {
      Random own(t);
      for (int step = 0; step < 30; ++step) {
        append(*copy, reference, 2, pick(own, 1, 5), own);
        if (step % 7 == 3) {
          const int64_t n = pick(own, 0, 40);
          ASSERT_EQ(copy->crop({n}), KVP_OK);
          reference.crop({n});
        }
        if (step % 9 == 5) {
          LoadedCache second = copy->cloned(20 + t);
          ReferenceCache second_want = reference;
          append(second, second_want, 2, 3, own);
          expect_same(second, second_want);
        }
      }
      expect_same(*copy, reference);
    });
  }
  append(cache, want, 2, 10, random);
  for (std::thread& thread : threads) thread.join();
  threads.clear();
  expect_same(cache, want);
}

}  // namespace
}  // namespace kvplug::test
