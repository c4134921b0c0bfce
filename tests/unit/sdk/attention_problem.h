// SPDX-License-Identifier: Apache-2.0
// A random attention problem for tests: values, rows, where the K/V blocks lie, a reference in double precision.
//
// Values are kept as the float32 that the element type holds exactly. Storage that the kernel must not read is NaN.
#pragma once

#include <kvplug/sdk/attention.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "../../support/reachable.h"

namespace kvplug::test {

inline constexpr kvp_dtype kF32 = {KVP_DTYPE_FLOAT, 32, 1}, kF16 = {KVP_DTYPE_FLOAT, 16, 1},
                           kB16 = {KVP_DTYPE_BFLOAT, 16, 1};
inline constexpr float kInf = std::numeric_limits<float>::infinity();
inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// IEEE half and bfloat16 by their definition, not by bit tricks: ties to even, subnormals.
inline float decode_element(kvp_dtype t, const void* p) {
  if (t.bits == 32) {
    float x;
    std::memcpy(&x, p, 4);
    return x;
  }
  uint16_t h;
  std::memcpy(&h, p, 2);
  const bool brain = t.code == KVP_DTYPE_BFLOAT;
  const int mantissa = brain ? 7 : 10, bias = brain ? 127 : 15, top = brain ? 255 : 31;
  const int exponent = (h >> mantissa) & top, fraction = h & ((1 << mantissa) - 1);
  const double sign = (h & 0x8000) ? -1 : 1;
  if (exponent == top) return static_cast<float>(fraction ? kNan : sign * kInf);
  if (exponent == 0) return static_cast<float>(sign * std::ldexp(fraction, 1 - bias - mantissa));
  return static_cast<float>(sign * std::ldexp(fraction + (1 << mantissa), exponent - bias - mantissa));
}

inline void encode_element(kvp_dtype t, float x, void* p) {
  if (t.bits == 32) {
    std::memcpy(p, &x, 4);
    return;
  }
  const bool brain = t.code == KVP_DTYPE_BFLOAT;
  uint16_t h;
  if (std::isnan(x)) {
    h = brain ? 0x7fc0 : 0x7e00;
  } else {
    const int mantissa = brain ? 7 : 10, bias = brain ? 127 : 15;
    int e;
    std::frexp(std::fabs(x), &e);
    e = std::max(e - 1, 1 - bias);
    const double units = std::nearbyint(std::ldexp(std::fabs(static_cast<double>(x)), mantissa - e));
    // units runs into the next binade by itself: the bit pattern of a positive float is monotone.
    const int64_t bits = (static_cast<int64_t>(e + bias - 1) << mantissa) + static_cast<int64_t>(units);
    h = static_cast<uint16_t>(bits | (std::signbit(x) ? 0x8000 : 0));
  }
  std::memcpy(p, &h, 2);
}

inline float round_to(kvp_dtype t, float x) {
  unsigned char b[4];
  encode_element(t, x, b);
  return decode_element(t, b);
}

inline kvp_tensor tensor_of(void* data, kvp_dtype t, std::vector<int64_t> shape) {
  kvp_tensor out = {};
  out.data = data;
  out.device_type = KVP_DEVICE_CPU;
  out.ndim = static_cast<int32_t>(shape.size());
  out.dtype_code = t.code;
  out.dtype_bits = t.bits;
  out.dtype_lanes = t.lanes;
  int64_t stride = 1;
  for (size_t i = shape.size(); i-- > 0; stride *= shape[i]) {
    out.shape[i] = shape[i];
    out.strides[i] = stride;
  }
  return out;
}

struct Row {
  int64_t kv_begin = 0, kv_end = 0, q_position = 0, q_count = 0;
  std::vector<float> q;     // [q_heads, q_count, key_dim]
  std::vector<float> k, v;  // [kv_heads, kv_end, dim]
  std::vector<float> bias;  // [q_heads, q_count, kv_end], empty = none
};

struct Problem {
  sdk::AttendShape shape = {};
  kvp_dtype out_dtype = kF32;
  std::vector<Row> rows;
  std::vector<float> sinks;  // empty = none
  int64_t window = 0, chunk = 0;
  float scale = 1, softcap = 0;
  bool causal = true;
};

struct Result {
  std::vector<float> out, lse;  // [q_heads, q_count, value_dim], [q_heads, q_count] of one row
};

inline Result reference(const Problem& p, const Row& row) {
  const int64_t heads = p.shape.q_heads, group = heads / p.shape.kv_heads, dk = p.shape.key_dim, dv = p.shape.value_dim;
  Result result;
  for (int64_t h = 0; h < heads; ++h) {
    for (int64_t i = 0; i < row.q_count; ++i) {
      const int64_t at = row.q_position + i, kv_head = h / group;
      std::vector<double> score;
      std::vector<int64_t> token;
      for (int64_t j = row.kv_begin; j < row.kv_end && at >= 0; ++j) {
        if (p.causal && j > at) continue;
        if (p.window > 0 && j <= at - p.window) continue;
        if (p.chunk > 0 && j / p.chunk != at / p.chunk) continue;
        double dot = 0;
        for (int64_t d = 0; d < dk; ++d) {
          dot += static_cast<double>(row.q[static_cast<size_t>((h * row.q_count + i) * dk + d)]) *
                 static_cast<double>(row.k[static_cast<size_t>((kv_head * row.kv_end + j) * dk + d)]);
        }
        dot *= static_cast<double>(p.scale);
        if (p.softcap > 0) dot = static_cast<double>(p.softcap) * std::tanh(dot / static_cast<double>(p.softcap));
        if (!row.bias.empty())
          dot += static_cast<double>(row.bias[static_cast<size_t>((h * row.q_count + i) * row.kv_end + j)]);
        score.push_back(dot);
        token.push_back(j);
      }
      double top = -HUGE_VAL, sum = 0;
      for (double s : score) top = std::max(top, s);
      const bool has_sink = at >= 0 && !p.sinks.empty();
      if (has_sink) top = std::max(top, static_cast<double>(p.sinks[static_cast<size_t>(h)]));
      std::vector<double> o(static_cast<size_t>(dv), 0.0);
      if (top > -HUGE_VAL) {
        for (size_t n = 0; n < score.size(); ++n) {
          const double w = std::exp(score[n] - top);
          sum += w;
          for (int64_t d = 0; d < dv; ++d) {
            o[static_cast<size_t>(d)] +=
                w * static_cast<double>(row.v[static_cast<size_t>((kv_head * row.kv_end + token[n]) * dv + d)]);
          }
        }
        if (has_sink) sum += std::exp(static_cast<double>(p.sinks[static_cast<size_t>(h)]) - top);
      }
      for (double x : o) result.out.push_back(static_cast<float>(sum > 0 ? x / sum : 0));
      result.lse.push_back(static_cast<float>(sum > 0 ? top + std::log(sum) : -HUGE_VAL));
    }
  }
  return result;
}

// How a problem is presented to the kernel; none of it may change a bit.
struct Presentation {
  enum Blocks { kContiguous, kTokenMajor, kScattered } blocks = kContiguous;
  int64_t left = 0, right = 0;  // padding queries around every row's own; left only if all rows begin at position 0
  bool spare_blocks = false;    // the list of blocks begins before the first token that is read
  uint64_t seed = 1;
};

// parallel_for that cuts at random, hands the pieces out backwards and picks workers at will, one after another.
struct Cutter {
  int32_t count = 1;
  uint64_t seed = 0;
  kvp_host_parallel table = {sizeof(kvp_host_parallel), this, workers, parallel_for};

  Cutter(int32_t n, uint64_t s) : count(n), seed(s) {}
  Cutter(const Cutter&) = delete;
  Cutter& operator=(const Cutter&) = delete;
  static int32_t workers(void* self) { return static_cast<Cutter*>(self)->count; }
  static int32_t parallel_for(void* self, int64_t n, int64_t grain, kvp_parallel_fn fn, void* arg) {
    Cutter& c = *static_cast<Cutter*>(self);
    std::mt19937_64 random(c.seed++);
    std::vector<std::pair<int64_t, int64_t>> pieces;
    for (int64_t at = 0; at < n;) {
      const int64_t size =
          grain * static_cast<int64_t>(1 + random() % static_cast<uint64_t>(std::max<int64_t>(1, n / grain)));
      pieces.emplace_back(at, std::min(n, at + size));
      at += size;
    }
    for (size_t i = pieces.size(); i-- > 0;) {
      fn(arg, pieces[i].first, pieces[i].second, static_cast<int32_t>(random() % static_cast<uint64_t>(c.count)));
    }
    return KVP_OK;
  }
};

using AttendFn = kvp_status (*)(const sdk::AttendShape&, const sdk::AttendCall&, const kvp_host_parallel*, void*,
                                size_t);

// Runs the kernel (`attend`: the CPU's, or one that wants to be held against the same reference); one result per row,
// its padding queries checked for out 0 and lse -inf by the caller through `clean`.
inline std::vector<Result> run(const Problem& p, const Presentation& how, const kvp_host_parallel* parallel,
                               kvp_status* status, bool* clean, size_t extra_scratch = SIZE_MAX,
                               AttendFn attend = sdk::attend) {
  const int64_t batch = static_cast<int64_t>(p.rows.size()), heads = p.shape.q_heads, kv_heads = p.shape.kv_heads;
  const int64_t dk = p.shape.key_dim, dv = p.shape.value_dim, size = p.shape.dtype.bits / 8;
  std::mt19937_64 random(how.seed);
  int64_t queries = 0, columns = 1;
  for (const Row& r : p.rows)
    queries = std::max(queries, how.left + r.q_count + how.right), columns = std::max(columns, r.kv_end + 3);
  const bool biased = std::any_of(p.rows.begin(), p.rows.end(), [](const Row& r) { return !r.bias.empty(); });

  std::vector<Reachable<unsigned char>> memory;
  const auto take = [&](int64_t elements) {  // NaN all over, at an odd place
    const int64_t shift = static_cast<int64_t>(random() % 5);
    memory.emplace_back(static_cast<size_t>((elements + shift) * size));
    unsigned char nan[4];
    encode_element(p.shape.dtype, kNan, nan);
    for (int64_t i = 0; i < elements + shift; ++i) {
      std::memcpy(memory.back().data() + i * size, nan, static_cast<size_t>(size));
    }
    return memory.back().data() + shift * size;
  };

  unsigned char* q = take(batch * heads * queries * dk);
  Reachable<float> bias(biased ? static_cast<size_t>(batch * heads * queries * columns) : 0, kNan);
  std::vector<std::vector<sdk::KvBlock>> blocks(static_cast<size_t>(batch));
  std::vector<sdk::AttendRow> rows(static_cast<size_t>(batch));
  for (int64_t b = 0; b < batch; ++b) {
    const Row& r = p.rows[static_cast<size_t>(b)];
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < r.q_count; ++i) {
        for (int64_t d = 0; d < dk; ++d) {
          encode_element(p.shape.dtype, r.q[static_cast<size_t>((h * r.q_count + i) * dk + d)],
                         q + (((b * heads + h) * queries + how.left + i) * dk + d) * size);
        }
        for (int64_t j = 0; biased && j < r.kv_end; ++j) {
          bias[static_cast<size_t>(((b * heads + h) * queries + how.left + i) * columns + 2 + j)] =
              r.bias.empty() ? 0 : r.bias[static_cast<size_t>((h * r.q_count + i) * r.kv_end + j)];
        }
      }
    }
    const int64_t first = how.spare_blocks ? 0 : r.kv_begin / sdk::kBlockTokens;
    const int64_t count = (r.kv_end + sdk::kBlockTokens - 1) / sdk::kBlockTokens - first;
    auto& list = blocks[static_cast<size_t>(b)];
    list.resize(static_cast<size_t>(std::max<int64_t>(count, 0)));
    const auto place = [&](const std::vector<float>& values, int64_t dim, bool key) {
      const int64_t capacity = std::max<int64_t>(count, 1) * sdk::kBlockTokens + 7;
      unsigned char* whole = how.blocks == Presentation::kScattered ? nullptr : take(kv_heads * capacity * dim);
      for (size_t n = list.size(); n-- > 0;) {
        const int64_t at = static_cast<int64_t>(n) * sdk::kBlockTokens;
        int64_t head_stride = capacity * dim, token_stride = dim;
        unsigned char* base;
        if (how.blocks == Presentation::kContiguous) {
          base = whole + at * dim * size;
        } else if (how.blocks == Presentation::kTokenMajor) {
          head_stride = dim, token_stride = kv_heads * dim;
          base = whole + at * token_stride * size;
        } else {
          token_stride = dim + static_cast<int64_t>(random() % 9);
          head_stride = sdk::kBlockTokens * token_stride + static_cast<int64_t>(random() % 9);
          base = take(kv_heads * head_stride);
        }
        for (int64_t h = 0; h < kv_heads; ++h) {
          for (int64_t t = 0; t < sdk::kBlockTokens; ++t) {
            const int64_t j = first * sdk::kBlockTokens + at + t;
            if (j < r.kv_begin || j >= r.kv_end) continue;
            for (int64_t d = 0; d < dim; ++d) {
              encode_element(p.shape.dtype, values[static_cast<size_t>((h * r.kv_end + j) * dim + d)],
                             base + (h * head_stride + t * token_stride + d) * size);
            }
          }
        }
        (key ? list[n].k : list[n].v) = base;
        (key ? list[n].k_head_stride : list[n].v_head_stride) = head_stride;
        (key ? list[n].k_token_stride : list[n].v_token_stride) = token_stride;
      }
    };
    place(r.k, dk, true);
    place(r.v, dv, false);
    rows[static_cast<size_t>(b)] = {list.data(),          first, r.kv_begin, r.kv_end, r.q_position - how.left,
                                    how.left + r.q_count, 2};
  }

  Reachable<unsigned char> out(static_cast<size_t>(batch * heads * queries * dv * 4), 0x55);
  Reachable<float> lse(static_cast<size_t>(batch * heads * queries), kNan);
  Reachable<float> sinks(p.sinks.begin(), p.sinks.end());
  kvp_tensor tq = tensor_of(q, p.shape.dtype, {batch, heads, queries, dk});
  kvp_tensor tout = tensor_of(out.data(), p.out_dtype, {batch, heads, queries, dv});
  kvp_tensor tlse = tensor_of(lse.data(), kF32, {batch, heads, queries});
  kvp_tensor tbias = tensor_of(bias.data(), kF32, {batch, heads, queries, columns});
  kvp_tensor tsinks = tensor_of(sinks.data(), kF32, {heads});
  sdk::AttendCall call = {};
  call.q = &tq;
  call.out = &tout;
  call.lse = &tlse;
  call.bias = biased ? &tbias : nullptr;
  call.sinks = sinks.empty() ? nullptr : &tsinks;
  call.rows = rows.data();
  call.window = p.window;
  call.chunk = p.chunk;
  call.scale = p.scale;
  call.softcap = p.softcap;
  call.causal = p.causal;
  sdk::AttendShape shape = p.shape;
  shape.batch = batch;
  shape.max_query = queries;
  const size_t need = sdk::attend_scratch_bytes(shape, parallel != nullptr ? parallel->workers(parallel->ctx) : 1);
  const size_t bytes = std::min(need, extra_scratch);
  std::unique_ptr<unsigned char[]> raw(new unsigned char[bytes + 64]);
  std::memset(raw.get(), 0xff, bytes + 64);  // scratch is NaN
  unsigned char* scratch = raw.get() + (64 - reinterpret_cast<uintptr_t>(raw.get()) % 64) % 64;
  *status = attend(shape, call, parallel, scratch, bytes);

  std::vector<Result> results;
  *clean = true;
  for (int64_t b = 0; b < batch && *status == KVP_OK; ++b) {
    const Row& r = p.rows[static_cast<size_t>(b)];
    Result one;
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < queries; ++i) {
        const bool own = i >= how.left && i < how.left + r.q_count;
        const int64_t at = (b * heads + h) * queries + i;
        if (own) one.lse.push_back(lse[static_cast<size_t>(at)]);
        if (!own && lse[static_cast<size_t>(at)] != -kInf) *clean = false;
        for (int64_t d = 0; d < dv; ++d) {
          const float x = decode_element(p.out_dtype, out.data() + (at * dv + d) * (p.out_dtype.bits / 8));
          if (own) one.out.push_back(x);
          if (!own && x != 0) *clean = false;
        }
      }
    }
    results.push_back(std::move(one));
  }
  return results;
}

}  // namespace kvplug::test
