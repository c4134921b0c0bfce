// SPDX-License-Identifier: Apache-2.0
// hf_compat = "strict" over quantizers that lose nothing holds what the reference cache holds, over random sequences of
// operations: ragged and padded rows, clones, failures of quantizers and of memory. What is refused or fails changes
// nothing. A failure prints the seed; KVPLUG_TEST_SEED repeats it alone.
#include <gtest/gtest.h>

#include <memory>

#include "strict_given.h"

namespace kvplug::test {
namespace {

// One cache, what it should hold, and the most that it was asked to.
struct Pair {
  LoadedCache cache;
  ReferenceCache want;
  uint64_t owner;
  int64_t batch = 0, tokens = 0;

  // After it, everything shown is as it should be and the memory is told as it is.
  void expect_same(const kvp_cache_create& create) {
    ASSERT_NO_FATAL_FAILURE(expect_kind_same(cache, want, -1));
    const kvp_memory memory = cache.memory();
    uint64_t held = 0;
    for (int32_t purpose = 0; purpose < KVP_N_PURPOSES; ++purpose) {
      ASSERT_EQ(memory.reserved[KVP_TIER_HOST][purpose], TestHost::get().held(owner, purpose)) << "purpose " << purpose;
      held += memory.reserved[KVP_TIER_HOST][purpose];
    }
    ASSERT_LE(held, memory.peak[KVP_TIER_HOST]);
    const kvp_memory plan = plan_of(kQuantized, create, batch, std::max<int64_t>(1, tokens));
    for (const int32_t purpose : {KVP_PURPOSE_PACKED, KVP_PURPOSE_SCALES, KVP_PURPOSE_RESIDUAL}) {
      ASSERT_LE(memory.reserved[KVP_TIER_HOST][purpose], plan.reserved[KVP_TIER_HOST][purpose])
          << "purpose " << purpose << ", for " << batch << " x " << tokens;
    }
    ASSERT_LE(memory.peak[KVP_TIER_HOST], plan.peak[KVP_TIER_HOST]) << "for " << batch << " x " << tokens;
  }
};

class Sequence {
 public:
  explicit Sequence(uint64_t seed)
      : random_(seed),
        dtype_(pick(random_, 0, 1) == 0 ? kF32 : kBF16),
        given_(kShapes, dtype_, pick(random_, 0, 2) == 0, {option("residual_length", pick(random_, 0, 12))}) {
    instances_.push_back(std::make_unique<Pair>(Pair{{iface(), given_.create}, reference_of(kShapes), next_owner_++}));
  }

  void step() {
    const int64_t at = pick(random_, 0, static_cast<int64_t>(instances_.size()) - 1);
    Pair& to = *instances_[static_cast<size_t>(at)];
    const int64_t choice = pick(random_, 0, 99);
    if (choice < 60) {
      update(to);
    } else if (choice < 75) {
      gather(to);
    } else if (choice < 83) {
      if (instances_.size() == 3) {
        instances_.erase(instances_.begin() + at);
        return;
      }
      instances_.push_back(
          std::make_unique<Pair>(Pair{to.cache.cloned(next_owner_), to.want, next_owner_, to.batch, to.tokens}));
      ++next_owner_;
    } else if (choice < 86) {
      ASSERT_EQ(to.cache.reset(), KVP_OK);
      to.want.reset();
    } else if (choice < 92) {
      crop(to);
    } else {
      refuse(to);
    }
  }
  void check_all() {
    for (const auto& each : instances_) ASSERT_NO_FATAL_FAILURE(each->expect_same(given_.create));
  }

 private:
  void update(Pair& to) {
    const int64_t sizes[] = {1, 1, 1, 2, 5, pick(random_, 1, 40)};
    const int64_t tokens = sizes[pick(random_, 0, 5)];
    const int64_t batch = to.want.empty() ? pick(random_, 1, 3) : to.want.batch();
    const bool ragged = pick(random_, 0, 1) == 0, padded = pick(random_, 0, 1) == 0;
    std::vector<int64_t> pad, count;
    for (int64_t b = 0; b < batch; ++b) {
      const bool empty = to.want.empty();
      const ReferenceCache::Row row = empty ? ReferenceCache::Row{} : to.want.layer(0).rows[static_cast<size_t>(b)];
      count.push_back(ragged ? pick(random_, 0, tokens) : tokens);
      pad.push_back(padded && row.seen() == row.pad() ? pick(random_, 0, count.back()) : 0);
    }
    const int64_t longest = to.want.longest(0);
    to.batch = std::max(to.batch, batch);
    to.tokens = std::max(to.tokens, longest + tokens);  // what a view has columns for
    for (size_t i = 0; i < kShapes.size(); ++i) {
      const auto layer = static_cast<int32_t>(i);
      const Values k = tokens_of(kShapes[i], true, batch, tokens, random_, dtype_),
                   v = tokens_of(kShapes[i], false, batch, tokens, random_, dtype_);
      const int64_t* pads = padded ? pad.data() : nullptr;
      const int64_t* counts = ragged ? count.data() : nullptr;
      const bool shows = pick(random_, 0, 3) != 0;
      kvp_tensor out_k{}, out_v{};
      const auto call = [&] {
        return to.cache.update(layer, k, v, pads, counts, shows ? &out_k : nullptr, shows ? &out_v : nullptr);
      };
      // First a failure somewhere on the way, which leaves the call to be made again.
      const int64_t where = pick(random_, 0, 8), nth = pick(random_, 1, 3);
      if (where < 3) {
        if (where == 0) TestHost::get().fail_at(nth);
        WholeQuantizer& q = pick(random_, 0, 1) == 0 ? given_.k : given_.v;
        if (where == 1) q.pack_fails = nth;
        if (where == 2) q.unpack_fails = nth;
        const int32_t status = call();
        TestHost::get().fail_at(0);
        q.pack_fails = q.unpack_fails = 0;
        if (status != KVP_OK) {
          ASSERT_EQ(status, where == 0 ? KVP_OUT_OF_MEMORY : KVP_IO) << to.cache.text();
          ASSERT_NE(to.cache.text().find("the test said no"), std::string::npos) << to.cache.text();
          ASSERT_EQ(out_k.ndim, 0);
          ASSERT_NO_FATAL_FAILURE(to.expect_same(given_.create));
          ASSERT_EQ(call(), KVP_OK) << to.cache.text();
        }
      } else {
        ASSERT_EQ(call(), KVP_OK) << to.cache.text();
      }
      to.want.append(i, k, v, pads, counts);
      if (!shows) continue;
      ASSERT_NO_FATAL_FAILURE(expect_kind_views(to.want, i, out_k, out_v, 0, longest + tokens));
    }
    to.want.settle();
  }

  void gather(Pair& to) {
    const int64_t batch = to.want.batch();
    if (batch == 0) return;
    std::vector<int64_t> src(static_cast<size_t>(pick(random_, 1, 3)));
    for (int64_t& row : src) row = pick(random_, pick(random_, 0, 3) == 0 ? -1 : 0, batch - 1);
    ASSERT_EQ(to.cache.gather(src, KVP_CALL_CHECK), KVP_OK) << to.cache.text();
    ASSERT_NO_FATAL_FAILURE(to.expect_same(given_.create));
    to.batch = std::max(to.batch, static_cast<int64_t>(src.size()));
    if (pick(random_, 0, 2) == 0) {
      TestHost::get().fail_at(pick(random_, 1, 2));
      const int32_t status = to.cache.gather(src);
      TestHost::get().fail_at(0);
      if (status != KVP_OK) {
        ASSERT_EQ(status, KVP_OUT_OF_MEMORY);
        ASSERT_NO_FATAL_FAILURE(to.expect_same(given_.create));
        ASSERT_EQ(to.cache.gather(src), KVP_OK) << to.cache.text();
      }
    } else {
      ASSERT_EQ(to.cache.gather(src), KVP_OK) << to.cache.text();
    }
    to.want.gather(src);
  }

  // All or nothing.
  void crop(Pair& to) {
    int64_t longest = to.want.longest(0);
    const int64_t n[] = {0, longest, longest + 3, pick(random_, 0, std::max<int64_t>(0, longest - 1))};
    const int64_t remove = n[pick(random_, 0, 3)];
    const bool all = remove >= longest;
    for (const uint32_t flag : {KVP_CALL_CHECK, 0u}) {
      ASSERT_NO_FATAL_FAILURE(to.expect_same(given_.create));
      ASSERT_EQ(to.cache.crop({remove}, flag), all || remove == 0 ? KVP_OK : KVP_UNSUPPORTED) << to.cache.text();
    }
    if (all) to.want.crop({remove});
  }

  void refuse(Pair& to) {
    const int64_t batch = to.want.batch();
    const auto layer = static_cast<size_t>(pick(random_, 0, 1));
    const Values k = tokens_of(kShapes[layer], true, batch + 1, 1, random_, dtype_),
                 v = tokens_of(kShapes[layer], false, batch + 1, 1, random_, dtype_);
    for (const uint32_t flag : {KVP_CALL_CHECK, 0u}) {
      ASSERT_EQ(to.cache.set_rollback(3, flag), KVP_UNSUPPORTED);
      ASSERT_EQ(to.cache.set_rollback(0, flag), KVP_OK);
      ASSERT_EQ(to.cache.set_rollback(-1, flag), KVP_INVALID_ARGUMENT);
      ASSERT_EQ(to.cache.reserve(1, 10, flag), KVP_UNSUPPORTED);
      ASSERT_EQ(to.cache.reserve(-1, 10, flag), KVP_INVALID_ARGUMENT);
      ASSERT_EQ(to.cache.crop({-1}, flag), KVP_INVALID_ARGUMENT);
      ASSERT_EQ(to.cache.gather({}, flag), KVP_INVALID_ARGUMENT);
      ASSERT_EQ(to.cache.gather({0, -2}, flag), KVP_INVALID_ARGUMENT);
      if (batch == 0) continue;
      ASSERT_EQ(to.cache.gather({batch}, flag), KVP_INVALID_ARGUMENT);
      ASSERT_EQ(to.cache.crop(std::vector<int64_t>(static_cast<size_t>(batch) + 1, 0), flag), KVP_INVALID_ARGUMENT);
    }
    if (to.want.empty()) return;
    ASSERT_EQ(to.cache.update(static_cast<int32_t>(layer), k, v, nullptr, nullptr, nullptr, nullptr),
              KVP_INVALID_ARGUMENT);
    const Values none_k = tokens_of(kShapes[layer], true, batch + 1, 0, random_, dtype_),
                 none_v = tokens_of(kShapes[layer], false, batch + 1, 0, random_, dtype_);
    kvp_tensor out_k{}, out_v{};
    ASSERT_EQ(to.cache.update(static_cast<int32_t>(layer), none_k, none_v, nullptr, nullptr, &out_k, &out_v),
              KVP_INVALID_ARGUMENT);
  }

  Random random_;
  kvp_dtype dtype_;
  Given given_;
  uint64_t next_owner_ = 1;
  std::vector<std::unique_ptr<Pair>> instances_;
};

TEST(Strict, EqualsTheReferenceOverRandomSequences) {
  const char* given = std::getenv("KVPLUG_TEST_SEED");
  const uint64_t first = given == nullptr ? 1 : std::strtoull(given, nullptr, 10),
                 last = given == nullptr ? 300 : first;
  for (uint64_t seed = first; seed <= last; ++seed) {
    SCOPED_TRACE("KVPLUG_TEST_SEED=" + std::to_string(seed));
    {
      Sequence sequence(seed);
      for (int step = 0; step < 30; ++step) {
        SCOPED_TRACE("step " + std::to_string(step));
        sequence.step();
        if (HasFailure()) return;
        sequence.check_all();
        if (HasFailure()) return;
      }
    }
    ASSERT_EQ(TestHost::get().held(), 0u);
  }
  EXPECT_EQ(TestHost::get().wrong_frees(), 0);
}

}  // namespace
}  // namespace kvplug::test
