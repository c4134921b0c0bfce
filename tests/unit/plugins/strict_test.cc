// SPDX-License-Identifier: Apache-2.0
// quantized with hf_compat = "strict", beside the recorded results and the random sequences: what is packed, refused
// and told, and over the built-in quantizers that rows and clones keep out of each other's way and plans hold.
#include <gtest/gtest.h>

#include <memory>

#include "strict_given.h"

namespace kvplug::test {
namespace {

// Slots that a row does not have are nothing when they are packed, whatever unpacking made of them.
TEST(Strict, WhatARowDoesNotHaveIsPackedAsZeros) {
  Given given({kShapes[0]}, kF32, false, {option("residual_length", int64_t{0})});
  given.k.off = given.v.off = 1;
  LoadedCache cache(iface(), given.create);
  Random random(3);
  const auto append = [&](int64_t tokens, const std::vector<int64_t>& count) {
    const Values k = tokens_of(kShapes[0], true, 3, tokens, random),
                 v = tokens_of(kShapes[0], false, 3, tokens, random);
    ASSERT_EQ(cache.update(0, k, v, nullptr, count.data(), nullptr, nullptr), KVP_OK) << cache.text();
  };
  append(9, {9, 4, 0});
  append(1, {1, 1, 0});
  ASSERT_EQ(cache.gather({0, 1, -1}), KVP_OK) << cache.text();
  append(2, {2, 0, 0});
  const int64_t ends[] = {12, 5, 0};
  for (const Values* packed : {&given.k.last, &given.v.last}) {
    ASSERT_EQ(packed->t.shape[2], 12);
    for (int64_t b = 0; b < 3; ++b) {
      for (int64_t h = 0; h < 2; ++h) {
        for (int64_t t = ends[b]; t < 12; ++t) ASSERT_EQ(packed->get(b, h, t, 0), 0) << b << ' ' << h << ' ' << t;
      }
    }
  }
}

// The second layer's tokens fit no groups: the first, which could have them, has not got them when that is told.
TEST(Strict, ALengthThatALaterLayerCannotPackIsRefusedByTheFirst) {
  for (const bool appends : {false, true}) {
    Given given({{4, 2, 8, 4}, {1, 1, 8, 4}}, kF32, appends, {option("residual_length", int64_t{0})});
    given.k.multiple = 4;  // tokens of all heads
    LoadedCache cache(iface(), given.create);
    Random random(3);
    const auto append = [&](int32_t layer, int64_t tokens) {
      const LayerShape s{0, layer == 0 ? 2 : 1, 8, 4};
      return cache.update(layer, tokens_of(s, true, 1, tokens, random), tokens_of(s, false, 1, tokens, random), nullptr,
                          nullptr, nullptr, nullptr);
    };
    for (const int64_t before : {0, 8}) {
      EXPECT_EQ(append(0, 2), KVP_INVALID_ARGUMENT);
      EXPECT_NE(cache.text().find("the length fits no groups"), std::string::npos) << cache.text();
      EXPECT_EQ(cache.lengths(0, 0).seen, before);
      if (before > 0) break;
      ASSERT_EQ(append(0, 8), KVP_OK) << cache.text();
      ASSERT_EQ(append(1, 8), KVP_OK) << cache.text();
    }
    ASSERT_EQ(append(0, 4), KVP_OK) << cache.text();
    ASSERT_EQ(append(1, 4), KVP_OK) << cache.text();
  }
}

// A quantizer that fails in a later layer: that layer has none of the step's tokens, those before it keep theirs.
TEST(Strict, AFailureLeavesItsLayerAndSaysWhoFailed) {
  Given given(kShapes, kF32, false, {option("residual_length", int64_t{0})});
  LoadedCache cache(iface(), given.create);
  Random random(3);
  const auto append = [&](int32_t layer) {
    const LayerShape& s = kShapes[static_cast<size_t>(layer)];
    return cache.update(layer, tokens_of(s, true, 2, 3, random), tokens_of(s, false, 2, 3, random), nullptr, nullptr,
                        nullptr, nullptr);
  };
  ASSERT_EQ(append(0), KVP_OK);
  ASSERT_EQ(append(1), KVP_OK);
  for (const char* verb : {"failed to pack", "failed to unpack"}) {
    (verb[10] == 'p' ? given.v.pack_fails : given.v.unpack_fails) = 2;
    ASSERT_EQ(append(0), KVP_OK) << cache.text();
    EXPECT_EQ(append(1), KVP_IO);
    EXPECT_NE(cache.text().find(std::string("quantizer 'whole' ") + verb), std::string::npos) << cache.text();
    EXPECT_EQ(cache.lengths(1, 0).seen, cache.lengths(0, 0).seen - 3);
    EXPECT_EQ(cache.crop({3}, KVP_CALL_CHECK), KVP_UNSUPPORTED);
    ASSERT_EQ(append(1), KVP_OK) << cache.text();
  }
}

// Everything that is known at creation is refused there, by probe and plan too.
TEST(Strict, RefusesAtCreation) {
  struct Case {
    std::vector<kvp_option> options;
    void (*change)(Given&);
    int32_t status;
    const char* words;
  };
  const auto nothing = [](Given&) {};
  const Case cases[] = {
      {{option("sink_tokens", int64_t{1})}, nothing, KVP_INVALID_ARGUMENT, "option 'sink_tokens'"},
      {{option("quantized_kv_start", int64_t{1})}, nothing, KVP_INVALID_ARGUMENT, "option 'quantized_kv_start'"},
      {{option("rotation", "hadamard")}, nothing, KVP_INVALID_ARGUMENT, "option 'rotation'"},
      {{option("residual_length", int64_t{-1})}, nothing, KVP_INVALID_ARGUMENT, "residual_length"},
      {{option("fused_attention", "required")}, nothing, KVP_UNSUPPORTED, "fused_attention"},
      {{}, [](Given& g) { g.create.rollback = 1; }, KVP_UNSUPPORTED, "takes no tokens back"},
      {{}, [](Given& g) { g.create.quantizer_value = nullptr; }, KVP_INVALID_ARGUMENT, "a quantizer for values"},
      {{}, [](Given& g) { g.v.flags = 0; }, KVP_UNSUPPORTED, "'whole' has not"},
      {{}, [](Given& g) { g.k.dtype = kF16; }, KVP_INVALID_ARGUMENT, "was made for float16; K and V are float32"},
      {{}, [](Given& g) { g.k.appends = true; }, KVP_UNSUPPORTED, "layer 0 (layer 0 of the model): one of the"},
      {{}, [](Given& g) { g.v.token_block = 2; }, KVP_INVALID_ARGUMENT, "token_block of 2"},
      {{}, [](Given& g) { g.v.multiple = INT64_MAX; }, KVP_INVALID_ARGUMENT, "the length fits no groups"},
      {{}, [](Given& g) { g.layers[1].kind = KVP_LAYER_CROSS; }, KVP_UNSUPPORTED, "layer 1"},
      {{}, [](Given& g) { g.layers[1].kind = KVP_LAYER_SLIDING, g.layers[1].window = 8; }, KVP_UNSUPPORTED, "layer 1"}};
  for (const Case& each : cases) {
    SCOPED_TRACE(each.words);
    Given given(kShapes, kF32, false, each.options);
    each.change(given);
    expect_refused(iface(), given.create, each.status, {each.words});
  }
}

TEST(Strict, LeavesAttentionToTheHost) {
  Given given;
  kvp_cache_info info{};
  info.struct_size = sizeof info;
  ASSERT_EQ(iface()->probe(&given.create, &info, nullptr), KVP_OK);
  EXPECT_NE(info.flags & KVP_CACHE_NO_ATTEND, 0u);
  LoadedCache cache(iface(), given.create);
  kvp_attend_desc desc{};
  desc.struct_size = sizeof desc;
  EXPECT_EQ(cache.attend_probe(desc), KVP_UNSUPPORTED);
  EXPECT_NE(cache.text().find("\"fixed\", the default, attends over packed ones"), std::string::npos) << cache.text();
  kvp_tensor out{};
  EXPECT_EQ(cache.attend({}, &out, nullptr), KVP_UNSUPPORTED);
}

// The built-in quantizers.
struct BuiltIn : CreateArgs {
  std::unique_ptr<LoadedQuantizer> k, v;
  kvp_qhandle handles[2];
  std::vector<kvp_option> options = {option("hf_compat", "strict")};

  BuiltIn(const std::string& name, LoadedQuantizer::Options given, int64_t residual, const LayerShape& s)
      : CreateArgs({s}, kF32, 1) {
    given.push_back(option("hf_compat", "strict"));
    k = std::make_unique<LoadedQuantizer>(name, given, kF32, s.key_dim);
    v = std::make_unique<LoadedQuantizer>(name, given, kF32, s.value_dim, KVP_ROLE_VALUE);
    handles[0] = {sizeof(kvp_qhandle), k->iface(), k->self(), "k"};
    handles[1] = {sizeof(kvp_qhandle), v->iface(), v->self(), "v"};
    if (residual >= 0) options.push_back(option("residual_length", residual));
    create.quantizer_key = &handles[0];
    create.quantizer_value = &handles[1];
    create.options = options.data();
    create.n_options = options.size();
  }
};

struct Backend {
  const char* name;
  LoadedQuantizer::Options options;
  int64_t residual;
  bool pairs = false;  // of one head, only an even number of tokens fits
};
std::vector<Backend> backends() {
  const auto affine = [](int64_t axis, int64_t size) {
    return LoadedQuantizer::Options{option("nbits", int64_t{4}), option("axis", axis), option("q_group_size", size)};
  };
  return {{"quanto", affine(0, 16), 4},
          {"quanto", affine(-1, 2), 4, true},
          {"hqq", affine(1, 16), 4, true},
          {"fp8", {}, -1}};
}

class Strand {
 public:
  explicit Strand(LoadedCache&& cache) : cache_(std::move(cache)) {}
  LoadedCache& operator*() { return cache_; }
  // Appends and returns what is shown, K then V.
  std::vector<float> append(const Values& k, const Values& v) {
    kvp_tensor out_k{}, out_v{};
    EXPECT_EQ(cache_.update(0, k, v, nullptr, nullptr, &out_k, &out_v), KVP_OK) << cache_.text();
    std::vector<float> shown;
    for (const kvp_tensor& t : {out_k, out_v}) {
      const auto* at = static_cast<const float*>(t.data);
      shown.insert(shown.end(), at, at + t.shape[0] * t.shape[1] * t.shape[2] * t.shape[3]);
    }
    return shown;
  }

 private:
  LoadedCache cache_;
};

Values reordered(const Values& from, const std::vector<int64_t>& src) {
  const int64_t* s = from.t.shape;
  Values to = make(kF32, {static_cast<int64_t>(src.size()), s[1], s[2], s[3]});
  for (size_t b = 0; b < src.size(); ++b) {
    for (int64_t h = 0; h < s[1]; ++h) {
      for (int64_t t = 0; t < s[2]; ++t) {
        for (int64_t d = 0; d < s[3]; ++d) to.set(from.get(src[b], h, t, d), static_cast<int64_t>(b), h, t, d);
      }
    }
  }
  return to;
}

const LayerShape kWide{4, 2, 16, 32};

// No group is made of two rows here, so rows in another order are the same numbers in another order.
TEST(Strict, GatherIsTheSameAsRowsInAnotherOrder) {
  const std::vector<int64_t> src = {2, 0, 1};
  for (const Backend& backend : backends()) {
    if (std::string(backend.name) == "hqq") continue;  // its solver stops by a mean over all rows
    SCOPED_TRACE(backend.name);
    const BuiltIn args(backend.name, backend.options, backend.residual, kWide);
    Strand moved(LoadedCache(iface(), args.create)), other(LoadedCache(iface(), args.create));
    Random random(8);
    for (int step = 0; step < 16; ++step) {
      const int64_t tokens = step == 0 ? 10 : 1;
      const Values k = tokens_of(kWide, true, 3, tokens, random), v = tokens_of(kWide, false, 3, tokens, random);
      // Step 6: in the middle of the residual, all that was packed having come in the old order.
      if (step == 6) {
        ASSERT_EQ((*moved).gather(src), KVP_OK) << (*moved).text();
      }
      const std::vector<float> got = step < 6 ? moved.append(k, v) : moved.append(reordered(k, src), reordered(v, src));
      const std::vector<float> want = other.append(reordered(k, src), reordered(v, src));
      if (step < 6) continue;
      ASSERT_EQ(got, want) << "step " << step;
    }
  }
}

// A clone and what it was made of go on with tokens of their own, each as one that had nothing beside it.
TEST(Strict, ClonesGoOnAlone) {
  for (const Backend& backend : backends()) {
    for (const int before : {0, 1, 3, 5}) {  // steps
      SCOPED_TRACE(std::string(backend.name) + ", cloned after " + std::to_string(before));
      const BuiltIn args(backend.name, backend.options, backend.residual, kWide);
      Strand first(LoadedCache(iface(), args.create)), alone_a(LoadedCache(iface(), args.create)),
          alone_b(LoadedCache(iface(), args.create));
      Random random(8);
      const auto draw = [&](bool keys, int step) { return tokens_of(kWide, keys, 2, step == 0 ? 10 : 1, random); };
      for (int step = 0; step < before; ++step) {
        const Values k = draw(true, step), v = draw(false, step);
        for (Strand* each : {&first, &alone_a, &alone_b}) each->append(k, v);
      }
      Strand copy((*first).cloned(9));
      for (int step = before; step < 12; ++step) {
        const Values k = draw(true, step), v = draw(false, step), other_k = draw(true, step),
                     other_v = draw(false, step);
        ASSERT_EQ(first.append(k, v), alone_a.append(k, v)) << "step " << step;
        ASSERT_EQ(copy.append(other_k, other_v), alone_b.append(other_k, other_v)) << "step " << step;
      }
    }
  }
  EXPECT_EQ(TestHost::get().held(), 0u);
}

// Packed as they come (no residual), tokens are held in what plan said to the byte; else in no more, and the way there
// stays within the peak. One token may be one group, which has more scales than two.
TEST(Strict, PlansHold) {
  for (const Backend& backend : backends()) {
    for (const int64_t residual : {int64_t{0}, backend.residual}) {
      for (const LayerShape& s : {kWide, LayerShape{1, 1, 16, 16}}) {
        for (const int64_t step : {s.kv_heads == 1 && backend.pairs ? 2 : 1, 2, 6}) {
          const BuiltIn args(backend.name, backend.options, backend.residual < 0 ? -1 : residual, s);
          TestHost::get().restart_peak();
          LoadedCache cache(iface(), args.create);
          Random random(8);
          for (int64_t tokens = step; tokens <= 24; tokens += step) {
            SCOPED_TRACE(std::string(backend.name) + ", residual " + std::to_string(residual) + ", " +
                         std::to_string(step) + " a step, " + std::to_string(tokens) + " tokens");
            ASSERT_EQ(cache.update(0, tokens_of(s, true, 1, step, random), tokens_of(s, false, 1, step, random),
                                   nullptr, nullptr, nullptr, nullptr),
                      KVP_OK)
                << cache.text();
            const kvp_memory plan = plan_of(kQuantized, args.create, 1, tokens);
            for (const int32_t purpose : {KVP_PURPOSE_PACKED, KVP_PURPOSE_SCALES, KVP_PURPOSE_RESIDUAL}) {
              const uint64_t held = TestHost::get().held(1, purpose), planned = plan.reserved[KVP_TIER_HOST][purpose];
              EXPECT_LE(held, planned) << "purpose " << purpose;
              if (purpose == KVP_PURPOSE_SCALES || residual > 0) continue;
              EXPECT_EQ(held, planned) << "purpose " << purpose;
            }
            EXPECT_LE(TestHost::get().peak(), plan.peak[KVP_TIER_HOST]);
          }
          if (HasFailure()) return;
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvplug::test
