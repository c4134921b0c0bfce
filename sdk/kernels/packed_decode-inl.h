// SPDX-License-Identifier: Apache-2.0
// Few queries against one partition of packed K/V: scores tile by tile, softmax, weighted sum chunk by chunk, all query
// vectors of the K/V head at once.
//
// With x = code * scale + offset and c the middle of the codes, q.x = scale * (q'.code + c * sum(q - q')) + offset *
// sum(q), where q' is q rounded to integer factors: rounding costs only what is multiplied with (code - c). Groups
// along tokens fold the scale into q (keys) before rounding, groups along the head dimension fold it into the weights
// (values). A scale or offset that is NaN reaches every result it has a weight in.
#pragma once

#include "float8_decode-inl.h"

namespace kvplug::sdk {
namespace {

// What one vector has for one group: idot * a + b, and the factor of the offset.
struct GroupTerms {
  float a, b, c;
};

// Scales or offsets of n tiles for each group along the head dimension: to[group][kPackedChunk].
inline void load_groups(const PackedSide& side, const PackedTile* tiles, int64_t n, const char* PackedTile::* part,
                        float* to) {
  with_floats(side.form.scale_dtype, nullptr, [&](auto* type) {
    for (int64_t k = 0; k < n; ++k) {
      const auto* from = reinterpret_cast<decltype(type)>(tiles[k].*part);
      for (int64_t g = 0; g < side.groups; ++g) {
        for (int64_t i = 0; i < kTileTokens; i += kLanes) {
          store(to + g * kPackedChunk + k * kTileTokens + i, load(from + g * kTileTokens + i));
        }
      }
    }
  });
}
inline void load_channels(const PackedSide& side, const void* from, int64_t token, float* to) {
  const int64_t dim = side.form.head_dim;
  load_floats(side.form.scale_dtype, from, token / side.form.group_size * dim, dim, to);
  for (int64_t d = dim; d < units_of(dim) * 16; ++d) to[d] = 0;
}

inline bool same_group(const PackedSide& side, const PackedTile& a, const PackedTile& b) {
  return a.scale == b.scale && a.token / side.form.group_size == b.token / side.form.group_size;
}

// How many tiles from the one of token t on are computed together: those of a chunk that share their scales, where
// these are of a group of tokens.
inline int64_t chunk_tiles(const PackedSide& side, const PackedTile* tiles, int64_t t, int64_t end) {
  const int64_t most = (lesser(end, (t / kPackedChunk + 1) * kPackedChunk) - t) / kTileTokens;
  if (!along_tokens(side)) return most;
  int64_t n = 1;
  while (n < most && same_group(side, tiles[n], tiles[0])) ++n;
  return n;
}

struct ScoreArgs {
  UnitList list;                              // tiles, w: of tile 0 and group 0
  int64_t tiles, groups, units, group_units;  // units of a tile, of a group
  const GroupTerms* terms;                    // [vector][groups]
  const float *scale, *offset;                // [groups][kPackedChunk]; NULL: in the terms
  float* scores;                              // of tile 0
};

// Not inlined: the register tile is the function.
template <int kBits, int kHeads>
__attribute__((noinline)) void score_packed(const ScoreArgs& args) {
  UnitList list = args.list;
  const int64_t groups = args.groups, group_units = args.group_units, units = args.units;
  const GroupTerms* terms = args.terms;
  for (int64_t first = 0; first < args.tiles * kTileTokens; first += kTileTokens, ++list.tiles) {
    for (int64_t g = 0; g < groups; ++g) {
      list.u = g * group_units;
      list.n = lesser(group_units, units - list.u);
      list.w = args.list.w + list.u * kUnitWords<kBits>;
      Sums<kHeads> sum;
      dot_units<kBits, kHeads>(list, sum);
      for (int v = 0; v < kRowVectors64; ++v) {
        const int64_t token = first + v * kLanes, at = g * kPackedChunk + token;
        const V scale = args.scale != nullptr ? load(args.scale + at) : zero();
        const V offset = args.scale != nullptr ? load(args.offset + at) : zero();
        for (int h = 0; h < kHeads; ++h) {
          const GroupTerms& x = terms[h * groups + g];
          V y = mul_add(to_float(sum[h][v]), set1(x.a), set1(x.b));
          float* to = args.scores + h * kPackedStride + token;
          if (args.scale != nullptr) y = mul_add(scale, y, mul(offset, set1(x.c)));
          store(to, g == 0 ? y : add(load(to), y));
        }
      }
    }
  }
}

struct SumArgs {
  UnitList list;                // u, w: of dim tile 0 and group 0
  int64_t units, group_units;   // dim tiles, of a group
  int64_t groups, group_words;  // of the terms; between the factors of two groups
  const GroupTerms* terms;      // [vector][groups]
  const float *scale, *offset;  // [dim]; NULL: in the terms
  float* acc;
  int64_t acc_stride;
};

template <int kBits, int kHeads>
__attribute__((noinline)) void sum_packed(const SumArgs& args) {
  UnitList list = args.list;
  const int64_t groups = args.groups, group_units = args.group_units, units = args.units;
  const int64_t group_words = args.group_words, acc_stride = args.acc_stride;
  const GroupTerms* terms = args.terms;
  const float *scales = args.scale, *offsets = args.offset;
  float* acc = args.acc;
  for (int64_t u = 0, g = 0, left = group_units; u < units; ++u) {
    list.u = u;
    Sums<kHeads> sum;
    dot_units<kBits, kHeads>(list, sum);
    for (int v = 0; v < kRowVectors64; ++v) {
      const int64_t d = u * 16 + v * kLanes;
      const V scale = scales != nullptr ? load(scales + d) : zero();
      const V offset = scales != nullptr ? load(offsets + d) : zero();
      for (int h = 0; h < kHeads; ++h) {
        const GroupTerms& x = terms[h * groups + g];
        V y = mul_add(to_float(sum[h][v]), set1(x.a), set1(x.b));
        if (scales != nullptr) y = mul_add(scale, y, mul(offset, set1(x.c)));
        float* to = acc + h * acc_stride + d;
        store(to, add(load(to), y));
      }
    }
    if (--left == 0) {
      list.w += group_words;
      left = group_units;
      ++g;
    }
  }
}

template <class F>
inline void with_codes(const PackedForm& form, F&& f) {
  if (form.format == KVP_FORMAT_FP8_E4M3) return f(E4m3());
  if (form.format == KVP_FORMAT_FP8_E5M2) return f(E5m2());
  switch (form.bits) {
    case 1: return f(Count<1>());
    case 2: return f(Count<2>());
    case 3: return f(Count<3>());
    case 4: return f(Count<4>());
    default: return f(Count<8>());
  }
}

inline float sum_of(const float* x, int64_t n) {
  V sum = zero();
  for (int64_t i = 0; i < n; i += kLanes) sum = add(sum, load(x + i));
  return sum_lanes(sum);
}

// q [n][key_pad] -> scores [n][kPackedStride].
template <int kBits>
void packed_scores(Count<kBits>, const PackedItem& item, const float* q, int64_t key_pad, float* scores, Carver work) {
  const PackedSide& side = item.call->k;
  const int64_t dim = side.form.head_dim, units = units_of(dim), groups = side.groups;
  const int64_t word_stride = units * kUnitWords<kBits>;
  const bool folded = along_tokens(side);
  int32_t* words = reinterpret_cast<int32_t*>(work.take(item.n * key_pad / 2));
  GroupTerms* terms = reinterpret_cast<GroupTerms*>(work.take(3 * item.n * groups));
  float* scale = work.take(folded ? key_pad : groups * kPackedChunk);
  float* offset = work.take(folded ? key_pad : groups * kPackedChunk);
  float* scaled = work.take(key_pad);
  const int64_t group_units = folded ? units : lesser(units, (side.form.group_size + 15) / 16);

  if (!folded) {
    for (int64_t r = 0; r < item.n; ++r) {
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t u = g * group_units, size = 16 * lesser(group_units, units - u);
        const float* x = q + r * key_pad + u * 16;
        const Factors f = quantize<kBits>(x, size, words + r * word_stride + u * kUnitWords<kBits>);
        terms[r * groups + g] = {f.scale, kMiddle<kBits> * sum_lanes(f.lost), sum_of(x, size)};
      }
    }
  }

  const PackedTile* tiles = item.k;
  for (int64_t t = item.begin; t < item.end;) {
    const int64_t n = chunk_tiles(side, tiles, t, item.end);
    if (!folded) {
      load_groups(side, tiles, n, &PackedTile::scale, scale);
      load_groups(side, tiles, n, &PackedTile::zero, offset);
    } else if (t == item.begin || !same_group(side, tiles[-1], tiles[0])) {
      load_channels(side, tiles->scale, tiles->token, scale);
      load_channels(side, tiles->zero, tiles->token, offset);
      for (int64_t r = 0; r < item.n; ++r) {
        V constant = zero();
        for (int64_t d = 0; d < units * 16; d += kLanes) {
          const V x = load(q + r * key_pad + d);
          store(scaled + d, mul(x, load(scale + d)));
          constant = mul_add(x, load(offset + d), constant);
        }
        const Factors f = quantize<kBits>(scaled, units * 16, words + r * word_stride);
        terms[r] = {f.scale, sum_lanes(mul_add(set1(kMiddle<kBits>), f.lost, constant)), 0};
      }
    }
    for (int64_t r = 0; r < item.n; r += kPackedHeads) {
      const ScoreArgs args = {{tiles, 0, 0, 1, units, side.high_plane, words + r * word_stride, word_stride},
                              n,
                              groups,
                              units,
                              group_units,
                              terms + r * groups,
                              folded ? nullptr : scale,
                              folded ? nullptr : offset,
                              scores + r * kPackedStride + t};
      with_count<kPackedHeads>(item.n - r, [&](auto count) { score_packed<kBits, decltype(count)::value>(args); });
    }
    t += n * kTileTokens;
    tiles += n;
  }
}

// acc [n][value_pad] += weights [n][kPackedStride] times V.
template <int kBits>
void packed_sum(Count<kBits>, const PackedItem& item, const float* weights, float* acc, int64_t value_pad,
                Carver work) {
  const PackedSide& side = item.call->v;
  const int64_t dim = side.form.head_dim, units = units_of(dim), groups = side.groups;
  const int64_t group_words = kPackedChunk / 16 * kUnitWords<kBits>, word_stride = groups * group_words;
  const bool channels = along_tokens(side);
  int32_t* words = reinterpret_cast<int32_t*>(work.take(item.n * groups * 32));
  GroupTerms* terms = reinterpret_cast<GroupTerms*>(work.take(3 * item.n * groups));
  float* scale = work.take(channels ? value_pad : groups * kPackedChunk);
  float* offset = work.take(channels ? value_pad : groups * kPackedChunk);
  float* scaled = work.take(kPackedChunk);
  const int64_t group_units = channels ? units : lesser(units, (side.form.group_size + 15) / 16);

  const PackedTile* tiles = item.v;
  for (int64_t t = item.begin; t < item.end;) {
    const int64_t n = chunk_tiles(side, tiles, t, item.end);
    if (channels) {
      load_channels(side, tiles->scale, tiles->token, scale);
      load_channels(side, tiles->zero, tiles->token, offset);
    } else {
      load_groups(side, tiles, n, &PackedTile::scale, scale);
      load_groups(side, tiles, n, &PackedTile::zero, offset);
    }

    const int64_t tokens = n * kTileTokens;
    for (int64_t r = 0; r < item.n; ++r) {
      const float* p = weights + r * kPackedStride + t;
      if (channels) {
        const Factors f = quantize<kBits>(p, tokens, words + r * word_stride);
        terms[r] = {f.scale, kMiddle<kBits> * sum_lanes(f.lost), sum_of(p, tokens)};
        continue;
      }
      for (int64_t g = 0; g < groups; ++g) {
        V constant = zero();
        for (int64_t i = 0; i < tokens; i += kLanes) {
          const V x = load(p + i);  // a token that weighs nothing may be masked: whatever it holds is nobody's
          const V s = select_ge(zero(), x, zero(), load(scale + g * kPackedChunk + i));
          const V o = select_ge(zero(), x, zero(), load(offset + g * kPackedChunk + i));
          const V y = mul(x, s);
          store(scaled + i, y);
          constant = mul_add(x, o, constant);
        }
        const Factors f = quantize<kBits>(scaled, tokens, words + r * word_stride + g * group_words);
        terms[r * groups + g] = {f.scale, sum_lanes(mul_add(set1(kMiddle<kBits>), f.lost, constant)), 0};
      }
    }
    for (int64_t r = 0; r < item.n; r += kPackedHeads) {
      const SumArgs args = {{tiles, 1, 0, 0, n, side.high_plane, words + r * word_stride, word_stride},
                            units,
                            group_units,
                            groups,
                            group_words,
                            terms + r * groups,
                            channels ? scale : nullptr,
                            channels ? offset : nullptr,
                            acc + r * value_pad,
                            value_pad};
      with_count<kPackedHeads>(item.n - r, [&](auto count) { sum_packed<kBits, decltype(count)::value>(args); });
    }
    t += tokens;
    tiles += n;
  }
}

void packed_decode(const AttendJob& job, int64_t b, int64_t kv_head, int64_t partition, float* partial, float* work) {
  const AttendRow& row = job.call.rows[b];
  const QuerySpan span = real_queries(row);
  const int64_t n = span.count * job.group, key_dim = job.shape.key_dim;
  const int64_t key_pad = job.key_pad, value_pad = job.value_pad;
  const TokenSpan seen = visible_to_all(job.call, row, span);
  const int64_t origin = partition * kPackedPartition;
  const int64_t begin = greater(seen.begin - origin, 0) / kTileTokens * kTileTokens;
  const int64_t end = round_up(lesser(seen.end - origin, kPackedPartition), kTileTokens);
  float* m = partial;
  float* l = m + partial_head(n);
  float* acc = l + partial_head(n);
  memset(acc, 0, static_cast<size_t>(n * value_pad) * sizeof(float));
  for (int64_t r = 0; r < partial_head(n); ++r) m[r] = kMinusInfinity, l[r] = 0;
  if (seen.begin >= seen.end || begin >= end) return;

  Carver carver = {work};
  float* q = carver.take(n * key_pad);
  float* s = carver.take(n * kPackedStride);
  memset(q, 0, static_cast<size_t>(n * key_pad) * sizeof(float));
  for (int64_t r = 0; r < n; ++r) {
    float* to = q + r * key_pad;
    load_floats(job.shape.dtype, query_at(job, b, kv_head, span, r), 0, key_dim, to);
    for (int64_t d = 0; d < key_dim; d += kLanes) store(to + d, mul(load(to + d), set1(job.call.scale)));
  }
  PackedItem item = {job.packed, b, kv_head, n, origin, begin, end, {}, {}};
  item.find_tiles();
  with_codes(job.packed->k.form, [&](auto codes) { packed_scores(codes, item, q, key_pad, s, carver); });
  for (int64_t r = 0; r < n; ++r) {
    const TokenSpan own = visible(job.call, row, row.q_position + span.first + r / job.group);
    const int64_t own_begin = lesser(greater(own.begin - origin, begin), end);
    const int64_t own_end = greater(lesser(own.end - origin, end), own_begin);
    softmax_row(s + r * kPackedStride, own_begin, own_end, begin, end, job.call.softcap, nullptr, 0, m + r, l + r);
  }
  with_codes(job.packed->v.form, [&](auto codes) { packed_sum(codes, item, s, acc, value_pad, carver); });
}

}  // namespace
}  // namespace kvplug::sdk
