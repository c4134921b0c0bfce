// SPDX-License-Identifier: Apache-2.0
// A random sequence of operations on one cache kind, with `dynamic` and the reference cache going along: every
// operation, on instances that share what they were cloned from. After each the kind shows exactly what the reference
// has; what it refuses changes nothing.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "kinds.h"

namespace kvplug::test {

inline constexpr int64_t kWindows[] = {1, 2, 3, 8, 63, 64, 65, 100, 200};
inline constexpr int64_t kMostBatch = 3;

// One cache in every kind that goes along, and what it should hold.
struct Instance {
  std::vector<LoadedCache> caches;
  std::vector<uint64_t> owners;
  ReferenceCache want;
  // The largest of each so far: what memory is held against.
  int64_t batch = 0, tokens = 0, rollback = 0;
  // Pages with a clone, of which some are booked here that are not held here; or among rows, which need more than
  // their own before they part.
  bool shares = false;
};

class Sequence {
 public:
  Sequence(const Kind& kind, uint64_t seed) : kind_(kind), random_(seed) {
    const kvp_dtype types[] = {kF32, kF16, kBF16};
    dtype_ = types[pick(random_, 0, 2)];
    const bool cross = pick(random_, 0, 5) == 0 && !kind.quantized;
    for (int64_t n = pick(random_, 1, 3); n > 0; --n) {
      const auto kv_heads = static_cast<int32_t>(pick(random_, 1, 2));
      LayerShape s{kv_heads * static_cast<int32_t>(pick(random_, 1, 2)), kv_heads, 4, 4};
      (pick(random_, 0, 1) == 0 ? s.key_dim : s.value_dim) = 8;
      s.kind = static_cast<int32_t>(pick(random_, KVP_LAYER_FULL, KVP_LAYER_CHUNKED));
      if (s.kind != KVP_LAYER_FULL) s.window = kWindows[pick(random_, 0, std::size(kWindows) - 1)];
      shapes_.push_back(s);
    }
    if (cross) shapes_.push_back({2, 1, 4, 4, KVP_LAYER_CROSS});
    if (kind.fixed) capacity_ = pick(random_, 150, 400);
    if (kind.offloaded && KVPLUG_TEST_DEVICE == KVP_DEVICE_CPU && pick(random_, 0, 1) == 0) folder_.emplace();
    const std::string folder = folder_ ? folder_->path().string() : "";
    along_ = {kind};
    if (std::string_view(kind.name) != kKinds[0].name) along_.push_back(kKinds[0]);
    Instance first{{}, {}, reference_of(shapes_)};
    for (const Kind& each : along_) {
      args_.push_back(std::make_unique<KindArgs>(each, shapes_, dtype_, next_owner_, each.fixed ? capacity_ : -1,
                                                 each.offloaded ? folder : "", pick(random_, 0, 1) == 0));
      if (each.quantized) choose_packing(args_.back()->create);
      first.caches.emplace_back(iface_of(each), args_.back()->create);
      first.owners.push_back(next_owner_++);
    }
    instances_.push_back(std::make_unique<Instance>(std::move(first)));
  }

  void step() {
    at_ = pick(random_, 0, static_cast<int64_t>(instances_.size()) - 1);
    Instance& to = *instances_[static_cast<size_t>(at_)];
    const int64_t choice = pick(random_, 0, 99);
    if (choice < 58) {
      update(to);
    } else if (choice < 70) {
      crop(to);
    } else if (choice < 80) {
      gather(to);
    } else if (choice < 86) {
      clone(to);
    } else if (choice < 89) {
      reserve(to);
    } else if (choice < 91) {
      did("reset");
      each(to, [](LoadedCache& cache) { ASSERT_EQ(cache.reset(), KVP_OK) << cache.text(); });
      to.want.reset();
    } else if (choice < 96) {
      set_rollback(to);
    } else {
      refuse(to);
    }
    if (::testing::Test::HasFatalFailure()) return;
    if (at_ < static_cast<int64_t>(instances_.size())) check(*instances_[static_cast<size_t>(at_)]);
  }

  // The others were not touched by what one did.
  void check_all() {
    for (const auto& instance : instances_) ASSERT_NO_FATAL_FAILURE(check(*instance));
  }
  const std::optional<TempFolder>& folder() const { return folder_; }
  // What was done so far, one operation a line.
  std::string history() const {
    std::string text = std::to_string(dtype_.bits) + " bits, capacity " + std::to_string(capacity_) +
                       (folder_ ? ", in files" : "") + "; layers";
    for (const LayerShape& s : shapes_) text += " " + std::to_string(s.kind) + ":" + std::to_string(s.window);
    return text + history_;
  }

 private:
  // Small numbers, so that most tokens are packed.
  void choose_packing(kvp_cache_create& create) {
    const int64_t blocks[] = {1, 1, 2, 4, 16, 64}, residuals[] = {0, 0, 4, 30, 128}, sinks[] = {0, 0, 1, 4, 70};
    packing_.k.token_block = blocks[pick(random_, 0, 5)];
    packing_.v.token_block = pick(random_, 0, 1) == 0 ? packing_.k.token_block : blocks[pick(random_, 0, 5)];
    packing_.k.attends = packing_.v.attends = pick(random_, 0, 1) == 0;
    const int64_t residual = residuals[pick(random_, 0, 4)], sunk = sinks[pick(random_, 0, 4)];
    const int64_t start = pick(random_, 0, 3) == 0 ? pick(random_, 1, 90) : 0;
    packing_.integer("residual_length", residual);
    packing_.integer("sink_tokens", sunk);
    packing_.integer("quantized_kv_start", start);
    packing_.give(create);
    history_ += "\n  blocks of " + std::to_string(packing_.k.token_block) + " and " +
                std::to_string(packing_.v.token_block) + (packing_.k.attends ? ", fused" : "") + ", residual " +
                std::to_string(residual) + ", sinks " + std::to_string(sunk) + ", start " + std::to_string(start);
  }

  void did(const std::string& what) { history_ += "\n  #" + std::to_string(at_) + " " + what; }

  template <class Body>
  void each(Instance& to, Body&& body) {
    for (size_t i = 0; i < to.caches.size(); ++i) {
      SCOPED_TRACE(i == 0 ? kind_.name : kKinds[0].name);
      body(to.caches[i]);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }

  // Whether the fixed kinds' capacity is an end: not where every layer is a window that fits, rollback included.
  bool limited(int64_t rollback) const {
    return capacity_ > 0 && std::any_of(shapes_.begin(), shapes_.end(), [&](const LayerShape& s) {
             return s.window == 0 || s.window > capacity_ - std::min(rollback, capacity_);
           });
  }
  bool limited(const Instance& at) const { return limited(at.want.rollback()); }

  void check(Instance& at) {
    for (size_t i = 0; i < at.caches.size(); ++i) {
      SCOPED_TRACE(i == 0 ? kind_.name : kKinds[0].name);
      LoadedCache& cache = at.caches[i];
      ASSERT_NO_FATAL_FAILURE(expect_kind_same(cache, at.want, i == 0 && limited(at) ? capacity_ : -1));
      const kvp_memory memory = cache.memory();
      for (const int32_t tier : {KVP_TIER_DEVICE, KVP_TIER_PINNED, KVP_TIER_HOST}) {
        uint64_t held = 0;
        for (int32_t purpose = 0; purpose < KVP_N_PURPOSES; ++purpose) {
          ASSERT_EQ(memory.reserved[tier][purpose], TestHost::get().held(at.owners[i], purpose, tier))
              << "tier " << tier << ", purpose " << purpose;
          held += memory.reserved[tier][purpose];
        }
        ASSERT_LE(held, memory.peak[tier]) << "tier " << tier;
      }
      if (at.shares || (capacity_ > 0 && at.rollback > 0)) continue;
      if (along_[i].quantized && at.rollback > 0) continue;  // what was packed before stays packed
      kvp_cache_create create = args_[i]->create;
      create.rollback = at.rollback;
      const kvp_memory plan = plan_of(along_[i], create, at.batch, std::max<int64_t>(1, at.tokens));
      for (const int32_t purpose :
           {KVP_PURPOSE_KV, KVP_PURPOSE_OTHER, KVP_PURPOSE_PACKED, KVP_PURPOSE_SCALES, KVP_PURPOSE_RESIDUAL}) {
        for (int32_t tier = 0; tier < KVP_N_TIERS; ++tier) {
          ASSERT_LE(memory.reserved[tier][purpose], plan.reserved[tier][purpose])
              << "tier " << tier << ", purpose " << purpose << ", for " << at.batch << " x " << at.tokens;
        }
      }
    }
    for (size_t i = 0; i < at.want.n_layers(); ++i) {
      const ReferenceCache::Layer& l = at.want.layer(i);
      uint64_t stored =
          static_cast<uint64_t>(at.want.stored(i) * l.kv_heads * (l.key_dim + l.value_dim)) * dtype_.bits / 8;
      for (LoadedCache& cache : at.caches) {
        const kvp_memory memory = cache.memory(static_cast<int32_t>(i));
        ASSERT_EQ(memory.unquantized, stored) << "layer " << i;
      }
    }
  }

  void update(Instance& to);
  void update_layer(Instance& to, size_t i, int64_t batch, int64_t tokens, bool& over);
  // Attends for the newest tokens once more, without appending. A window has mostly let go of what they saw.
  void read_again(Instance& to, size_t i);
  // Filled once, then read by every step.
  void cross(Instance& to, size_t i, int64_t batch);
  // The reference has the new tokens already. Queries of row b stand at slot0[b] and up; those from live[b] on are
  // right padding.
  void attend(Instance& to, size_t i, const Values& q, const Values* k, const Values* v, const int64_t* pad,
              const int64_t* count, int64_t kv_offset, int64_t kv_len, const std::vector<int64_t>& slot0,
              const std::vector<int64_t>& live);

  void crop(Instance& to) {
    const int64_t batch = to.want.batch();
    std::vector<int64_t> counts(static_cast<size_t>(batch > 0 && pick(random_, 0, 1) == 0 ? batch : 1));
    const int64_t mosts[] = {0, 2, 5, 5, 70, 1000};
    const int64_t most = mosts[pick(random_, 0, std::size(mosts) - 1)];
    for (int64_t& count : counts) count = pick(random_, 0, most);
    const int32_t status = to.want.can_crop(counts) ? KVP_OK : KVP_INVALID_STATE;
    ASSERT_NO_FATAL_FAILURE(ask(
        to, status, [&](LoadedCache& cache, uint32_t flags) { return cache.crop(counts, flags); },
        "crop of " + ::testing::PrintToString(counts)));
    if (status == KVP_OK) to.want.crop(counts);
  }

  void gather(Instance& to) {
    const int64_t batch = to.want.batch();
    if (batch == 0) return;
    std::vector<int64_t> src(static_cast<size_t>(pick(random_, 1, kMostBatch)));
    for (int64_t& row : src) row = pick(random_, pick(random_, 0, 4) == 0 ? -1 : 0, batch - 1);
    ASSERT_NO_FATAL_FAILURE(ask(
        to, KVP_OK, [&](LoadedCache& cache, uint32_t flags) { return cache.gather(src, flags); },
        "gather of " + ::testing::PrintToString(src)));
    to.want.gather(src);
    std::sort(src.begin(), src.end());
    to.shares = to.shares || std::adjacent_find(src.begin(), src.end()) != src.end();
    to.batch = std::max(to.batch, static_cast<int64_t>(src.size()));
  }

  void clone(Instance& to) {
    if (instances_.size() == 3) {
      did("destroy");
      instances_.erase(instances_.begin() + at_);
      return;
    }
    did("clone");
    to.shares = true;
    Instance copy{{}, {}, to.want, to.batch, to.tokens, to.rollback, true};
    for (LoadedCache& cache : to.caches) {
      copy.caches.push_back(cache.cloned(next_owner_));
      copy.owners.push_back(next_owner_++);
    }
    instances_.push_back(std::make_unique<Instance>(std::move(copy)));
  }

  void reserve(Instance& to) {
    const int64_t batch = pick(random_, 1, kMostBatch), tokens = pick(random_, 0, 140);
    ask(
        to, KVP_OK, [&](LoadedCache& cache, uint32_t flags) { return cache.reserve(batch, tokens, flags); },
        "reserve " + std::to_string(batch) + " x " + std::to_string(tokens));
    to.batch = std::max(to.batch, batch);
    to.tokens = std::max(to.tokens, tokens);
  }

  void set_rollback(Instance& to) {
    const int64_t depths[] = {0, 1, 2, 5, 20, 70, int64_t{1} << 40};
    const int64_t n = depths[pick(random_, 0, std::size(depths) - 1)];
    int64_t longest = 0;
    for (size_t i = 0; i < to.want.n_layers(); ++i) longest = std::max(longest, to.want.longest(i));
    // Windows that have gone beyond the capacity cannot be held to it any more.
    const bool refused = limited(n) && longest > capacity_;
    const auto call = [&](LoadedCache& cache, uint32_t flags) { return cache.set_rollback(n, flags); };
    const std::string name = "set_rollback " + std::to_string(n);
    if (refused) {
      did(name + ", refused");
      ASSERT_EQ(call(to.caches[0], KVP_CALL_CHECK), KVP_CAPACITY) << to.caches[0].text();
      ASSERT_EQ(call(to.caches[0], 0), KVP_CAPACITY) << to.caches[0].text();
      return;
    }
    ASSERT_NO_FATAL_FAILURE(ask(to, KVP_OK, call, name));
    to.want.set_rollback(n);
    to.rollback = std::max(to.rollback, n);
  }

  // CHECK says what the call will say; neither changes anything if that is a refusal, CHECK never does.
  template <class Call>
  void ask(Instance& to, int32_t status, Call&& call, const std::string& name) {
    SCOPED_TRACE(name);
    did(name + (status == KVP_OK ? "" : ", refused"));
    each(to, [&](LoadedCache& cache) { ASSERT_EQ(call(cache, KVP_CALL_CHECK), status) << cache.text(); });
    if (::testing::Test::HasFatalFailure()) return;
    ASSERT_NO_FATAL_FAILURE(check(to));
    each(to, [&](LoadedCache& cache) { ASSERT_EQ(call(cache, 0), status) << cache.text(); });
  }

  // Calls that no state makes legal.
  void refuse(Instance& to) {
    const int64_t batch = to.want.batch();
    const auto layer = static_cast<int32_t>(pick(random_, 0, static_cast<int64_t>(shapes_.size()) - 1));
    const LayerShape& s = shapes_[static_cast<size_t>(layer)];
    const Values k = make(dtype_, {batch + 1, s.kv_heads, 1, s.key_dim}),
                 v = make(dtype_, {batch + 1, s.kv_heads, 1, s.value_dim});
    each(to, [&](LoadedCache& cache) {
      ASSERT_EQ(cache.crop({-1}), KVP_INVALID_ARGUMENT);
      ASSERT_EQ(cache.crop({1, -1}), KVP_INVALID_ARGUMENT);
      ASSERT_EQ(cache.gather({0, -2}), KVP_INVALID_ARGUMENT);
      ASSERT_EQ(cache.gather({}), KVP_INVALID_ARGUMENT);
      ASSERT_EQ(cache.set_rollback(-1), KVP_INVALID_ARGUMENT);
      ASSERT_EQ(cache.reserve(-1, 5), KVP_INVALID_ARGUMENT);
      if (batch > 0) {
        ASSERT_EQ(cache.gather({batch}), KVP_INVALID_ARGUMENT);
        ASSERT_EQ(cache.crop(std::vector<int64_t>(static_cast<size_t>(batch) + 1, 0)), KVP_INVALID_ARGUMENT);
      }
      if (!to.want.empty() && s.kind != KVP_LAYER_CROSS) {
        ASSERT_EQ(cache.update(layer, k, v, nullptr, nullptr, nullptr, nullptr), KVP_INVALID_ARGUMENT);
      }
    });
  }

  Kind kind_;
  std::vector<Kind> along_;
  QuantizedArgs packing_;
  Random random_;
  kvp_dtype dtype_{};
  std::vector<LayerShape> shapes_;
  int64_t capacity_ = -1;
  std::optional<TempFolder> folder_;
  uint64_t next_owner_ = 1;
  int64_t at_ = 0;
  std::string history_;
  std::vector<std::unique_ptr<KindArgs>> args_;
  std::vector<std::unique_ptr<Instance>> instances_;
};

}  // namespace kvplug::test
