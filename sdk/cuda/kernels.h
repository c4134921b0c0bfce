// SPDX-License-Identifier: Apache-2.0
// The kernels: append, views, attention, and the clock of recorded steps.
//
// Where K and V come from is a source: PlainKv here, PackedKv in packed_kv.h. enter() goes to the kTokens positions
// from `start` on; keys() brings kChunk dims of them to shared memory; each_value() hands out one dim of V, token by
// token. Attention. The queries of a row times the query heads of a K/V head are one list of vectors, i * group + g, as
// on the CPU. A block of kThreads threads takes up to kVectors of them through a range of row positions, kBlockTokens
// at a time: scores by thread pairs (vector, token) over a chunk of K in shared memory, softmax kept online, and each
// thread sums the value dims that are its own. Decoding (one query) cuts a row into at most kMaxParts parts, each a
// block that leaves (m, l, acc), and a second kernel merges them; otherwise a block takes a tile of vectors through all
// they see. Parts follow from the row's own positions, so neighbours in the batch leave its bits alone. All sums are
// float32.
#pragma once

#include <kvplug/sdk/device.h>

#include "launch.h"

namespace kvplug::sdk::cuda {

constexpr int kThreads = 128;
constexpr int kVectors = 16;
constexpr int kTokens = static_cast<int>(kBlockTokens);
constexpr int kChunk = 64;  // dims of K in shared memory at a time
constexpr int kPairs = kVectors * kTokens / kThreads;
constexpr int kLanes = kThreads / kVectors;  // threads that share a vector's softmax
constexpr int kMaxParts = 32;
constexpr int64_t kPartTokens = 256;  // the least that a part takes

struct Strides {
  int64_t batch, head, token;
};

struct AttendParams {
  const void* q;
  void* out;
  float* lse;
  const float* bias;
  const float* sinks;
  const DeviceRow* rows;
  float* partials;  // NULL: tiles
  Strides q_stride, out_stride, lse_stride, bias_stride;
  int64_t bias_column;  // stride of the columns
  int64_t window, chunk;
  int32_t queries, kv_heads, group, key_dim, value_dim, parts, causal, float_out;
  float scale, softcap;
};

struct Span {
  int64_t begin, end;
};

KVP_DEVICE_CODE int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }
KVP_DEVICE_CODE int64_t greater(int64_t a, int64_t b) { return a > b ? a : b; }

// As on the CPU: every mask but the bias leaves a query one interval of row positions.
KVP_DEVICE_CODE Span visible(const AttendParams& p, const DeviceRow& row, int64_t position) {
  Span s = {row.kv_begin, row.kv_end};
  if (p.causal) s.end = lesser(s.end, position + 1);
  if (p.window > 0) s.begin = greater(s.begin, position - p.window + 1);
  if (p.chunk > 0) {
    const int64_t start = (position + row.origin) / p.chunk * p.chunk - row.origin;
    s.begin = greater(s.begin, start);
    s.end = lesser(s.end, start + p.chunk);
  }
  s.begin = lesser(s.begin, greater(row.kv_begin, row.kv_end));
  s.end = greater(s.begin, s.end);
  return s;
}

// Tokens of a part of a row that shows `tokens`: a multiple of a block, at most kMaxParts parts wherever they begin.
KVP_DEVICE_CODE int64_t part_tokens(int64_t tokens) {
  int64_t size = kPartTokens;
  while (size * (kMaxParts - 1) < tokens) size *= 2;
  return size;
}

KVP_DEVICE_CODE bool is_real(const DeviceRow& row, int64_t query) {
  return query < row.q_count && row.q_position + query >= 0;
}

// Shared memory of attend_kernel, in floats.
inline int64_t shared_floats(int64_t key_dim, int64_t value_dim) {
  return kVectors * (key_dim + value_dim) + kTokens * (kChunk + 1) + kVectors * (kTokens + 1) + 2 * kVectors * kLanes +
         3 * kVectors;
}

template <class T>
struct PlainKv {
  using Bits = typename T::Bits;
  const KvBlock* blocks;
  const Bits* k = nullptr;  // of the block at hand
  const Bits* v = nullptr;
  int64_t k_stride = 0, v_stride = 0;

  KVP_DEVICE_CODE void enter(const DeviceRow& row, int64_t kv_head, int64_t start) {
    const KvBlock block = blocks[row.list + start / kTokens - row.first_block];
    k = static_cast<const Bits*>(block.k) + kv_head * block.k_head_stride;
    v = static_cast<const Bits*>(block.v) + kv_head * block.v_head_stride;
    k_stride = block.k_token_stride;
    v_stride = block.v_token_stride;
  }
  KVP_DEVICE_CODE void keys(int c, int width, int low, int high, float* to) const {
    for (int i = static_cast<int>(threadIdx.x); i < kTokens * kChunk; i += kThreads) {
      const int t = i / kChunk, d = i % kChunk;
      const bool there = t >= low && t < high && d < width;
      to[t * (kChunk + 1) + d] = there ? T::load(k[t * k_stride + c + d]) : 0.0f;
    }
  }
  template <class F>
  KVP_DEVICE_CODE void each_value(int d, int low, int high, const F& f) const {
    for (int t = low; t < high; ++t) f(t, T::load(v[t * v_stride + d]));
  }
};

// The end of a vector: the sink, the division, out and lse. Called by all threads; acc: this thread's dims.
template <class T>
KVP_DEVICE_CODE void finish(const AttendParams& p, int64_t b, int64_t kv_head, int vector, float m, float l,
                            const float* acc) {
  const int64_t query = vector / p.group, head = kv_head * p.group + vector % p.group;
  float factor = 1.0f;
  const bool real = is_real(p.rows[b], query);
  if (p.sinks != nullptr && real) {
    const float sink = p.sinks[head], most = sink > m ? sink : m;
    factor = m == -INFINITY ? 0.0f : expf(m - most);
    l = l * factor + expf(sink - most);
    m = most;
  }
  const bool sees = real && l != 0.0f;  // a score that is NaN is not lost
  const float scale = sees ? factor / l : 0.0f;
  const int64_t at = b * p.out_stride.batch + head * p.out_stride.head + query * p.out_stride.token;
  for (int d = static_cast<int>(threadIdx.x); d < p.value_dim; d += kThreads) {
    const float x = sees ? acc[d] * scale : 0.0f;
    if (p.float_out) {
      static_cast<float*>(p.out)[at + d] = x;
    } else {
      static_cast<typename T::Bits*>(p.out)[at + d] = T::store(x);
    }
  }
  if (p.lse != nullptr && threadIdx.x == 0) {
    p.lse[b * p.lse_stride.batch + head * p.lse_stride.head + query * p.lse_stride.token] =
        sees ? m + logf(l) : -INFINITY;
  }
}

// grid: (parts or tiles, kv_heads, batch).
template <class T, class Kv>
KVP_KERNEL void attend_kernel(AttendParams p, Kv kv) {
  using Bits = typename T::Bits;
  const int tid = static_cast<int>(threadIdx.x);
  const int64_t b = blockIdx.z, kv_head = blockIdx.y;
  const DeviceRow row = p.rows[b];
  const bool split = p.partials != nullptr;
  const int vectors = p.queries * p.group;
  const int first = split ? 0 : static_cast<int>(blockIdx.x) * kVectors;
  const int n = vectors - first < kVectors ? vectors - first : kVectors;

  float* const q = shared_memory();             // [kVectors, key_dim]
  float* const acc = q + kVectors * p.key_dim;  // [kVectors, value_dim]
  float* const keys = acc + kVectors * p.value_dim;
  float* const scores = keys + kTokens * (kChunk + 1);        // [kVectors, kTokens + 1]
  float* const most = scores + kVectors * (kTokens + 1);      // [kVectors, kLanes]
  float* const sums = most + kVectors * kLanes;               // likewise
  float* const m = sums + kVectors * kLanes;                  // [kVectors]
  float *const l = m + kVectors, *const keep = l + kVectors;  // what the past is multiplied by

  for (int i = tid; i < n * p.key_dim; i += kThreads) {
    const int vector = first + i / p.key_dim;
    const int64_t query = vector / p.group, head = kv_head * p.group + vector % p.group;
    q[i] = T::load(static_cast<const Bits*>(
        p.q)[b * p.q_stride.batch + head * p.q_stride.head + query * p.q_stride.token + i % p.key_dim]);
  }
  for (int i = tid; i < n * p.value_dim; i += kThreads) acc[i] = 0.0f;
  if (tid < kVectors) {
    m[tid] = -INFINITY;
    l[tid] = 0.0f;
  }

  // What any of these vectors sees. Both ends grow with the position.
  int64_t low_query = first / p.group, high_query = (first + n - 1) / p.group;
  low_query = greater(low_query, -row.q_position);
  high_query = lesser(high_query, row.q_count - 1);
  Span all = {0, 0};
  if (low_query <= high_query) {
    all.begin = visible(p, row, row.q_position + low_query).begin;
    all.end = visible(p, row, row.q_position + high_query).end;
  }
  if (split) {
    const int64_t size = part_tokens(all.end - all.begin), from = (all.begin / size + blockIdx.x) * size;
    all.begin = greater(all.begin, from);
    all.end = lesser(all.end, from + size);
  }
  __syncthreads();

  const int token = tid % kTokens;
  for (int64_t start = all.begin / kTokens * kTokens; start < all.end; start += kTokens) {
    kv.enter(row, kv_head, start);
    const int low = static_cast<int>(greater(all.begin - start, 0));
    const int high = static_cast<int>(lesser(all.end - start, kTokens));
    float dot[kPairs] = {};
    for (int c = 0; c < p.key_dim; c += kChunk) {
      const int width = p.key_dim - c < kChunk ? p.key_dim - c : kChunk;
      kv.keys(c, width, low, high, keys);
      __syncthreads();
      for (int d = 0; d < width; ++d) {
        const float x = keys[token * (kChunk + 1) + d];
#pragma unroll
        for (int j = 0; j < kPairs; ++j) {
          const int vector = tid / kTokens + j * (kThreads / kTokens);
          if (vector < n) dot[j] += q[vector * p.key_dim + c + d] * x;
        }
      }
      __syncthreads();
    }
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const int vector = tid / kTokens + j * (kThreads / kTokens);
      if (vector >= n) continue;
      const int64_t query = (first + vector) / p.group, head = kv_head * p.group + (first + vector) % p.group;
      const int64_t position = start + token;
      const Span seen = visible(p, row, row.q_position + query);
      float score = -INFINITY;
      if (token >= low && token < high && position >= seen.begin && position < seen.end && is_real(row, query)) {
        score = dot[j] * p.scale;
        if (p.softcap > 0.0f) score = p.softcap * tanhf(score / p.softcap);
        if (p.bias != nullptr) {
          score += p.bias[b * p.bias_stride.batch + head * p.bias_stride.head + query * p.bias_stride.token +
                          (position + row.bias_column) * p.bias_column];
        }
      }
      scores[vector * (kTokens + 1) + token] = score;
    }
    __syncthreads();

    // Softmax: kLanes threads a vector.
    const int vector = tid / kLanes, lane = tid % kLanes;
    float highest = -INFINITY;
    if (vector < n) {
      for (int t = lane; t < kTokens; t += kLanes) highest = fmaxf(highest, scores[vector * (kTokens + 1) + t]);
    }
    most[tid] = highest;
    __syncthreads();
    float sum = 0.0f, now = -INFINITY;
    if (vector < n) {
      now = m[vector];
      for (int i = 0; i < kLanes; ++i) now = fmaxf(now, most[vector * kLanes + i]);
      for (int t = lane; t < kTokens; t += kLanes) {
        float& s = scores[vector * (kTokens + 1) + t];
        s = s == -INFINITY ? 0.0f : expf(s - now);
        sum += s;
      }
    }
    sums[tid] = sum;
    __syncthreads();
    if (vector < n && lane == 0) {
      keep[vector] = m[vector] == -INFINITY ? 0.0f : expf(m[vector] - now);
      float total = l[vector] * keep[vector];
      for (int i = 0; i < kLanes; ++i) total += sums[vector * kLanes + i];
      l[vector] = total;
      m[vector] = now;
    }
    __syncthreads();

    for (int d = tid; d < p.value_dim; d += kThreads) {
      float a[kVectors];
#pragma unroll
      for (int i = 0; i < kVectors; ++i) a[i] = i < n ? acc[i * p.value_dim + d] * keep[i] : 0.0f;
      kv.each_value(d, low, high, [&](int t, float x) {
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
          if (i < n) a[i] += scores[i * (kTokens + 1) + t] * x;
        }
      });
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (i < n) acc[i * p.value_dim + d] = a[i];
      }
    }
    __syncthreads();
  }

  if (split) {
    const int64_t unit = (b * p.kv_heads + kv_head) * p.parts + blockIdx.x;
    float* const to = p.partials + unit * p.group * (p.value_dim + 2);
    for (int i = tid; i < n * p.value_dim; i += kThreads) {
      to[i / p.value_dim * (p.value_dim + 2) + 2 + i % p.value_dim] = acc[i];
    }
    if (tid < n) {
      to[tid * (p.value_dim + 2)] = m[tid];
      to[tid * (p.value_dim + 2) + 1] = l[tid];
    }
    return;
  }
  for (int i = 0; i < n; ++i) finish<T>(p, b, kv_head, first + i, m[i], l[i], acc + i * p.value_dim);
}

// Merges the parts of a vector. grid: (group, kv_heads, batch); shared: value_dim floats.
template <class T>
KVP_KERNEL void fold_kernel(AttendParams p) {
  const int64_t b = blockIdx.z, kv_head = blockIdx.y, width = p.value_dim + 2;
  const int vector = static_cast<int>(blockIdx.x);
  const float* const first = p.partials + ((b * p.kv_heads + kv_head) * p.parts * p.group + vector) * width;
  const int64_t stride = p.group * width;
  float m = -INFINITY, l = 0.0f;
  for (int i = 0; i < p.parts; ++i) m = fmaxf(m, first[i * stride]);
  for (int i = 0; i < p.parts; ++i) {
    if (first[i * stride + 1] != 0.0f) l += first[i * stride + 1] * expf(first[i * stride] - m);
  }
  float* const acc = shared_memory();
  for (int d = static_cast<int>(threadIdx.x); d < p.value_dim; d += kThreads) {
    float sum = 0.0f;
    for (int i = 0; i < p.parts; ++i) {
      if (first[i * stride + 1] != 0.0f) sum += first[i * stride + 2 + d] * expf(first[i * stride] - m);
    }
    acc[d] = sum;
  }
  finish<T>(p, b, kv_head, vector, m, l, acc);
}

constexpr int kSegments = 32;  // of one launch: they travel with its arguments

struct AppendParams {
  DeviceSegment segments[kSegments];
  const void* k;
  const void* v;
  Strides k_stride, v_stride;
  int32_t key_dim, value_dim;
};

template <class Bits>
KVP_DEVICE_CODE void copy_tokens(const Bits* from, int64_t from_stride, Bits* to, int64_t n, int dim) {
  for (int64_t i = threadIdx.x; i < n * dim; i += kThreads) to[i] = from[i / dim * from_stride + i % dim];
}

// grid: (segments, kv_heads). Bits: an unsigned type as wide as an element.
template <class Bits>
KVP_KERNEL void append_kernel(AppendParams p) {
  const DeviceSegment& s = p.segments[blockIdx.x];
  const int64_t head = blockIdx.y;
  copy_tokens(
      static_cast<const Bits*>(p.k) + s.row * p.k_stride.batch + head * p.k_stride.head + s.token * p.k_stride.token,
      p.k_stride.token, static_cast<Bits*>(s.k) + head * kTokens * p.key_dim, s.n, p.key_dim);
  copy_tokens(
      static_cast<const Bits*>(p.v) + s.row * p.v_stride.batch + head * p.v_stride.head + s.token * p.v_stride.token,
      p.v_stride.token, static_cast<Bits*>(s.v) + head * kTokens * p.value_dim, s.n, p.value_dim);
}

// grid: (blocks of columns, heads, batch). Column c shows row position c - bias_column.
template <class Bits>
KVP_KERNEL void view_kernel(const DeviceRow* rows, const KvBlock* blocks, int keys, int64_t kv_len, int dim,
                            Bits* out) {
  const int64_t b = blockIdx.z, head = blockIdx.y;
  const DeviceRow row = rows[b];
  Bits* const to = out + (b * gridDim.y + head) * kv_len * dim;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTokens, last = lesser(kv_len, first + kTokens);
  for (int64_t i = first * dim + threadIdx.x; i < last * dim; i += kThreads) {
    const int64_t position = i / dim - row.bias_column;
    Bits x = 0;
    if (position >= row.kv_begin && position < row.kv_end) {
      const KvBlock& block = blocks[row.list + position / kTokens - row.first_block];
      const int64_t head_stride = keys ? block.k_head_stride : block.v_head_stride;
      const int64_t token_stride = keys ? block.k_token_stride : block.v_token_stride;
      const Bits* const from = static_cast<const Bits*>(keys ? block.k : block.v);
      x = from[head * head_stride + position % kTokens * token_stride + i % dim];
    }
    to[i] = x;
  }
}

// grid: (batch, kv_heads).
template <class Bits>
KVP_KERNEL void clock_append_kernel(const DeviceRow* rows, const KvBlock* blocks, AppendParams p, int64_t tokens) {
  const int64_t b = blockIdx.x, head = blockIdx.y;
  const DeviceRow row = rows[b];
  for (int64_t i = 0; i < tokens; ++i) {
    const int64_t position = row.q_position + i;
    if (position < 0) continue;
    const KvBlock& block = blocks[row.list + position / kTokens];
    Bits* const k = static_cast<Bits*>(const_cast<void*>(block.k)) + head * block.k_head_stride;
    Bits* const v = static_cast<Bits*>(const_cast<void*>(block.v)) + head * block.v_head_stride;
    copy_tokens(static_cast<const Bits*>(p.k) + b * p.k_stride.batch + head * p.k_stride.head + i * p.k_stride.token,
                int64_t{0}, k + position % kTokens * block.k_token_stride, 1, p.key_dim);
    copy_tokens(static_cast<const Bits*>(p.v) + b * p.v_stride.batch + head * p.v_stride.head + i * p.v_stride.token,
                int64_t{0}, v + position % kTokens * block.v_token_stride, 1, p.value_dim);
  }
}

}  // namespace kvplug::sdk::cuda
