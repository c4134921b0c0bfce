// SPDX-License-Identifier: Apache-2.0
// quantized in its default mode over real quantizers, ours and the examples: near dynamic, the same bits however the
// tokens arrive, working memory that does not know the length. (What holds for every kind is kinds_test, over a
// quantizer that loses nothing.)
#include <algorithm>
#include <cmath>

#include "kinds.h"
#include "loaded_quantizer.h"

namespace kvplug::test {
namespace {

constexpr int32_t kHeads = 4, kKvHeads = 2, kDim = 64;
const std::vector<LayerShape> kShapes = {{kHeads, kKvHeads, kDim, kDim}};

struct Backend {
  std::string name, library;
  LoadedQuantizer::Options options;
  double ceiling;  // NMSE of the attention output against dynamic's, Gaussian K/V; half as much again as is measured
  bool attends = true;  // over packed data
};

std::vector<Backend> backends() {
  const auto affine = [](int64_t bits, int64_t axis, int64_t size) {
    return LoadedQuantizer::Options{option("nbits", bits), option("axis", axis), option("q_group_size", size)};
  };
  return {{"hqq 8, along channels", "hqq", affine(8, 1, 64), 1.1e-4},
          {"hqq 4, along channels", "hqq", affine(4, 1, 64), 3.1e-2},
          {"hqq 4, along tokens", "hqq", affine(4, 0, 32), 2.3e-2},
          {"hqq 2, along channels", "hqq", affine(2, 1, 32), 8e-1},
          {"quanto 8, along tokens", "quanto", affine(8, -1, 64), 1.1e-4},
          {"quanto 4, along channels", "quanto", affine(4, 0, 64), 3.4e-2},
          {"fp8 e4m3", "fp8", {}, 3.2e-3},
          {"fp8 e5m2", "fp8", {option("fp8_format", "e5m2")}, 1.1e-2},
          {"fp8 of a head", "fp8", {option("scale_granularity", "head")}, 3.6e-3, false},
          {"fp8 of the tensor", "fp8", {option("scale_granularity", "tensor")}, 4.2e-3, false},
          {"int8 in Rust", "example_quantizer_rust", {}, 1.7e-4, false},
          {"nf4 in C", "example_quantizer_c", {}, 5.4e-2, false}};
}

// K/V and queries of every position.
struct Text {
  Values q, k, v;
  // outlier: what one channel of the keys is away from zero.
  explicit Text(int64_t tokens, uint64_t seed, float outlier = 0)
      : q(make(kF32, {1, kHeads, tokens, kDim})),
        k(make(kF32, {1, kKvHeads, tokens, kDim})),
        v(make(kF32, {1, kKvHeads, tokens, kDim})) {
    Random random(seed);
    std::normal_distribution<float> draw;
    for (const Values* x : {&q, &k, &v}) {
      for (int64_t h = 0; h < x->t.shape[1]; ++h) {
        for (int64_t t = 0; t < tokens; ++t) {
          for (int64_t d = 0; d < kDim; ++d) {
            const float one = draw(random);
            x->set(x == &k && d == 7 ? one + outlier : one, 0, h, t, d);
          }
        }
      }
    }
  }
  static kvp_tensor slice(const Values& x, int64_t first, int64_t n) {
    kvp_tensor t = x.t;
    t.data = static_cast<std::byte*>(t.data) + first * t.strides[2] * 4;
    t.shape[2] = n;
    return t;
  }
};

class Cache {
 public:
  // backend NULL: dynamic.
  explicit Cache(const Backend* backend, int64_t residual = 0, const char* rotation = "none",
                 const Backend* values = nullptr) {
    if (values == nullptr) values = backend;
    CreateArgs args(kShapes, kF32, 1);
    QuantizedArgs given;
    if (backend != nullptr) {
      k_ = std::make_unique<LoadedQuantizer>(backend->library, backend->options, kF32, kDim);
      v_ = std::make_unique<LoadedQuantizer>(values->library, values->options, kF32, kDim, KVP_ROLE_VALUE);
      k_handle_ = {sizeof k_handle_, k_->iface(), k_->self(), "k"};
      v_handle_ = {sizeof v_handle_, v_->iface(), v_->self(), "v"};
      given.integer("residual_length", residual);
      given.text("rotation", rotation);
      args.create.options = given.options.data();
      args.create.n_options = given.options.size();
      args.create.quantizer_key = &k_handle_;
      args.create.quantizer_value = &v_handle_;
    }
    const Kind kind = backend != nullptr ? kQuantized : Kind{"dynamic", "dynamic.so", false, false};
    cache_ = std::make_unique<LoadedCache>(iface_of(kind), args.create);
  }
  LoadedCache& operator*() { return *cache_; }
  LoadedCache* operator->() { return cache_.get(); }

  // Appends the n tokens from `first` on; what their queries answer, [kHeads][n][kDim].
  std::vector<float> step(const Text& text, int64_t first, int64_t n) {
    const kvp_tensor q = Text::slice(text.q, first, n), k = Text::slice(text.k, first, n),
                     v = Text::slice(text.v, first, n);
    const Values out = make(kF32, {1, kHeads, n, kDim});
    kvp_attend_args args{};
    args.struct_size = sizeof args;
    args.flags = KVP_ATTEND_CAUSAL;
    args.q = &q;
    args.k = &k;
    args.v = &v;
    args.scale = 0.125f;
    kvp_tensor to = out.t;
    EXPECT_EQ(cache_->attend(args, &to, nullptr), KVP_OK) << cache_->text();
    std::vector<float> result(static_cast<size_t>(kHeads * n * kDim));
    std::memcpy(result.data(), out.memory->data(), result.size() * sizeof(float));
    return result;
  }

 private:
  std::unique_ptr<LoadedQuantizer> k_, v_;
  kvp_qhandle k_handle_{}, v_handle_{};
  std::unique_ptr<LoadedCache> cache_;
};

double nmse(const std::vector<float>& got, const std::vector<float>& want) {
  double error = 0, power = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double w = static_cast<double>(want[i]), e = static_cast<double>(got[i]) - w;
    error += e * e;
    power += w * w;
  }
  return error / power;
}

TEST(QuantizedPacking, IsNearDynamicWithEveryQuantizer) {
  const Text text(330, 1);
  for (const Backend& backend : backends()) {
    for (const int64_t residual : {0, 4, 128}) {
      SCOPED_TRACE(backend.name + ", residual_length " + std::to_string(residual));
      Cache cache(&backend, residual), exact(nullptr);
      double worst = 0;
      for (int64_t t = 0; t < 330;) {
        const int64_t n = t == 0 ? 200 : t == 200 ? 70 : 1;
        worst = std::max(worst, nmse(cache.step(text, t, n), exact.step(text, t, n)));
        t += n;
      }
      EXPECT_LE(worst, backend.ceiling);
      EXPECT_GT(worst, 0) << "nothing was packed";
      EXPECT_GE(cache->counter("packed_tokens"), residual == 128 ? 160u : 256u);
      EXPECT_EQ(cache->counter("dequantized_tokens") == 0, backend.attends);
    }
  }
}

TEST(QuantizedPacking, AnyChunkingGivesTheSameBits) {
  const Text text(301, 2);
  for (const Backend& backend : backends()) {
    SCOPED_TRACE(backend.name);
    std::vector<float> first;
    for (const std::vector<int64_t>& pieces : {std::vector<int64_t>{300},
                                               {1, 299},
                                               {64, 64, 64, 108},
                                               {17, 5, 128, 50, 100},
                                               std::vector<int64_t>(300, 1)}) {
      Cache cache(&backend, 4);
      int64_t t = 0;
      for (const int64_t n : pieces) cache.step(text, t, n), t += n;
      const std::vector<float> last = cache.step(text, 300, 1);
      if (first.empty()) first = last;
      // A scale that tokens share is made of the first ones that are packed together.
      if (backend.name.rfind("fp8 of", 0) == 0) {
        EXPECT_LE(nmse(last, first), 0.1) << pieces.size() << " pieces";
      } else {
        EXPECT_EQ(last, first) << pieces.size() << " pieces";
      }
    }
  }
}

// Attention over packed data unpacks nothing into memory.
TEST(QuantizedPacking, ScratchDoesNotKnowTheLength) {
  const auto scratch = [](const Backend& backend, int64_t tokens) {
    const Text text(tokens + 1, 3);
    Cache cache(&backend);
    for (int64_t t = 0; t < tokens; t += 256) cache.step(text, t, std::min<int64_t>(256, tokens - t));
    cache.step(text, tokens, 1);
    return cache->memory().reserved[KVP_TIER_HOST][KVP_PURPOSE_SCRATCH];
  };
  for (const Backend& backend : backends()) {
    EXPECT_GT(scratch(backend, 512), 0u) << backend.name;
    EXPECT_EQ(scratch(backend, 512), scratch(backend, 4096)) << backend.name;
  }
}

// A channel that is large in every key spreads its size over the head, so that a code's step is a third.
TEST(QuantizedPacking, RotationQuartersTheErrorOfAnOutlierChannel) {
  const Text text(600, 4, 40);
  const std::vector<Backend> all = backends();
  for (const size_t i : {size_t{1}, size_t{5}}) {  // 4 bits along channels; values of 8 bits add next to nothing
    const Backend& keys = all[i];
    const Backend values{"", keys.library, {option("nbits", 8), keys.options[1], keys.options[2]}, 0};
    Cache plain(&keys, 0, "none", &values), rotated(&keys, 0, "hadamard", &values), exact(nullptr);
    for (Cache* cache : {&plain, &rotated, &exact}) cache->step(text, 0, 500);
    double without = 0, with = 0;
    for (int64_t t = 500; t < 600; ++t) {
      const std::vector<float> want = exact.step(text, t, 1);
      without += nmse(plain.step(text, t, 1), want);
      with += nmse(rotated.step(text, t, 1), want);
    }
    EXPECT_LE(with, without / 4) << keys.name << ": " << with / 100 << " against " << without / 100;
  }
}

// A quantizer that fails leaves the cache as it was: the same call works once it does.
TEST(QuantizedPacking, AFailingQuantizerChangesNothing) {
  const Text text(41, 5);
  ExactQuantizer k, v;
  k.token_block = v.token_block = 4;
  const kvp_qhandle k_handle = k.handle(), v_handle = v.handle();
  const Kind& kind = kQuantized;
  CreateArgs args(kShapes, kF32, 1);
  QuantizedArgs given;
  given.integer("residual_length", 0);
  args.create.options = given.options.data();
  args.create.n_options = given.options.size();
  args.create.quantizer_key = &k_handle;
  args.create.quantizer_value = &v_handle;
  LoadedCache cache(iface_of(kind), args.create);
  const auto append = [&](int64_t first, int64_t n) {
    const kvp_tensor tk = Text::slice(text.k, first, n), tv = Text::slice(text.v, first, n);
    kvp_update_args update{};
    update.struct_size = sizeof update;
    update.k = &tk;
    update.v = &tv;
    kvp_tensor view_k{}, view_v{};
    return cache.update(update, &view_k, &view_v);
  };
  ASSERT_EQ(append(0, 18), KVP_OK) << cache.text();
  const uint64_t packed = cache.counter("packed_tokens");
  for (ExactQuantizer* broken : {&k, &v}) {
    broken->fails = true;
    EXPECT_EQ(append(18, 22), KVP_IO);
    EXPECT_NE(cache.text().find("the test said no"), std::string::npos) << cache.text();
    EXPECT_EQ(cache.lengths(0, 0).seen, 18);
    EXPECT_EQ(cache.counter("packed_tokens"), packed);
    broken->fails = false;
  }
  ASSERT_EQ(append(18, 22), KVP_OK) << cache.text();
  kvp_update_args look{};
  look.struct_size = sizeof look;
  kvp_tensor view_k{}, view_v{};
  ASSERT_EQ(cache.update(look, &view_k, &view_v), KVP_OK) << cache.text();
  const Values shown{nullptr, view_k};
  for (int64_t t = 0; t < 40; ++t) {
    for (int64_t d = 0; d < kDim; ++d) ASSERT_EQ(shown.get(0, 1, t, d), text.k.get(0, 1, t, d)) << t << ' ' << d;
  }
}

}  // namespace
}  // namespace kvplug::test
