// SPDX-License-Identifier: Apache-2.0
// Many queries: a tile of q vectors walks the row's blocks of kBlockTokens with an online softmax; bound by arithmetic.
//
// Lanes are q vectors, not tokens: a panel of kPanel vectors is transposed once per tile, scores come out as
// [token][q vector], so maximum, sum and exponential are vertical and neither K nor V is transposed. K and V rows are
// used where they lie if they are float32 and whole, else converted once per tile and block. A score sums over the dim
// in order, an output over the tokens in order: neither depends on the tile, so a query's bits are its own.
#pragma once

#include "attention_job.h"
#include "decode-inl.h"
#include "simd-inl.h"

namespace kvplug::sdk {
namespace {

// scores[t][lane] = k[t] . q[lane] for kTokenTile tokens and kVectors vectors of lanes; q is [dim][kPanel].
template <int kVectors>
void score_tile(const float* q, const float* k, int64_t k_stride, int64_t dim, float* scores) {
  V acc[kTokenTile][kVectors];
  for (int t = 0; t < kTokenTile; ++t) {
    for (int j = 0; j < kVectors; ++j) acc[t][j] = zero();
  }
  const float* kt[kTokenTile];
  for (int t = 0; t < kTokenTile; ++t) kt[t] = k + t * k_stride;
  for (int64_t d = 0; d < dim; ++d, q += kPanel) {
    V x[kVectors];
    for (int j = 0; j < kVectors; ++j) x[j] = load(q + j * kLanes);
    for (int t = 0; t < kTokenTile; ++t) {
      const V y = set1(kt[t][d]);
      for (int j = 0; j < kVectors; ++j) acc[t][j] = mul_add(x[j], y, acc[t][j]);
    }
  }
  for (int t = 0; t < kTokenTile; ++t) {
    for (int j = 0; j < kVectors; ++j) store(scores + t * kPanel + j * kLanes, acc[t][j]);
  }
}

// acc[r] = acc[r] * factor[r] + sum over tokens p[t][r] * v[t], for kRows vectors q and kVectors vectors of the dim.
template <int kRows, int kVectors>
void output_tile(const float* p, const float* v, int64_t v_stride, int64_t tokens, const float* factor, float* acc,
                 int64_t acc_stride) {
  V a[kRows][kVectors];
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kVectors; ++j) a[r][j] = mul(load(acc + r * acc_stride + j * kLanes), set1(factor[r]));
  }
  for (int64_t t = 0; t < tokens; ++t, p += kPanel, v += v_stride) {
    V x[kVectors];
    for (int j = 0; j < kVectors; ++j) x[j] = load(v + j * kLanes);
    for (int r = 0; r < kRows; ++r) {
      const V w = set1(p[r]);
      for (int j = 0; j < kVectors; ++j) a[r][j] = mul_add(w, x[j], a[r][j]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int j = 0; j < kVectors; ++j) store(acc + r * acc_stride + j * kLanes, a[r][j]);
  }
}

// The state of one panel within a tile's work area.
struct Panel {
  int64_t rows;        // q vectors, the rest are zeros
  int64_t vectors;     // lanes in use, in vectors
  const float* q;      // [key_dim][kPanel]
  float* acc;          // [kPanel][value_pad]
  float *m, *l;        // [kPanel]
  TokenSpan any, all;  // tokens that some / all q vectors see
};

// Rows of K or V as float32 with a stride, zeros where the tokens [begin, end) of the block are not wanted.
template <class T>
const float* block_rows(const T* source, int64_t stride, int64_t begin, int64_t end, int64_t dim, int64_t pad,
                        float* buffer, int64_t* out_stride) {
  *out_stride = pad;
  memset(buffer, 0, static_cast<size_t>(begin * pad) * sizeof(float));
  for (int64_t t = begin; t < end; ++t) {
    const T* from = source + t * stride;
    float* to = buffer + t * pad;
    int64_t d = 0;
    for (; d + kLanes <= dim; d += kLanes) store(to + d, load(from + d));
    if (d < dim) store(to + d, load_first(from + d, dim - d));
  }
  memset(buffer + end * pad, 0, static_cast<size_t>((kBlockTokens - end) * pad) * sizeof(float));
  return buffer;
}

inline const float* block_rows_or_direct(const float* source, int64_t stride, int64_t begin, int64_t end, int64_t dim,
                                         int64_t pad, int64_t multiple, float* buffer, int64_t* out_stride) {
  if (begin > 0 || end < kBlockTokens || dim % multiple != 0) {
    return block_rows(source, stride, begin, end, dim, pad, buffer, out_stride);
  }
  *out_stride = stride;
  return source;
}
template <class T>
const float* block_rows_or_direct(const T* source, int64_t stride, int64_t begin, int64_t end, int64_t dim, int64_t pad,
                                  int64_t, float* buffer, int64_t* out_stride) {
  return block_rows(source, stride, begin, end, dim, pad, buffer, out_stride);
}

// Online softmax of scores[first..last)[kPanel]: leaves weights there and the factors for what was summed before.
// bounds: NULL, or first and one past the last visible token of each lane, relative to the block.
inline void softmax_panel(const Panel& panel, float* scores, int64_t first, int64_t last, float softcap,
                          const float* bounds, float* factor) {
  const V lowest = set1(kMinusInfinity), cap = set1(softcap), inverse = set1(softcap > 0 ? 1.0f / softcap : 0.0f);
  for (int64_t j = 0; j < panel.vectors * kLanes; j += kLanes) {
    float* s = scores + j;
    const V old = load(panel.m + j);
    V top = old;
    if (bounds == nullptr && softcap <= 0) {
      for (int64_t t = first; t < last; ++t) top = vmax(top, load(s + t * kPanel));
    } else {
      const V begin = bounds ? load(bounds + j) : lowest, end = bounds ? load(bounds + kPanel + j) : set1(kPanel);
      for (int64_t t = first; t < last; ++t) {
        const V now = set1(static_cast<float>(t));
        V x = load(s + t * kPanel);
        if (softcap > 0) x = soft_cap(x, cap, inverse);
        x = select_ge(now, end, lowest, select_ge(now, begin, x, lowest));
        store(s + t * kPanel, x);
        top = vmax(top, x);
      }
    }
    const V base = select_ge(top, set1(-3.0e38f), top, zero());
    const V shrink = exp_nonpositive(sub(old, base));
    V sum = mul(load(panel.l + j), shrink), seen = zero();
    for (int64_t t = first; t < last; ++t) {
      const V x = sub(load(s + t * kPanel), base), p = exp_nonpositive(x);
      store(s + t * kPanel, p);
      sum = add(sum, p);
      seen = add(seen, x);
    }
    store(panel.m + j, top);
    store(panel.l + j, add(sum, unless_number(seen)));
    store(factor + j, shrink);
  }
}

// K and V of one block as float32 rows.
struct BlockRows {
  const float *k, *v;
  int64_t k_stride, v_stride;
};

// T: elements of q. rows(block, begin, end, k_buffer, v_buffer, spare) gives the rows of a block, zeros or what the
// cache holds outside of [begin, end); spare: scratch of its own.
template <class T, class Rows>
void prefill_tile(const AttendJob& job, int64_t b, int64_t kv_head, int64_t first_vector, float* work, Rows&& rows_of) {
  const AttendRow& row = job.call.rows[b];
  const QuerySpan span = real_queries(row);
  const int64_t n = lesser(kTileRows, span.count * job.group - first_vector);
  const int64_t key_dim = job.shape.key_dim, value_dim = job.shape.value_dim;
  const int64_t key_pad = job.key_pad, value_pad = job.value_pad, value_vectors = (value_dim + kLanes - 1) / kLanes;
  const auto seen_by = [&](int64_t r) {
    return visible(job.call, row, row.q_position + span.first + (first_vector + r) / job.group);
  };

  float* q = work;
  float* acc = q + kTileRows * key_pad;
  float* m = acc + kTileRows * value_pad;
  float* l = m + kTileRows;
  float* k_buffer = l + kTileRows;
  float* v_buffer = k_buffer + kBlockTokens * key_pad;
  float* scores = v_buffer + kBlockTokens * value_pad;
  float* factor = scores + kBlockTokens * kPanel;
  float* bounds = factor + kPanel;

  // k_buffer takes the converted rows of a panel before they are transposed.
  Panel panels[kTileRows / kPanel];
  int64_t panel_count = 0;
  TokenSpan tile = {seen_by(0).begin, seen_by(n - 1).end};
  for (int64_t p = 0; p * kPanel < n; ++p, ++panel_count) {
    const int64_t r0 = p * kPanel, rows = lesser(kPanel, n - r0);
    float* transposed = q + r0 * key_pad;
    panels[p] = {rows,
                 (rows + kLanes - 1) / kLanes,
                 transposed,
                 acc + r0 * value_pad,
                 m + r0,
                 l + r0,
                 {seen_by(r0).begin, seen_by(r0 + rows - 1).end},
                 {seen_by(r0 + rows - 1).begin, seen_by(r0).end}};
    for (int64_t r = 0; r < rows; ++r) {
      const T* source = static_cast<const T*>(query_at(job, b, kv_head, span, first_vector + r0 + r));
      for (int64_t d = 0; d < key_dim; d += kLanes) {
        const V x = key_dim - d >= kLanes ? load(source + d) : load_first(source + d, key_dim - d);
        store(k_buffer + r * key_pad + d, mul(x, set1(job.call.scale)));
      }
    }
    memset(k_buffer + rows * key_pad, 0, static_cast<size_t>((kPanel - rows) * key_pad) * sizeof(float));
    for (int64_t d = 0; d < key_dim; ++d) {
      for (int64_t r = 0; r < kPanel; ++r) transposed[d * kPanel + r] = k_buffer[r * key_pad + d];
    }
  }
  memset(acc, 0, static_cast<size_t>(panel_count * kPanel * value_pad) * sizeof(float));
  for (int64_t r = 0; r < panel_count * kPanel; ++r) m[r] = kMinusInfinity, l[r] = 0;

  for (int64_t block = tile.begin / kBlockTokens; block * kBlockTokens < tile.end; ++block) {
    const int64_t origin = block * kBlockTokens;
    const int64_t begin = greater(tile.begin - origin, 0), end = lesser(tile.end - origin, kBlockTokens);
    if (begin >= end) break;
    const BlockRows kv = rows_of(block, begin, end, k_buffer, v_buffer, bounds + 2 * kPanel);
    const float *k = kv.k, *v = kv.v;
    const int64_t k_stride = kv.k_stride, v_stride = kv.v_stride;
    for (int64_t p = 0; p < panel_count; ++p) {
      const Panel& panel = panels[p];
      const int64_t from = greater(panel.any.begin - origin, 0) / kTokenTile * kTokenTile;
      const int64_t to = round_up(lesser(panel.any.end - origin, kBlockTokens), kTokenTile);
      if (from >= to) continue;
      for (int64_t j = 0; j < panel.vectors; j += kRowVectors) {
        with_count<kRowVectors>(panel.vectors - j, [&](auto count) {
          for (int64_t t = from; t < to; t += kTokenTile) {
            score_tile<decltype(count)::value>(panel.q + j * kLanes, k + t * k_stride, k_stride, key_dim,
                                               scores + t * kPanel + j * kLanes);
          }
        });
      }
      const bool edge = panel.all.begin > origin + from || panel.all.end < origin + to;
      if (edge) {
        for (int64_t r = 0; r < kPanel; ++r) {
          const TokenSpan own = seen_by(p * kPanel + lesser(r, panel.rows - 1));
          bounds[r] = static_cast<float>(lesser(greater(own.begin - origin, 0), kBlockTokens));
          bounds[kPanel + r] = static_cast<float>(lesser(greater(own.end - origin, 0), kBlockTokens));
        }
      }
      float softcap = job.call.softcap;
      if (job.call.bias != nullptr) {
        if (softcap > 0) {
          const V c = set1(softcap), inverse = set1(1.0f / softcap);
          for (int64_t i = from * kPanel; i < to * kPanel; i += kLanes)
            store(scores + i, soft_cap(load(scores + i), c, inverse));
          softcap = 0;
        }
        for (int64_t r = 0; r < panel.rows; ++r) {
          const TokenSpan own = seen_by(p * kPanel + r);
          int64_t stride;
          const float* bias = bias_at(job, b, kv_head, span, first_vector + p * kPanel + r, &stride);
          const int64_t stop = lesser(own.end - origin, to);
          for (int64_t t = greater(own.begin - origin, from); t < stop; ++t) {
            scores[t * kPanel + r] += bias[(origin + t) * stride];
          }
        }
      }
      softmax_panel(panel, scores, from, to, softcap, edge ? bounds : nullptr, factor);
      for (int64_t j = 0; j < value_vectors; j += kRowVectors) {
        with_count<kRowVectors>(value_vectors - j, [&](auto count) {
          constexpr int kVectors = decltype(count)::value, kRows = kRowVectors >= 4 && kVectors <= 2 ? 8 : 4;
          for (int64_t r = 0; r < panel.rows; r += kRows) {
            output_tile<kRows, kVectors>(scores + from * kPanel + r, v + from * v_stride + j * kLanes, v_stride,
                                         to - from, factor + r, panel.acc + r * value_pad + j * kLanes, value_pad);
          }
        });
      }
    }
  }

  for (int64_t r = 0; r < n; ++r) {
    const int64_t vector = first_vector + r;
    write_result(job, b, span.first + vector / job.group, kv_head * job.group + vector % job.group, m[r], l[r],
                 acc + r * value_pad);
  }
}

template <class T>
void prefill_typed(const AttendJob& job, int64_t b, int64_t kv_head, int64_t first_vector, float* work) {
  const AttendRow& row = job.call.rows[b];
  const auto rows = [&](int64_t block, int64_t begin, int64_t end, float* k_buffer, float* v_buffer, float*) {
    const KvBlock& kv = row.blocks[block - row.first_block];
    BlockRows x;
    x.k = block_rows_or_direct(static_cast<const T*>(kv.k) + kv_head * kv.k_head_stride, kv.k_token_stride, begin, end,
                               job.shape.key_dim, job.key_pad, 1, k_buffer, &x.k_stride);
    x.v = block_rows_or_direct(static_cast<const T*>(kv.v) + kv_head * kv.v_head_stride, kv.v_token_stride, begin, end,
                               job.shape.value_dim, job.value_pad, kLanes, v_buffer, &x.v_stride);
    return x;
  };
  prefill_tile<T>(job, b, kv_head, first_vector, work, rows);
}

void prefill(const AttendJob& job, int64_t b, int64_t kv_head, int64_t first_vector, float* work) {
  if (job.shape.dtype.bits == 32) return prefill_typed<float>(job, b, kv_head, first_vector, work);
  if (job.shape.dtype.code == KVP_DTYPE_BFLOAT) return prefill_typed<Bf16>(job, b, kv_head, first_vector, work);
  prefill_typed<F16>(job, b, kv_head, first_vector, work);
}

}  // namespace
}  // namespace kvplug::sdk
