// SPDX-License-Identifier: Apache-2.0
// The fused attention beside what bounds it, in one run: decode beside a plain read of the same bytes, prefill beside
// the multiply-add peak of the cores. Both sides alternate and the minimum of each counts. Every case checks its
// answer. "cold" walks through more K/V than the last-level cache holds, "hot" repeats one layer.
#include <benchmark/benchmark.h>
#include <kvplug/sdk/attention.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "buffer.h"
#include "pool.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace {

namespace sdk = kvplug::sdk;
constexpr kvp_dtype kF32 = {KVP_DTYPE_FLOAT, 32, 1}, kF16 = {KVP_DTYPE_FLOAT, 16, 1}, kB16 = {KVP_DTYPE_BFLOAT, 16, 1};
constexpr size_t kColdBytes = size_t{640} << 20;

using kvplug::bench::Buffer;
using kvplug::bench::Pool;
using kvplug::bench::seconds;
using kvplug::bench::tensor_of;

void encode(kvp_dtype t, float x, unsigned char* to) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  if (t.bits == 32) {
    std::memcpy(to, &u, 4);
  } else {  // the values used here are exact in both types
    const uint16_t h =
        t.code == KVP_DTYPE_BFLOAT
            ? static_cast<uint16_t>(u >> 16)
            : static_cast<uint16_t>(u == 0 ? 0 : (u >> 16 & 0x8000) | ((u & 0x7fffffff) - 0x38000000) >> 13);
    std::memcpy(to, &h, 2);
  }
}

float value_at(uint64_t i) {  // a multiple of 1/64 in [-1, 1): exact in every type
  i = (i + 1) * 0x9e3779b97f4a7c15ull;
  return static_cast<float>(static_cast<int64_t>(i >> 57) - 64) / 64;
}

struct Case {
  int64_t q_heads, kv_heads, dim, context, queries;
  kvp_dtype dtype;
};

// `layers` copies of one layer's K/V, head-major, and all that a call needs.
struct Layers {
  Case c;
  size_t side;  // bytes of K of one layer
  Buffer kv, q, out, scratch;
  size_t scratch_bytes;
  sdk::AttendShape shape;
  std::vector<std::vector<sdk::KvBlock>> blocks;
  sdk::AttendRow row = {};
  kvp_tensor tq, tout;

  static sdk::AttendShape shape_of(const Case& c) {
    return {1, c.q_heads, c.kv_heads, c.queries, c.dim, c.dim, c.dtype};
  }

  Layers(const Case& k, size_t layers, int32_t workers)
      : c(k),
        side(static_cast<size_t>(c.kv_heads * c.context * c.dim * c.dtype.bits / 8)),
        kv(2 * side * layers),
        q(static_cast<size_t>(c.q_heads * c.queries * c.dim * 4)),
        out(static_cast<size_t>(c.q_heads * c.queries * c.dim * 4)),
        scratch(sdk::attend_scratch_bytes(shape_of(c), workers)),
        scratch_bytes(sdk::attend_scratch_bytes(shape_of(c), workers)),
        shape(shape_of(c)) {
    const size_t size = c.dtype.bits / 8;
    for (size_t i = 0; i < 2 * side / size; ++i) encode(c.dtype, value_at(i), kv.data + i * size);
    for (size_t l = 1; l < layers; ++l) std::memcpy(kv.data + 2 * side * l, kv.data, 2 * side);
    for (size_t i = 0; i < static_cast<size_t>(c.q_heads * c.queries * c.dim); ++i) {
      encode(c.dtype, value_at(i * 3 + 7), q.data + i * size);
    }
    blocks.resize(layers);
    for (size_t l = 0; l < layers; ++l) {
      for (int64_t t = 0; t < c.context; t += sdk::kBlockTokens) {
        const unsigned char* at = kv.data + 2 * side * l + static_cast<size_t>(t * c.dim) * size;
        blocks[l].push_back({at, at + side, c.context * c.dim, c.dim, c.context * c.dim, c.dim});
      }
    }
    row.kv_end = c.context;
    row.q_position = c.context - c.queries;
    row.q_count = c.queries;
    tq = tensor_of(q.data, c.dtype, {1, c.q_heads, c.queries, c.dim});
    tout = tensor_of(out.data, kF32, {1, c.q_heads, c.queries, c.dim});
  }

  kvp_status attend(size_t layer, const kvp_host_parallel* parallel) {
    row.blocks = blocks[layer].data();
    sdk::AttendCall call = {};
    call.q = &tq, call.out = &tout, call.rows = &row;
    call.scale = 1 / std::sqrt(static_cast<float>(c.dim)), call.causal = true;
    return sdk::attend(shape, call, parallel, scratch.data, scratch_bytes);
  }

  // The worst difference of some outputs from a plain computation, relative to the values' size.
  double worst() const {
    double bad = 0;
    const int64_t group = c.q_heads / c.kv_heads;
    for (int64_t h = 0; h < c.q_heads; h += std::max<int64_t>(1, c.q_heads - 1)) {
      for (int64_t i = 0; i < c.queries; i += std::max<int64_t>(1, c.queries - 1)) {
        const uint64_t head = static_cast<uint64_t>(h / group * c.context * c.dim), dim = static_cast<uint64_t>(c.dim);
        const uint64_t query = static_cast<uint64_t>((h * c.queries + i) * c.dim), values = side / (c.dtype.bits / 8);
        std::vector<double> o(dim);
        double sum = 0;
        for (uint64_t j = 0; j <= static_cast<uint64_t>(row.q_position + i); ++j) {
          double s = 0;
          for (uint64_t d = 0; d < dim; ++d) {
            s += static_cast<double>(value_at((query + d) * 3 + 7)) * static_cast<double>(value_at(head + j * dim + d));
          }
          const double w = std::exp(s / std::sqrt(static_cast<double>(c.dim)));
          sum += w;
          for (uint64_t d = 0; d < dim; ++d) o[d] += w * static_cast<double>(value_at(values + head + j * dim + d));
        }
        for (uint64_t d = 0; d < dim; ++d) {
          const float got = reinterpret_cast<const float*>(out.data)[query + d];
          bad = std::max(bad, std::fabs(static_cast<double>(got) - o[d] / sum));
        }
      }
    }
    return bad;
  }
};

struct Stream {
  const unsigned char* data;
  int64_t bytes;
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
  const int64_t quarter = (end - begin) / 4;
  Wide a = {}, b = {}, c = {}, d = {}, e = {}, f = {}, g = {}, h = {};
  const auto* p = reinterpret_cast<const Wide*>(s.data + begin * 4096);
  const Wide *q = p + quarter * kChunk, *r = q + quarter * kChunk, *t = r + quarter * kChunk;
  for (int64_t i = 0; i < quarter * kChunk; i += 2) {
    a += p[i], b += p[i + 1], c += q[i], d += q[i + 1];
    e += r[i], f += r[i + 1], g += t[i], h += t[i + 1];
  }
  a += b + c + d + e + f + g + h;
  for (const Wide* rest = t + quarter * kChunk; rest < p + (end - begin) * kChunk; ++rest) a += *rest;
  s.sum += a[0] + a[1] + a[2] + a[3];
}

void decode(benchmark::State& state, const Case& c, int32_t workers, bool cold) {
  Pool pool(workers);
  const size_t bytes = static_cast<size_t>(2 * c.kv_heads * c.context * c.dim * c.dtype.bits / 8);
  const size_t layers = cold ? std::max<size_t>(2, kColdBytes / bytes) : 2;
  Layers x(c, layers, workers);
  double best = 1e9, best_stream = 1e9;
  size_t layer = 0;
  for (auto _ : state) {  // attention on even layers, the plain read on odd ones
    const double t0 = seconds();
    if (x.attend(layer, pool.table()) != KVP_OK) return state.SkipWithError("attend failed");
    const double t1 = seconds();
    Stream s = {x.kv.data + (layer + 1) * bytes, static_cast<int64_t>(bytes)};
    const double t2 = seconds();
    pool.table()->parallel_for(pool.table()->ctx, s.bytes / 4096, 1, read_all, &s);
    const double t3 = seconds();
    benchmark::DoNotOptimize(s.sum.load());
    state.SetIterationTime(t1 - t0);
    best = std::min(best, t1 - t0), best_stream = std::min(best_stream, t3 - t2);
    if ((layer += 2) + 2 > layers) layer = 0;
  }
  if (x.worst() > 1e-4) return state.SkipWithError("wrong answer");
  state.counters["min_us"] = best * 1e6;
  state.counters["GB/s"] = static_cast<double>(bytes) / best * 1e-9;
  state.counters["stream_GB/s"] = static_cast<double>(bytes) / best_stream * 1e-9;
  state.counters["of_stream"] = best_stream / best;
}

constexpr int kPeakRounds = 20000, kPeakChains = 12;
#if defined(__x86_64__)
__attribute__((target("avx512f"))) double peak512() {
  __m512 a[kPeakChains];
  for (int j = 0; j < kPeakChains; ++j) a[j] = _mm512_set1_ps(static_cast<float>(j));
  const __m512 m = _mm512_set1_ps(0.5f);
  for (int i = 0; i < kPeakRounds; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kPeakChains; ++j) a[j] = _mm512_fmadd_ps(a[j], m, m);
  }
  for (int j = 1; j < kPeakChains; ++j) a[0] = _mm512_add_ps(a[0], a[j]);
  benchmark::DoNotOptimize(_mm512_cvtss_f32(a[0]));
  return 32.0 * kPeakRounds * kPeakChains;
}
__attribute__((target("avx2,fma"))) double peak256() {
  __m256 a[kPeakChains];
  for (int j = 0; j < kPeakChains; ++j) a[j] = _mm256_set1_ps(static_cast<float>(j));
  const __m256 m = _mm256_set1_ps(0.5f);
  for (int i = 0; i < kPeakRounds; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kPeakChains; ++j) a[j] = _mm256_fmadd_ps(a[j], m, m);
  }
  for (int j = 1; j < kPeakChains; ++j) a[0] = _mm256_add_ps(a[0], a[j]);
  benchmark::DoNotOptimize(_mm256_cvtss_f32(a[0]));
  return 16.0 * kPeakRounds * kPeakChains;
}
#endif

// Floating-point operations a second of one core's multiply-add units, at the level in use; 0 where it is not known.
double one_core_peak() {
  double best = 0;
#if defined(__x86_64__)
  for (int i = 0; i < 5; ++i) {
    const double t = seconds();
    double flop = 0;
    if (std::strncmp(sdk::attend_level(), "avx512", 6) == 0) flop = peak512();
    if (std::strcmp(sdk::attend_level(), "avx2") == 0) flop = peak256();
    best = std::max(best, flop / (seconds() - t));
  }
#endif
  return best;
}

void prefill(benchmark::State& state, const Case& c, int32_t workers) {
  Pool pool(workers);
  Layers x(c, 1, workers);
  double best = 1e9, peak = 0;
  for (auto _ : state) {
    const double t0 = seconds();
    if (x.attend(0, pool.table()) != KVP_OK) return state.SkipWithError("attend failed");
    const double t1 = seconds();
    state.SetIterationTime(t1 - t0);
    best = std::min(best, t1 - t0);
    peak = std::max(peak, one_core_peak());
  }
  if (x.worst() > 1e-4) return state.SkipWithError("wrong answer");
  const double pairs =
      static_cast<double>(c.queries) * (static_cast<double>(c.context) - static_cast<double>(c.queries - 1) / 2);
  const double flop = 4.0 * pairs * static_cast<double>(c.q_heads * c.dim);
  state.counters["min_ms"] = best * 1e3;
  state.counters["GFLOP/s"] = flop / best * 1e-9;
  if (peak > 0) state.counters["of_peak"] = flop / best / (peak * workers);
}

struct Model {
  const char* name;
  int64_t q_heads, kv_heads, dim;
};

void add_all() {
  for (const int32_t workers : {1, 2}) {
    for (const Model m : {Model{"smollm2", 9, 3, 64}, Model{"llama", 32, 8, 128}}) {
      for (const auto& [type, dtype] :
           {std::pair<const char*, kvp_dtype>{"f32", kF32}, {"bf16", kB16}, {"f16", kF16}}) {
        for (const int64_t context : {512, 4096, 8192}) {
          const std::string tail =
              std::string(m.name) + "/" + type + "/" + std::to_string(context) + "/threads:" + std::to_string(workers);
          const Case one = {m.q_heads, m.kv_heads, m.dim, context, 1, dtype},
                     many = {m.q_heads, m.kv_heads, m.dim, context, 512, dtype};
          for (const bool cold : {false, true}) {
            benchmark::RegisterBenchmark(("decode/" + std::string(cold ? "cold/" : "hot/") + tail).c_str(),
                                         [=](benchmark::State& s) { decode(s, one, workers, cold); })
                ->UseManualTime()
                ->Unit(benchmark::kMicrosecond)
                ->Iterations(60);
          }
          benchmark::RegisterBenchmark(("prefill512/" + tail).c_str(),
                                       [=](benchmark::State& s) { prefill(s, many, workers); })
              ->UseManualTime()
              ->Unit(benchmark::kMillisecond)
              ->Iterations(8);
        }
      }
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (const char* level = std::getenv("KVPLUG_ATTEND_LEVEL"); level != nullptr && !sdk::set_attend_level(level)) {
    std::fprintf(stderr, "this CPU does not run level %s\n", level);
    return 1;
  }
  benchmark::AddCustomContext("attend_level", sdk::attend_level());
  add_all();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
