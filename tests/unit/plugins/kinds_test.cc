// SPDX-License-Identifier: Apache-2.0
// Every cache kind against the reference cache over random sequences of operations: full, sliding, chunked and cross
// layers, ragged and padded rows, instances that share what they were cloned from. After every step the kind shows
// exactly what the reference has; what it refuses changes nothing; attend equals plain attention, and gives the very
// bits of `dynamic`, which goes along. A failure prints the seed; KVPLUG_TEST_SEED repeats it alone.
#include <gtest/gtest.h>

#include <memory>
#include <optional>

#include "kinds.h"
#include "reference_attention.h"

namespace kvplug::test {
namespace {

constexpr int64_t kWindows[] = {1, 2, 3, 8, 63, 64, 65, 100, 200};
constexpr int64_t kMostBatch = 3;

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
    const bool cross = pick(random_, 0, 5) == 0;
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
    if (kind.offloaded && pick(random_, 0, 1) == 0) folder_.emplace();
    const std::string folder = folder_ ? folder_->path().string() : "";
    along_ = {kind};
    if (std::string_view(kind.name) != kKinds[0].name) along_.push_back(kKinds[0]);
    Instance first{{}, {}, reference_of(shapes_)};
    for (const Kind& each : along_) {
      args_.push_back(std::make_unique<KindArgs>(shapes_, dtype_, next_owner_, each.fixed ? capacity_ : -1,
                                                 each.offloaded ? folder : "", pick(random_, 0, 1) == 0));
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
      uint64_t held = 0;
      for (int32_t purpose = 0; purpose < KVP_N_PURPOSES; ++purpose) {
        ASSERT_EQ(memory.reserved[KVP_TIER_HOST][purpose], TestHost::get().held(at.owners[i], purpose))
            << "purpose " << purpose;
        held += memory.reserved[KVP_TIER_HOST][purpose];
      }
      ASSERT_LE(held, memory.peak[KVP_TIER_HOST]);
      if (at.shares || (capacity_ > 0 && at.rollback > 0)) continue;
      kvp_cache_create create = args_[i]->create;
      create.rollback = at.rollback;
      const kvp_memory plan = plan_of(along_[i], create, at.batch, std::max<int64_t>(1, at.tokens));
      for (const int32_t purpose : {KVP_PURPOSE_KV, KVP_PURPOSE_OTHER}) {
        for (const int32_t tier : {KVP_TIER_HOST, KVP_TIER_FILE}) {
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

  void update(Instance& to) {
    const bool empty = to.want.empty();
    const int64_t sizes[] = {0, 1, 1, 1, 1, 2, 3, pick(random_, 4, 40), pick(random_, 4, 70), 130};
    const int64_t tokens = sizes[pick(random_, 0, std::size(sizes) - 1)];
    const bool chooses = to.want.batch() == 0 || (empty && tokens > 0);
    const int64_t batch = chooses ? pick(random_, 1, kMostBatch) : to.want.batch();
    // A step that stops half way leaves layers at different lengths.
    const size_t layers = pick(random_, 0, 9) == 0 ? 1 : shapes_.size();
    for (size_t i = 0; i < layers; ++i) {
      SCOPED_TRACE("update of layer " + std::to_string(i) + " by " + std::to_string(tokens));
      bool over = false;
      ASSERT_NO_FATAL_FAILURE(shapes_[i].kind == KVP_LAYER_CROSS ? cross(to, i, batch)
                                                                 : update_layer(to, i, batch, tokens, over));
      if (over) return;
    }
  }

  void update_layer(Instance& to, size_t i, int64_t batch, int64_t tokens, bool& over) {
    const LayerShape& s = shapes_[i];
    const auto layer = static_cast<int32_t>(i);
    const bool empty = to.want.empty();
    std::vector<int64_t> pad(static_cast<size_t>(batch)), count(static_cast<size_t>(batch));
    const bool ragged = pick(random_, 0, 2) == 0, padded = pick(random_, 0, 2) == 0;
    int64_t furthest = 0, longest = 0;
    std::vector<int64_t> slot0, live;
    for (size_t b = 0; b < static_cast<size_t>(batch); ++b) {
      count[b] = ragged ? pick(random_, 0, tokens) : tokens;
      const std::vector<ReferenceCache::Row>& rows = to.want.layer(i).rows;
      const int64_t seen = empty ? 0 : rows[b].seen();
      const bool holds = !empty && seen > rows[b].pad();
      pad[b] = !padded || holds || pick(random_, 0, 1) == 0 ? 0 : pick(random_, 0, count[b]);
      slot0.push_back(seen);
      live.push_back(count[b]);
      furthest = std::max(furthest, seen + count[b]);
      longest = std::max(longest, seen);
    }
    did("layer " + std::to_string(i) + " + " + std::to_string(tokens) + ", pad " + ::testing::PrintToString(pad) +
        ", count " + ::testing::PrintToString(count));
    const int64_t* pads = padded ? pad.data() : nullptr;
    const int64_t* counts = ragged ? count.data() : nullptr;
    const Values k = random_tensor(dtype_, batch, s.kv_heads, tokens, s.key_dim, random_);
    const Values v = random_tensor(dtype_, batch, s.kv_heads, tokens, s.value_dim, random_);
    kvp_tensor out_k{}, out_v{};
    if (limited(to) && furthest > capacity_) {
      over = true;
      LoadedCache& cache = to.caches[0];
      ASSERT_EQ(cache.update(layer, k, v, pads, counts, &out_k, &out_v), KVP_CAPACITY) << cache.text();
      ASSERT_NE(cache.text().find(std::to_string(capacity_)), std::string::npos) << cache.text();
      ASSERT_EQ(out_k.ndim, 0);
      return;
    }
    const int64_t offset = empty ? 0 : to.want.kv_offset(i);
    const int64_t kv_len = longest + tokens - offset;
    const int64_t way = pick(random_, 0, 2);
    if (way < 2) {
      if (tokens > 0) to.want.append(i, k, v, pads, counts);
      each(to, [&](LoadedCache& cache) {
        const kvp_lengths before = cache.lengths(layer, tokens);
        ASSERT_EQ(before.kv_len, kv_len);
        ASSERT_EQ(before.kv_offset, offset);
        ASSERT_EQ(cache.update(layer, k, v, pads, counts, way == 0 ? nullptr : &out_k, way == 0 ? nullptr : &out_v),
                  KVP_OK)
            << cache.text();
        if (way == 1 && tokens > 0) {
          ASSERT_NO_FATAL_FAILURE(expect_kind_views(to.want, i, out_k, out_v, offset, kv_len));
        }
      });
    } else {
      const Values q = random_tensor(dtype_, batch, s.q_heads, tokens, s.key_dim, random_);
      if (tokens > 0) to.want.append(i, k, v, pads, counts);
      attend(to, i, q, &k, &v, pads, counts, offset, kv_len, slot0, live);
    }
    if (::testing::Test::HasFatalFailure()) return;
    to.want.settle();
    to.batch = std::max(to.batch, batch);
    to.tokens = std::max(to.tokens, furthest);
    // The newest tokens once more, without appending: every layer that keeps all it needs for that.
    if (s.kind == KVP_LAYER_FULL && !to.want.empty() && pick(random_, 0, 4) == 0) {
      const int64_t queries = pick(random_, 1, 3);
      const Values q = random_tensor(dtype_, batch, s.q_heads, queries, s.key_dim, random_);
      for (size_t b = 0; b < static_cast<size_t>(batch); ++b) {
        slot0[b] = to.want.layer(i).rows[b].seen() - queries;
        live[b] = queries;
      }
      attend(to, i, q, nullptr, nullptr, nullptr, nullptr, 0, to.want.kv_len(i, 0), slot0, live);
    }
  }

  // Filled once, then read by every step.
  void cross(Instance& to, size_t i, int64_t batch) {
    const LayerShape& s = shapes_[i];
    const auto layer = static_cast<int32_t>(i);
    if (to.want.empty() || to.want.longest(i) == 0) {
      const int64_t tokens = pick(random_, 1, 70);
      std::vector<int64_t> count(static_cast<size_t>(batch));
      for (int64_t& n : count) n = pick(random_, 1, tokens);
      did("cross layer " + std::to_string(i) + " + " + std::to_string(tokens) + ", count " +
          ::testing::PrintToString(count));
      const Values k = random_tensor(dtype_, batch, s.kv_heads, tokens, s.key_dim, random_);
      const Values v = random_tensor(dtype_, batch, s.kv_heads, tokens, s.value_dim, random_);
      each(to, [&](LoadedCache& cache) {
        ASSERT_EQ(cache.update(layer, k, v, nullptr, count.data(), nullptr, nullptr), KVP_OK) << cache.text();
      });
      if (::testing::Test::HasFatalFailure()) return;
      to.want.append(i, k, v, nullptr, count.data());
      to.batch = std::max(to.batch, batch);
      to.tokens = std::max(to.tokens, tokens);
      return;
    }
    const int64_t tokens = pick(random_, 1, 4);
    if (pick(random_, 0, 4) == 0) {
      const Values k = random_tensor(dtype_, batch, s.kv_heads, tokens, s.key_dim, random_);
      const Values v = random_tensor(dtype_, batch, s.kv_heads, tokens, s.value_dim, random_);
      each(to, [&](LoadedCache& cache) {
        ASSERT_EQ(cache.update(layer, k, v, nullptr, nullptr, nullptr, nullptr), KVP_INVALID_STATE) << cache.text();
      });
      return;
    }
    const Values q = random_tensor(dtype_, batch, s.q_heads, tokens, s.key_dim, random_);
    std::vector<int64_t> slot0, live(static_cast<size_t>(batch), tokens);
    for (const ReferenceCache::Row& row : to.want.layer(i).rows) slot0.push_back(row.pad());
    attend(to, i, q, nullptr, nullptr, nullptr, nullptr, 0, to.want.kv_len(i, 0), slot0, live);
  }

  // The reference has the new tokens already. Queries of row b stand at slot0[b] and up; those from live[b] on are
  // right padding.
  void attend(Instance& to, size_t i, const Values& q, const Values* k, const Values* v, const int64_t* pad,
              const int64_t* count, int64_t kv_offset, int64_t kv_len, const std::vector<int64_t>& slot0,
              const std::vector<int64_t>& live) {
    const LayerShape& s = shapes_[i];
    const int64_t batch = q.t.shape[0], queries = q.t.shape[2];
    AttendParams p;
    p.scale = 0.1;
    p.causal = s.kind != KVP_LAYER_CROSS;
    p.kv_offset = kv_offset;
    if (pick(random_, 0, 3) == 0) p.softcap = 3;
    int64_t window = 0, chunk = 0;  // what the call asks for beside the layer's own
    if (p.causal && pick(random_, 0, 3) == 0) {
      if (s.kind == KVP_LAYER_FULL && pick(random_, 0, 1) == 0) chunk = pick(random_, 1, 90);
      if (chunk == 0 && s.kind != KVP_LAYER_CHUNKED) window = pick(random_, 1, s.window > 0 ? s.window : 90);
    }
    p.window = window > 0 ? window : s.kind == KVP_LAYER_SLIDING ? s.window : 0;
    p.chunk = chunk > 0 ? chunk : s.kind == KVP_LAYER_CHUNKED ? s.window : 0;
    const Values bias = fill(make(kF32, {pick(random_, 0, 1) == 0 ? 1 : batch, 1, queries, kv_len}), random_);
    if (pick(random_, 0, 3) == 0 && bias.t.data != nullptr) p.bias = &bias;
    kvp_attend_args args{};
    args.struct_size = sizeof args;
    args.layer = static_cast<int32_t>(i);
    args.flags = p.causal ? KVP_ATTEND_CAUSAL : 0;
    args.q = &q.t;
    args.k = k == nullptr ? nullptr : &k->t;
    args.v = v == nullptr ? nullptr : &v->t;
    args.pad = pad;
    args.count = count;
    args.bias = p.bias == nullptr ? nullptr : &p.bias->t;
    args.window = window;
    args.chunk = chunk;
    args.scale = static_cast<float>(p.scale);
    args.softcap = static_cast<float>(p.softcap);
    const bool wide = pick(random_, 0, 1) == 0;
    std::vector<Values> outs, lses;
    each(to, [&](LoadedCache& cache) {
      outs.push_back(make(wide ? kF32 : dtype_, {batch, s.q_heads, queries, s.value_dim}));
      lses.push_back(make(kF32, {batch, s.q_heads, queries}));
      ASSERT_EQ(cache.attend(args, &outs.back().t, &lses.back().t), KVP_OK) << cache.text();
      ASSERT_EQ(*outs.back().memory, *outs[0].memory) << "bits of attend";
      ASSERT_EQ(*lses.back().memory, *lses[0].memory) << "bits of attend's lse";
    });
    if (::testing::Test::HasFatalFailure()) return;
    // Every query of a short call, some of a long one.
    const double tolerance = (wide                              ? 1e-5
                              : dtype_.bits == 32               ? 1e-5
                              : dtype_.code == KVP_DTYPE_BFLOAT ? 1.0 / 128
                                                                : 1.0 / 1024) *
                             8;
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t h = 0; h < s.q_heads; ++h) {
        for (int64_t n = 0; n < queries; n += std::max<int64_t>(1, queries / 4)) {
          const int64_t slot = n < live[static_cast<size_t>(b)] ? slot0[static_cast<size_t>(b)] + n : -1;
          const AttendResult r = attend_one(to.want, i, b, q, h, n, slot, p);
          const double lse = static_cast<double>(lses[0].get(b, h, n));
          if (std::isinf(r.lse)) {
            ASSERT_EQ(lse, r.lse) << "layer " << i << ", row " << b << ", query " << n;
          } else {
            ASSERT_NEAR(lse, r.lse, 1e-4 * std::max(1.0, std::abs(r.lse)))
                << "layer " << i << ", row " << b << ", query " << n;
          }
          for (int64_t d = 0; d < s.value_dim; ++d) {
            ASSERT_NEAR(static_cast<double>(outs[0].get(b, h, n, d)), r.out[static_cast<size_t>(d)], tolerance)
                << "layer " << i << ", row " << b << ", head " << h << ", query " << n << ", dim " << d;
          }
        }
      }
    }
  }

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

class Kinds : public ::testing::TestWithParam<Kind> {};

TEST_P(Kinds, EqualTheReferenceOverRandomSequences) {
  const char* given = std::getenv("KVPLUG_TEST_SEED");
  const uint64_t first = given == nullptr ? 1 : std::strtoull(given, nullptr, 10);
  const uint64_t last = given == nullptr ? 200 : first;
  for (uint64_t seed = first; seed <= last; ++seed) {
    SCOPED_TRACE("KVPLUG_TEST_SEED=" + std::to_string(seed));
    {
      TestHost::get().set_workers(seed % 3 == 0 ? 3 : 1);
      Sequence sequence(GetParam(), seed);
      for (int step = 0; step < 30; ++step) {
        SCOPED_TRACE("step " + std::to_string(step));
        sequence.step();
        ASSERT_FALSE(HasFatalFailure()) << sequence.history();
      }
      sequence.check_all();
      ASSERT_FALSE(HasFatalFailure()) << sequence.history();
      ASSERT_TRUE(!sequence.folder() || sequence.folder()->empty()) << "a file that has a name";
    }
    ASSERT_EQ(TestHost::get().held(), 0u);
  }
  EXPECT_EQ(TestHost::get().wrong_frees(), 0);
  TestHost::get().set_workers(1);
}

INSTANTIATE_TEST_SUITE_P(All, Kinds, ::testing::ValuesIn(kKinds), name_of);

}  // namespace
}  // namespace kvplug::test
