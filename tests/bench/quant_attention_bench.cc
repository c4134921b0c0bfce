// SPDX-License-Identifier: Apache-2.0
// Attention over packed K/V beside our own over bfloat16 and a plain read of the same bytes, in one run: every sample
// takes one layer of each case in turn, so that a slow moment of the machine meets all of them. Medians. "cold" walks
// through 128 MiB a case, "hot" repeats one layer. Every case checks its answer. One JSON object a line on stdout.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ggml_attention.h"
#include "kv_case.h"
#include "pool.h"
#include "torch_attention.h"

namespace {

namespace sdk = kvplug::sdk;
using namespace kvplug::bench;

struct Stream {
  const unsigned char* data;
  std::atomic<uint64_t> sum{0};
};

// Four streams at a time: one would not keep enough lines in flight.
#if defined(__x86_64__)
__attribute__((target("avx2")))
#endif
void read_all(void* arg, int64_t begin, int64_t end, int32_t) {
  typedef uint64_t Wide __attribute__((vector_size(32), may_alias));
  constexpr int64_t kChunk = 4096 / sizeof(Wide);
  Stream& s = *static_cast<Stream*>(arg);
  const int64_t quarter = (end - begin) / 4 * kChunk;
  Wide a = {}, b = {}, c = {}, d = {};
  const auto* p = reinterpret_cast<const Wide*>(s.data + begin * 4096);
  for (int64_t i = 0; i < quarter; ++i) {
    a += p[i], b += p[i + quarter], c += p[i + 2 * quarter], d += p[i + 3 * quarter];
  }
  a += b + c + d;
  s.sum += a[0] + a[1] + a[2] + a[3];
}

// Plain reads of as many bytes as a case has.
struct Read : Case {
  const Buffer* from;
  Read(const Case& of, const Buffer* memory) : from(memory) {
    name = "read " + of.name + " bytes", s = of.s, bytes = of.bytes, layers = of.layers;
  }
  bool attend(size_t layer, const kvp_host_parallel* parallel) override {
    Stream stream = {from->data + layer * bytes};
    parallel->parallel_for(parallel->ctx, static_cast<int64_t>(bytes / 4096), 1, read_all, &stream);
    return stream.sum != 1;
  }
  double worst() const override { return 0; }
};

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}

// x_first, x_first_rate: time of the first case over that of this one, bytes a second over those of the first.
bool measure(const char* what, const std::vector<std::unique_ptr<Case>>& cases, int samples, int32_t workers) {
  auto pool = std::make_unique<Pool>(workers);
  std::vector<std::vector<double>> times(cases.size());
  for (int i = -2; i < samples; ++i) {
    for (size_t c = 0; c < cases.size(); ++c) {
      const size_t layer = static_cast<size_t>(i + 2) % cases[c]->layers;
      if (cases[c]->own_threads) pool.reset();
      if (!cases[c]->wake()) return false;
      const double t = seconds();
      if (!cases[c]->attend(layer, pool != nullptr ? pool->table() : nullptr)) return false;
      if (i >= 0) times[c].push_back(seconds() - t);
      if (pool != nullptr) continue;
      std::this_thread::sleep_for(
          std::chrono::milliseconds(5));  // until the other threads have stopped to wait for work
      pool = std::make_unique<Pool>(workers);
    }
  }
  bool right = true;
  for (size_t c = 0; c < cases.size(); ++c) {
    const double t = median(times[c]), worst = cases[c]->worst(), bytes = static_cast<double>(cases[c]->bytes);
    const Shape& s = cases[c]->s;
    std::vector<double> over_first;  // of a turn each: what slows a machine down for a while slows both
    for (size_t i = 0; i < times[c].size(); ++i) over_first.push_back(times[0][i] / times[c][i]);
    right = right && worst < 0.002;  // a tenth of the largest outputs
    std::printf(
        "{\"what\": \"%s\", \"case\": \"%s\", \"q_heads\": %lld, \"kv_heads\": %lld, \"dim\": %lld, \"context\": %lld, "
        "\"queries\": %lld, \"threads\": %d, \"level\": \"%s\", \"bytes\": %zu, \"median_ms\": %.4f, \"min_ms\": %.4f, "
        "\"GB/s\": %.2f, \"x_first\": %.2f, \"x_first_rate\": %.2f, \"worst\": %.2g",
        what, cases[c]->name.c_str(), static_cast<long long>(s.q_heads), static_cast<long long>(s.kv_heads),
        static_cast<long long>(s.dim), static_cast<long long>(s.context), static_cast<long long>(s.queries), workers,
        sdk::attend_level(), cases[c]->bytes, t * 1e3, *std::min_element(times[c].begin(), times[c].end()) * 1e3,
        bytes / t * 1e-9, median(over_first), median(over_first) * bytes / static_cast<double>(cases[0]->bytes), worst);
    if (cases[c]->ours != nullptr) {
      size_t o = 0;
      while (cases[o].get() != cases[c]->ours) ++o;
      std::vector<double> faster;
      for (size_t i = 0; i < times[c].size(); ++i) faster.push_back(times[c][i] / times[o][i]);
      std::printf(", \"ours\": \"%s\", \"ours_faster\": %.2f", cases[o]->name.c_str(), median(faster));
    }
    std::puts("}");
    std::fflush(stdout);
  }
  return right;
}

#if defined(KVPLUG_BENCH_TORCH)
// LibTorch over K and V of another case.
struct Torch : Common {
  Plain* from;
  int32_t threads;
  Torch(Plain* plain, int32_t workers) : Common(plain->s), from(plain), threads(workers) {
    name = "LibTorch bf16", bytes = plain->bytes, layers = plain->layers, own_threads = true;
  }
  bool attend(size_t layer, const kvp_host_parallel*) override {
    // Not the layer that was just read.
    unsigned char* k = from->kv.data + (layer + layers / 2) % layers * bytes;
    kvplug::bench::torch_attention(from->q16.data, k, k + bytes / 2, s.q_heads, s.kv_heads, s.context, s.dim, threads,
                                   reinterpret_cast<float*>(out.data));
    return true;
  }
  bool wake() override {
    kvplug::bench::torch_attention(from->q16.data, from->kv.data, from->kv.data, s.q_heads, s.kv_heads, 1, s.dim,
                                   threads, reinterpret_cast<float*>(out.data));
    return true;
  }
  double worst() const override { return from->worst_in(out); }
};
#endif

#if defined(KVPLUG_BENCH_GGML)
// ggml over K and V of its own, head after head, which is the order it is fastest in.
struct Ggml : Common {
  Buffer kv;
  std::unique_ptr<GgmlAttention> ggml;

  static GgmlAttention::Shape shape_of(const Shape& x) { return {x.q_heads, x.kv_heads, x.context, x.dim}; }
  Ggml(const Case& mine, int32_t bits, const Shape& x, int32_t workers)
      : Common(x), kv(GgmlAttention::layer_bytes(bits, shape_of(x)) * mine.layers) {
    name = "ggml " + GgmlAttention::type(bits), bytes = GgmlAttention::layer_bytes(bits, shape_of(x));
    layers = mine.layers, own_threads = true, ours = &mine;
    std::vector<float> values(static_cast<size_t>(2 * s.kv_heads * s.context * s.dim));
    for (size_t i = 0; i < values.size(); ++i) values[i] = value_at(i);
    ggml = std::make_unique<GgmlAttention>(bits, shape_of(x), layers, workers, values, reinterpret_cast<char*>(kv.data),
                                           reinterpret_cast<float*>(q.data), reinterpret_cast<float*>(out.data));
  }
  bool attend(size_t layer, const kvp_host_parallel*) override { return ggml->attend(layer); }
  bool wake() override { return ggml->wake(); }
  double worst() const override {
    const std::vector<float> held = ggml->held();
    return worst_of(s, reinterpret_cast<const float*>(q.data), reinterpret_cast<const float*>(out.data),
                    [&](bool v, int64_t h, int64_t t, int64_t d) {
                      const size_t i = static_cast<size_t>((h * s.context + t) * s.dim + d);
                      return static_cast<double>(held[v ? held.size() / 2 + i : i]);
                    });
  }
};
#endif

// How many layers of a shape make `walk` bytes.
size_t layers_of(const Shape& s, double bits_per_element, size_t walk) {
  const double layer = static_cast<double>(2 * s.kv_heads * s.context * s.dim) * bits_per_element / 8;
  return std::max<size_t>(1, static_cast<size_t>(static_cast<double>(walk) / layer));
}

// All cases of a shape over `walk` bytes each; the first is what the others are compared with.
bool compare(const char* what, const Shape& s, size_t walk, int samples, int32_t workers, std::vector<int32_t> bits) {
  const auto layers = [&](double bits_per_element) { return layers_of(s, bits_per_element, walk); };
  std::vector<std::unique_ptr<Case>> cases;
  const auto add_ggml = [&]([[maybe_unused]] int32_t b) {  // beside the case that was just added
#if defined(KVPLUG_BENCH_GGML)
    if (s.queries != 1 || (b != 16 && b != 8 && b != 4)) return;  // its types
    cases.push_back(std::make_unique<Ggml>(*cases.back(), b, s, workers));
#endif
  };
  auto bf16 = std::make_unique<Plain>(s, kB16, layers(16), workers);
  auto read = std::make_unique<Read>(*bf16, &bf16->kv);
  [[maybe_unused]] Plain* const plain = bf16.get();
  cases.push_back(std::move(bf16));
#if defined(KVPLUG_BENCH_TORCH)
  if (s.queries == 1) cases.push_back(std::make_unique<Torch>(plain, workers));
#endif
  if (s.queries == 1) {
    cases.push_back(std::move(read));
    cases.push_back(std::make_unique<Plain>(s, kF16, layers(16), workers));
    add_ggml(16);
  }
  for (const int32_t b : bits) {
    auto packed = std::make_unique<Packed>(s, b, KVP_GROUP_HEAD_DIM, layers(b + 0.5), workers);
    auto stream = std::make_unique<Read>(*packed, packed->kv.get());
    cases.push_back(std::move(packed));
    add_ggml(b);
    if (s.queries == 1) cases.push_back(std::move(stream));
    cases.push_back(std::make_unique<Packed>(s, b, KVP_GROUP_TOKENS, layers(b + 0.5), workers));
  }
  cases.push_back(std::make_unique<Packed>(s, 8, KVP_GROUP_HEAD_DIM, layers(8.1), workers, KVP_FORMAT_FP8_E4M3));
  return measure(what, cases, samples, workers);
}

// Each way to hold K/V at several head_dims, beside that of 128.
bool compare_dims(size_t walk, int samples, int32_t workers) {
  const auto each = [&](double bits_per_element, auto make) {
    std::vector<std::unique_ptr<Case>> cases;
    for (const int64_t dim : {128, 64, 80, 96, 192, 256}) {
      const Shape s = {32, 8, dim, 8192, 1};
      cases.push_back(make(s, layers_of(s, bits_per_element, walk)));
    }
    return measure("dims", cases, samples, workers);
  };
  bool right = each(16, [&](const Shape& s, size_t n) { return std::make_unique<Plain>(s, kB16, n, workers); });
  for (const int32_t bits : {8, 4, 2}) {
    for (const int32_t key_groups : {KVP_GROUP_HEAD_DIM, KVP_GROUP_TOKENS}) {
      right &= each(bits + 0.5, [&](const Shape& s, size_t n) {
        return std::make_unique<Packed>(s, bits, key_groups, n, workers);
      });
    }
  }
  return each(8.1,
              [&](const Shape& s, size_t n) {
                return std::make_unique<Packed>(s, 8, KVP_GROUP_HEAD_DIM, n, workers, KVP_FORMAT_FP8_E4M3);
              }) &&
         right;
}

}  // namespace

int main(int argc, char** argv) {
  if (const char* level = std::getenv("KVPLUG_ATTEND_LEVEL"); level != nullptr && !sdk::set_attend_level(level)) {
    std::fprintf(stderr, "this CPU does not run level %s\n", level);
    return 1;
  }
  const std::string only = argc > 1 ? argv[1] : "";
  if (argc > 2 || (argc == 2 && only != "cold" && only != "hot" && only != "dims" && only != "prefill")) {
    std::fprintf(stderr, "quant_attention_bench: give one of cold, hot, dims, prefill; or nothing for all of them\n");
    return 1;
  }
  const auto wanted = [&](const char* what) { return only.empty() || only == what; };
  constexpr size_t kWalk = size_t{1} << 30;
  bool right = true;
  if (wanted("cold")) right &= compare("cold", {32, 8, 128, 8192, 1}, kWalk / 8, 100, 2, {8, 4, 3, 2, 1});
  if (wanted("hot")) right &= compare("hot", {32, 8, 128, 8192, 1}, 0, 40, 2, {8, 4, 3, 2, 1});
  if (wanted("dims")) right &= compare_dims(kWalk / 8, 60, 2);
  if (wanted("prefill")) right &= compare("prefill", {32, 8, 128, 4096, 512}, 0, 3, 2, {8, 4});
  if (!right) std::fprintf(stderr, "wrong answer\n");
  return right ? 0 : 1;
}
