// SPDX-License-Identifier: Apache-2.0
// Few queries against one partition of a row: bound by reading K and V, so each is read once for all q vectors of the
// K/V head.
//
// Three passes over at most kPartition tokens: scores (dot products over lanes, kDotTokens tokens and up to kDotRows
// vectors at a time), softmax, weighted sum of V (accumulators in registers over a block). A score, and the order in
// which a row's tokens are summed, do not depend on which other tokens or vectors share a register tile.
#pragma once

#include "attention_job.h"
#include "simd-inl.h"

namespace kvplug::sdk {
namespace {

inline constexpr float kMinusInfinity = -__builtin_inff();
inline constexpr int kPairLanes = 2 * kLanes;

// The hardware prefetcher stops at pages and between K and V: ask for the line that is a few KiB further on. It may lie
// behind the block: in storage that is contiguous this is what comes next, elsewhere the request is lost, never a
// fault.
inline constexpr int64_t kBytesAhead = 4096;
template <class T>
inline int64_t tokens_ahead(int64_t stride) {
  return stride > 0 ? kBytesAhead / (stride * static_cast<int64_t>(sizeof(T))) : 0;
}
template <class T>
inline void prefetch_pair(const T* p, int64_t ahead) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(p) + static_cast<uintptr_t>(ahead) * sizeof(T);
  for (size_t line = 0; line < kPairLanes * sizeof(T); line += 64) {
    __builtin_prefetch(reinterpret_cast<const void*>(at + line));
  }
}

// Elements of one q vector in the caller's tensor.
inline const void* query_at(const AttendJob& job, int64_t row, int64_t kv_head, QuerySpan span, int64_t vector) {
  const kvp_tensor& q = *job.call.q;
  const int64_t query = span.first + vector / job.group, head = kv_head * job.group + vector % job.group;
  const int64_t at = row * q.strides[0] + head * q.strides[1] + query * q.strides[2];
  return static_cast<const char*>(q.data) + at * (q.dtype_bits / 8);
}

// The bias of one q vector at row position 0, and its stride.
inline const float* bias_at(const AttendJob& job, int64_t row, int64_t kv_head, QuerySpan span, int64_t vector,
                            int64_t* stride) {
  const kvp_tensor& b = job.bias;
  const int64_t query = span.first + vector / job.group, head = kv_head * job.group + vector % job.group;
  *stride = b.strides[3];
  return static_cast<const float*>(b.data) + row * b.strides[0] + head * b.strides[1] + query * b.strides[2] +
         job.call.rows[row].bias_column * b.strides[3];
}

// Not inlined: the register tile is the function.
template <class T, int kRows>
__attribute__((noinline)) void dot_rows(const float* q, int64_t q_stride, const T* k, int64_t k_stride, int64_t tokens,
                                        int64_t dim, float* scores) {
  const int64_t whole = dim / kPairLanes * kPairLanes, ahead = tokens_ahead<T>(k_stride) * k_stride;
  for (int64_t t = 0; t < tokens; t += kDotTokens) {
    const T* kt[kDotTokens];
    for (int i = 0; i < kDotTokens; ++i) kt[i] = k + lesser(t + i, tokens - 1) * k_stride;
    V acc[kRows][kDotTokens];
    for (int r = 0; r < kRows; ++r) {
      for (int i = 0; i < kDotTokens; ++i) acc[r][i] = zero();
    }
    const auto step = [&](int64_t d, const Pair* kk) {
      for (int r = 0; r < kRows; ++r) {
        const V a = load(q + r * q_stride + d), b = load(q + r * q_stride + d + kLanes);
        for (int i = 0; i < kDotTokens; ++i) acc[r][i] = mul_add(a, kk[i].a, acc[r][i]);
        for (int i = 0; i < kDotTokens; ++i) acc[r][i] = mul_add(b, kk[i].b, acc[r][i]);
      }
    };
    Pair kk[kDotTokens];
    for (int64_t d = 0; d < whole; d += kPairLanes) {
      for (int i = 0; i < kDotTokens; ++i) {
        kk[i] = load_pair(kt[i] + d);
        prefetch_pair(kt[i] + d, ahead);
      }
      step(d, kk);
    }
    if (whole < dim) {
      for (int i = 0; i < kDotTokens; ++i) kk[i] = load_pair_first(kt[i] + whole, dim - whole);
      step(whole, kk);
    }
    if constexpr (kDotTokens == 4) {
      for (int r = 0; r < kRows; ++r)
        store_sums(scores + r * kScoreStride + t, acc[r][0], acc[r][1], acc[r][2], acc[r][3]);
    } else {
      for (int r = 0; r < kRows; r += 2) {
        const int next = r + 1 < kRows ? r + 1 : r;
        float sums[4];
        store_sums(sums, acc[r][0], acc[r][1], acc[next][0], acc[next][1]);
        memcpy(scores + r * kScoreStride + t, sums, 2 * sizeof(float));
        memcpy(scores + next * kScoreStride + t, sums + (next == r ? 0 : 2), 2 * sizeof(float));
      }
    }
  }
}

// acc[r] += sum over tokens p[r][t] * v[t], kPairs pairs wide; kTail: the last pair has only `last` elements.
template <class T, int kRows, int kPairs, bool kTail>
__attribute__((noinline)) void sum_rows(const float* p, const T* v, int64_t v_stride, int64_t tokens, int64_t last,
                                        float* acc, int64_t acc_stride) {
  const int64_t ahead = tokens_ahead<T>(v_stride) * v_stride;
  V a[kRows][2 * kPairs];
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < 2 * kPairs; ++j) a[r][j] = load(acc + r * acc_stride + j * kLanes);
  }
  for (int64_t t = 0; t < tokens; ++t, v += v_stride) {
    V vv[2 * kPairs];
    for (int j = 0; j < kPairs; ++j) {
      const bool partial = kTail && j == kPairs - 1;
      prefetch_pair(v + j * kPairLanes, ahead);
      const Pair x = partial ? load_pair_first(v + j * kPairLanes, last) : load_pair(v + j * kPairLanes);
      vv[2 * j] = x.a;
      vv[2 * j + 1] = x.b;
    }
    for (int r = 0; r < kRows; ++r) {
      const V w = set1(p[r * kScoreStride + t]);
      for (int j = 0; j < 2 * kPairs; ++j) a[r][j] = mul_add(w, vv[j], a[r][j]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < 2 * kPairs; ++j) store(acc + r * acc_stride + j * kLanes, a[r][j]);
  }
}

// All pairs of the dim for kRows vectors, kSumPairs at a time.
template <class T, int kRows>
void weighted_sum(const float* p, const T* v, int64_t v_stride, int64_t tokens, int64_t dim, float* acc,
                  int64_t acc_stride) {
  constexpr int kPairs = kSumPairs;
  for (; dim > 0; dim -= kPairs * kPairLanes, v += kPairs * kPairLanes, acc += kPairs * kPairLanes) {
    const int64_t last = dim % kPairLanes;
    with_count<kPairs>((dim + kPairLanes - 1) / kPairLanes, [&](auto count) {
      constexpr int kNow = decltype(count)::value;
      if (dim >= kNow * kPairLanes) return sum_rows<T, kRows, kNow, false>(p, v, v_stride, tokens, 0, acc, acc_stride);
      sum_rows<T, kRows, kNow, true>(p, v, v_stride, tokens, last, acc, acc_stride);
    });
  }
}

// Scores of one q vector become weights. Tokens outside [begin, end) weigh nothing. The lanes that are summed follow
// from positions in the partition. A score that is NaN makes the sum NaN instead of weighing nothing.
inline void softmax_row(float* s, int64_t begin, int64_t end, int64_t from, int64_t to, float softcap,
                        const float* bias, int64_t bias_stride, float* m_out, float* l_out) {
  if (softcap > 0) {
    const V c = set1(softcap), inverse = set1(1.0f / softcap);
    for (int64_t t = from; t < to; t += kLanes) store(s + t, soft_cap(load(s + t), c, inverse));
  }
  for (int64_t t = from; t < begin; ++t) s[t] = kMinusInfinity;
  for (int64_t t = end; t < to; ++t) s[t] = kMinusInfinity;
  if (bias != nullptr) {
    for (int64_t t = begin; t < end; ++t) s[t] += bias[t * bias_stride];
  }
  V top = set1(kMinusInfinity);
  for (int64_t t = from; t < to; t += kLanes) top = vmax(top, load(s + t));
  const float m = max_lane(top);
  const V base = set1(m == kMinusInfinity ? 0.0f : m);
  V sum = zero(), seen = zero();
  for (int64_t t = from; t < to; t += kLanes) {
    const V x = sub(load(s + t), base), p = exp_nonpositive(x);
    store(s + t, p);
    sum = add(sum, p);
    seen = add(seen, x);
  }
  *m_out = m;
  *l_out = sum_lanes(add(sum, unless_number(seen)));
}

template <class T>
void decode_typed(const AttendJob& job, int64_t b, int64_t kv_head, int64_t partition, float* partial, float* work) {
  const AttendRow& row = job.call.rows[b];
  const QuerySpan span = real_queries(row);
  const int64_t n = span.count * job.group, key_dim = job.shape.key_dim, value_dim = job.shape.value_dim;
  const int64_t key_pad = job.key_pad, value_pad = job.value_pad;
  const TokenSpan seen = visible_to_all(job.call, row, span);
  const int64_t origin = partition * kPartition;
  const int64_t begin = greater(seen.begin - origin, 0), end = lesser(seen.end - origin, kPartition);
  float* m = partial;
  float* l = m + partial_head(n);
  float* acc = l + partial_head(n);
  memset(acc, 0, static_cast<size_t>(n * value_pad) * sizeof(float));
  if (begin >= end) {
    for (int64_t r = 0; r < partial_head(n); ++r) m[r] = kMinusInfinity, l[r] = 0;
    return;
  }

  float* q = work;
  float* s = q + n * key_pad;
  const V scale = set1(job.call.scale);
  for (int64_t r = 0; r < n; ++r) {
    const T* source = static_cast<const T*>(query_at(job, b, kv_head, span, r));
    for (int64_t d = 0; d < key_dim; d += kPairLanes) {
      const Pair x = key_dim - d >= kPairLanes ? load_pair(source + d) : load_pair_first(source + d, key_dim - d);
      store(q + r * key_pad + d, mul(x.a, scale));
      store(q + r * key_pad + d + kLanes, mul(x.b, scale));
    }
  }

  const auto each_block = [&](auto&& f) {  // f(block, first token in the partition, first token in the block, tokens)
    for (int64_t t = begin; t < end;) {
      const int64_t block = (origin + t) / kBlockTokens, inside = (origin + t) % kBlockTokens;
      const int64_t tokens = lesser(kBlockTokens - inside, end - t);
      f(row.blocks[block - row.first_block], t, inside, tokens);
      t += tokens;
    }
  };

  each_block([&](const KvBlock& block, int64_t t, int64_t inside, int64_t tokens) {
    const T* k = static_cast<const T*>(block.k) + kv_head * block.k_head_stride + inside * block.k_token_stride;
    for (int64_t r = 0; r < n; r += kDotRows) {
      with_count<kDotRows>(n - r, [&](auto count) {
        dot_rows<T, decltype(count)::value>(q + r * key_pad, key_pad, k, block.k_token_stride, tokens, key_dim,
                                            s + r * kScoreStride + t);
      });
    }
  });

  const int64_t from = begin / kLanes * kLanes, to = round_up(end, kLanes);
  for (int64_t r = 0; r < n; ++r) {
    const TokenSpan own = visible(job.call, row, row.q_position + span.first + r / job.group);
    const int64_t own_begin = lesser(greater(own.begin - origin, from), to);
    const int64_t own_end = greater(lesser(own.end - origin, to), own_begin);
    int64_t stride = 0;
    const float* bias = nullptr;
    if (job.call.bias != nullptr) {
      bias = bias_at(job, b, kv_head, span, r, &stride);
      bias += origin * stride;
    }
    softmax_row(s + r * kScoreStride, own_begin, own_end, from, to, job.call.softcap, bias, stride, m + r, l + r);
  }
  for (int64_t r = n; r < partial_head(n); ++r) m[r] = kMinusInfinity, l[r] = 0;

  each_block([&](const KvBlock& block, int64_t t, int64_t inside, int64_t tokens) {
    const T* v = static_cast<const T*>(block.v) + kv_head * block.v_head_stride + inside * block.v_token_stride;
    for (int64_t r = 0; r < n; r += kDotRows) {
      with_count<kDotRows>(n - r, [&](auto count) {
        weighted_sum<T, decltype(count)::value>(s + r * kScoreStride + t, v, block.v_token_stride, tokens, value_dim,
                                                acc + r * value_pad, value_pad);
      });
    }
  });

  for (int64_t i = 0; i < n * value_pad; i += kPairLanes)
    store_pair(acc + i, {load(acc + i), load(acc + i + kLanes)}, T());
}

// state <- state merged with each next partial in turn. One order, wherever the list is cut.
void fold(const AttendJob& job, int64_t b, float* state, const float* next, int64_t count, int64_t stride) {
  const int64_t n = real_queries(job.call.rows[b]).count * job.group, head = partial_head(n);
  for (int64_t i = 0; i < count; ++i, next += stride) {
    for (int64_t r0 = 0; r0 < n; r0 += kLanes) {
      const V m0 = load(state + r0), m1 = load(next + r0), m = vmax(m0, m1);
      const V base = select_ge(m, set1(-3.0e38f), m, zero());
      const V f0 = exp_nonpositive(sub(m0, base)), f1 = exp_nonpositive(sub(m1, base));
      store(state + r0, m);
      store(state + head + r0, mul_add(load(state + head + r0), f0, mul(load(next + head + r0), f1)));
      float old_factor[kLanes], new_factor[kLanes];
      store(old_factor, f0);
      store(new_factor, f1);
      for (int64_t r = r0; r < lesser(n, r0 + kLanes); ++r) {
        const V x0 = set1(old_factor[r - r0]), x1 = set1(new_factor[r - r0]);
        float* to = state + 2 * head + r * job.value_pad;
        const float* from = next + 2 * head + r * job.value_pad;
        for (int64_t d = 0; d < job.shape.value_dim; d += kLanes) {
          store(to + d, mul_add(load(to + d), x0, mul(load(from + d), x1)));
        }
      }
    }
  }
}

// One query and head: sinks, division, out and lse.
inline void write_result(const AttendJob& job, int64_t b, int64_t query, int64_t head, float m, float l,
                         const float* acc) {
  float base = m == kMinusInfinity ? 0.0f : m;
  float factor = 1.0f;
  if (job.call.sinks != nullptr) {
    const float sink = static_cast<const float*>(job.call.sinks->data)[head * job.call.sinks->strides[0]];
    if (sink > m) {
      factor = first_lane(exp_nonpositive(set1(m - sink)));
      base = m = sink;
      l = l * factor + 1.0f;
    } else if (m > kMinusInfinity) {
      l += first_lane(exp_nonpositive(set1(sink - m)));
    }
  }
  const V scale = set1(l != 0 ? factor / l : 0.0f);  // a sum that is NaN stays one
  const kvp_tensor& out = *job.call.out;
  const int64_t at = b * out.strides[0] + head * out.strides[1] + query * out.strides[2];
  const auto write = [&](auto* to) {
    for (int64_t d = 0; d < job.shape.value_dim; d += kLanes) {
      store_first(to + d, mul(load(acc + d), scale), job.shape.value_dim - d);
    }
  };
  if (out.dtype_bits == 32) {
    write(static_cast<float*>(out.data) + at);
  } else if (out.dtype_code == KVP_DTYPE_BFLOAT) {
    write(static_cast<Bf16*>(out.data) + at);
  } else {
    write(static_cast<F16*>(out.data) + at);
  }
  if (job.call.lse != nullptr) {
    const kvp_tensor& lse = *job.call.lse;
    static_cast<float*>(lse.data)[b * lse.strides[0] + head * lse.strides[1] + query * lse.strides[2]] =
        l != 0 ? base + __builtin_logf(l) : kMinusInfinity;
  }
}

void finish(const AttendJob& job, int64_t b, int64_t kv_head, const float* state) {
  const QuerySpan span = real_queries(job.call.rows[b]);
  const int64_t n = span.count * job.group, head = partial_head(n);
  for (int64_t r = 0; r < n; ++r) {
    write_result(job, b, span.first + r / job.group, kv_head * job.group + r % job.group, state[r], state[head + r],
                 state + 2 * head + r * job.value_pad);
  }
}

void decode(const AttendJob& job, int64_t b, int64_t kv_head, int64_t partition, float* partial, float* work) {
  if (job.shape.dtype.bits == 32) return decode_typed<float>(job, b, kv_head, partition, partial, work);
  if (job.shape.dtype.code == KVP_DTYPE_BFLOAT) return decode_typed<Bf16>(job, b, kv_head, partition, partial, work);
  decode_typed<F16>(job, b, kv_head, partition, partial, work);
}

}  // namespace
}  // namespace kvplug::sdk
