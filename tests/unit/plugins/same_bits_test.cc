// SPDX-License-Identifier: Apache-2.0
// The lossless kinds give the same bits: whatever the kind, a ring or all tokens, memory or file, whatever happened to
// the rows before. The yardstick is a full layer of dynamic that is told the window with every call.
#include <gtest/gtest.h>

#include <filesystem>

#include "loaded_cache.h"

namespace kvplug::test {
namespace {

constexpr int32_t kHeads = 4, kKvHeads = 2, kDim = 8, kValueDim = 4, kLayers = 3;
constexpr int64_t kCapacity = 700;

struct Kind {
  const char* file;
  uint32_t descriptor;
  bool fixed, disk;
};
constexpr Kind kKinds[] = {{"dynamic.so", 0, false, false},
                           {"static.so", 0, true, false},
                           {"offloaded.so", 0, false, false},
                           {"offloaded.so", 0, false, true},
                           {"offloaded.so", 1, true, true}};

const kvp_cache_iface* iface_of(const Kind& kind) {
  return static_cast<const kvp_cache_iface*>(load_plugin(kind.file)->descriptor(kind.descriptor)->iface);
}

std::vector<LayerShape> shapes_of(int32_t kind) {
  std::vector<LayerShape> shapes(kLayers, {kHeads, kKvHeads, kDim, kValueDim});
  for (int32_t i = 0; i < kLayers; i += 2) shapes[static_cast<size_t>(i)].kind = kind;
  return shapes;
}

struct Made {
  CreateArgs args;
  kvp_option options[2] = {};
  std::string folder = std::filesystem::temp_directory_path().string();

  Made(const Kind& kind, int32_t layer_kind, int64_t window, int64_t capacity, kvp_dtype dtype)
      : args(shapes_of(layer_kind), dtype, 9) {
    for (kvp_layer& layer : args.layers) {
      if (layer.kind != KVP_LAYER_FULL) layer.window = window;
    }
    if (kind.fixed) args.create.tokens = capacity;
    if (!kind.disk) return;
    options[0].key = "disk_path";
    options[0].type = KVP_OPTION_TEXT;
    options[0].text = folder.c_str();
    options[1].key = "offload_only_non_sliding";
    options[1].type = KVP_OPTION_BOOLEAN;
    args.create.options = options;
    args.create.n_options = 2;
  }
};

// One step through all layers; q, k, v and the row arguments alike for all caches.
struct StepInput {
  std::vector<Values> q, k, v;
  std::vector<int64_t> pad, count;

  StepInput(kvp_dtype dtype, int64_t batch, int64_t tokens, Random& random) {
    for (int32_t i = 0; i < kLayers; ++i) {
      q.push_back(fill(make_fused(dtype, batch, kHeads, tokens, kDim, 0, 2), random));
      k.push_back(fill(make_fused(dtype, batch, kKvHeads, tokens, kDim, 1, 2), random));
      v.push_back(fill(make_fused(dtype, batch, kKvHeads, tokens, kValueDim, 2, 1), random));
    }
  }
};

// out and lse of every layer, as bytes.
std::vector<std::byte> step(LoadedCache& cache, const StepInput& in, int64_t window, int64_t chunk, bool full) {
  std::vector<std::byte> all;
  for (int32_t i = 0; i < kLayers; ++i) {
    const auto at = static_cast<size_t>(i);
    const Values out = make(in.q[at].dtype(), {in.q[at].t.shape[0], kHeads, in.q[at].t.shape[2], kValueDim});
    const Values lse = make(kF32, {in.q[at].t.shape[0], kHeads, in.q[at].t.shape[2]});
    kvp_attend_args args{};
    args.struct_size = sizeof args;
    args.layer = i;
    args.flags = KVP_ATTEND_CAUSAL;
    args.q = &in.q[at].t;
    args.k = &in.k[at].t;
    args.v = &in.v[at].t;
    args.pad = in.pad.empty() ? nullptr : in.pad.data();
    args.count = in.count.empty() ? nullptr : in.count.data();
    args.scale = 0.25F;
    args.softcap = 8;
    if (full && i % 2 == 0) {
      args.window = window;
      args.chunk = chunk;
    }
    kvp_tensor out_t = out.t, lse_t = lse.t;
    EXPECT_EQ(cache.attend(args, &out_t, &lse_t), KVP_OK) << cache.text();
    all.insert(all.end(), out.memory->begin(), out.memory->end());
    all.insert(all.end(), lse.memory->begin(), lse.memory->end());
  }
  return all;
}

void run(const Kind& kind, uint64_t seed) {
  Random random(seed);
  const int64_t windows[] = {1, 2, 3, 8, 63, 64, 65, 100, 200};
  const int64_t window = windows[pick(random, 0, 8)];
  const bool chunked = pick(random, 0, 2) == 0;
  const kvp_dtype dtype = pick(random, 0, 1) == 0 ? kF32 : kBF16;
  SCOPED_TRACE(std::string(kind.file) + " " + std::to_string(kind.descriptor) + (kind.disk ? " disk" : "") + ", seed " +
               std::to_string(seed) + ", window " + std::to_string(window));
  TestHost::get().set_workers(static_cast<int32_t>(pick(random, 1, 3)));
  const Made made(kind, chunked ? KVP_LAYER_CHUNKED : KVP_LAYER_SLIDING, window, kCapacity, dtype);
  const Made plain(kKinds[0], KVP_LAYER_FULL, 0, 0, dtype);
  LoadedCache cache(iface_of(kind), made.args.create), full(iface_of(kKinds[0]), plain.args.create);
  int64_t batch = pick(random, 1, 3);
  const int64_t rollback = pick(random, 0, 1) == 0 ? 0 : pick(random, 1, 80);
  ASSERT_EQ(cache.set_rollback(rollback), KVP_OK) << cache.text();
  if (pick(random, 0, 1) == 0) {
    ASSERT_EQ(cache.reserve(batch, 300), KVP_OK) << cache.text();
  }
  bool fresh = true;
  int64_t longest = 0;
  for (int steps = 0; steps < 14; ++steps) {
    int64_t tokens = pick(random, 0, 3) == 0 ? pick(random, 2, 150) : 1;
    if (longest + tokens > kCapacity) break;
    StepInput in(dtype, batch, tokens, random);
    if (fresh && pick(random, 0, 1) == 0) {
      for (int64_t b = 0; b < batch; ++b) in.pad.push_back(pick(random, 0, tokens - 1));
    } else if (pick(random, 0, 3) == 0) {
      for (int64_t b = 0; b < batch; ++b) in.count.push_back(pick(random, 0, tokens));
    }
    longest += tokens;
    fresh = false;
    const int64_t w = chunked ? 0 : window, c = chunked ? window : 0;
    ASSERT_EQ(step(cache, in, w, c, false), step(full, in, w, c, true)) << "step " << steps;
    switch (pick(random, 0, 5)) {
      case 0: {
        std::vector<int64_t> rows(static_cast<size_t>(pick(random, 1, 4)));
        for (int64_t& row : rows) row = pick(random, -1, batch - 1);
        ASSERT_EQ(cache.gather(rows), KVP_OK) << cache.text();
        ASSERT_EQ(full.gather(rows), KVP_OK);
        batch = static_cast<int64_t>(rows.size());
        break;
      }
      case 1: {
        std::vector<int64_t> n(static_cast<size_t>(batch));
        for (int64_t& count : n) count = pick(random, 0, 5);
        const int32_t check = cache.crop(n, KVP_CALL_CHECK);
        ASSERT_EQ(cache.crop(n), check);
        if (check == KVP_OK) {
          ASSERT_EQ(full.crop(n), KVP_OK);
        } else {
          ASSERT_EQ(check, KVP_INVALID_STATE);
        }
        break;
      }
      case 2: {
        LoadedCache copy = cache.cloned(10), same = full.cloned(11);
        StepInput more(dtype, batch, 2, random);
        ASSERT_EQ(step(copy, more, w, c, false), step(same, more, w, c, true)) << "a clone at step " << steps;
        break;
      }
      case 3:
        if (pick(random, 0, 3) != 0) break;
        ASSERT_EQ(cache.reset(), KVP_OK);
        ASSERT_EQ(full.reset(), KVP_OK);
        longest = 0;
        fresh = true;
        batch = pick(random, 1, 3);
        break;
      default: break;
    }
  }
}

TEST(SameBits, EveryKindGivesThem) {
  for (const Kind& kind : kKinds) {
    for (uint64_t seed = 1; seed <= 30; ++seed) {
      run(kind, seed);
      if (HasFatalFailure()) return;
    }
  }
  EXPECT_EQ(TestHost::get().held(), 0U);
  EXPECT_EQ(TestHost::get().wrong_frees(), 0);
}

// What was evicted, or never arrived, is filled with NaN by the test's host: one that is read shows in every result.
TEST(SameBits, PlanIsWhatIsHeld) {
  for (const Kind& kind : kKinds) {
    for (uint64_t seed = 1; seed <= 30; ++seed) {
      Random random(seed);
      const int64_t window = pick(random, 1, 300), batch = pick(random, 1, 3), tokens = pick(random, 1, kCapacity);
      SCOPED_TRACE(std::string(kind.file) + " " + std::to_string(kind.descriptor) + (kind.disk ? " disk" : "") +
                   ", seed " + std::to_string(seed));
      const Made made(kind, KVP_LAYER_SLIDING, window, kCapacity, kF32);
      const kvp_cache_iface* iface = iface_of(kind);
      kvp_memory plan{};
      plan.struct_size = sizeof plan;
      ASSERT_EQ(iface->plan(&made.args.create, batch, tokens, &plan, nullptr), KVP_OK);
      LoadedCache cache(iface, made.args.create);
      TestHost::get().restart_peak();
      if (pick(random, 0, 1) == 0) {
        ASSERT_EQ(cache.reserve(batch, tokens), KVP_OK);
      }
      for (int64_t done = 0; done < tokens;) {
        const int64_t n = std::min(tokens - done, pick(random, 0, 2) == 0 ? pick(random, 1, 400) : 1);
        step(cache, StepInput(kF32, batch, n, random), 0, 0, false);
        done += n;
      }
      const kvp_memory now = cache.memory();
      for (int tier = 0; tier < KVP_N_TIERS; ++tier) {
        for (int purpose = 0; purpose < KVP_N_PURPOSES; ++purpose) {
          EXPECT_EQ(now.reserved[tier][purpose], plan.reserved[tier][purpose]) << "tier " << tier << ", " << purpose;
          EXPECT_EQ(now.used[tier][purpose], plan.used[tier][purpose]) << "used, tier " << tier << ", " << purpose;
        }
      }
      uint64_t host = 0;
      for (const uint64_t bytes : plan.reserved[KVP_TIER_HOST]) host += bytes;
      EXPECT_EQ(TestHost::get().held(), host);
      EXPECT_LE(TestHost::get().peak(), plan.peak[KVP_TIER_HOST]);
    }
  }
}

}  // namespace
}  // namespace kvplug::test
