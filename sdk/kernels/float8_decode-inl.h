// SPDX-License-Identifier: Apache-2.0
// Few queries against packed 8-bit floats: the partitions and chunks of packed_decode-inl.h, products of floats.
//
// A code's exponent and mantissa, moved to their places in a float, with high bits of the exponent set, are its value
// times a power of two. Zero, the subnormal codes and NaN want more work: rows of 64 codes that have none, nearly all
// rows of real keys and values, go without. No product has a subnormal float in it: many CPUs are slow at those.
#pragma once

#include "packed_item-inl.h"

namespace kvplug::sdk {
namespace {

// A code c is rare (zero, subnormal, NaN; of e4m3 also those of the lowest exponent) if (c + kNext) & kRare is zero.
struct E4m3 {
  static constexpr int kExponentUp = 4;
  static constexpr int32_t kKept = 0x07f00000, kHigh = 0x38000000, kNan = 0x7f7f7f7f;
  static constexpr int32_t kNext = 0x01010101, kRare = 0x70707070;
  static constexpr float kScale = 0x1p8f, kLeast = 0x1p-14f;
};
struct E5m2 {
  static constexpr int kExponentUp = 3;
  static constexpr int32_t kKept = 0x0fe00000, kHigh = 0x30000000, kNan = 0x7c7c7c7c;
  static constexpr int32_t kNext = 0x04040404, kRare = 0x78787878;
  static constexpr float kScale = 0x1p16f, kLeast = 0x1p-30f;
};

template <class F>
KVPLUG_INLINE bool float8_any_rare(I codes) {
  return any_equal8(bit_and(add8(codes, broadcast(F::kNext)), broadcast(F::kRare)), zero_int());
}

// Byte kByte of every lane, over kScale. kRare: it may be zero or subnormal, though not NaN.
template <class F, int kByte, bool kRare>
KVPLUG_INLINE V float8_value(I codes) {
  const I moved = shift_sign32<F::kExponentUp>(shift_left32<24 - 8 * kByte>(codes));
  const I sign = broadcast(INT32_MIN);
  if (!kRare) return as_float(bit_or(bit_and(moved, bit_or(broadcast(F::kKept), sign)), broadcast(F::kHigh)));
  // kLeast is the smallest normal code. Below it this is (1 + m) / 2 of it where m is meant, above it is right.
  const V x = as_float(bit_or(bit_and(moved, broadcast(F::kKept)), broadcast(F::kHigh)));
  const V subnormal = sub(add(x, x), set1(F::kLeast));
  return as_float(bit_or(as_int(select_ge(x, set1(F::kLeast), x, subnormal)), bit_and(moved, sign)));
}

// kLanes consecutive codes as they are, NaN (e5m2: and infinities) among them.
template <class F>
inline V float8_values(const uint8_t* p) {
  const I codes = load_codes(p), mask = broadcast(F::kNan & 0x7f);
  const I special = equal8(bit_and(codes, mask), broadcast((F::kNan & 0x7f) | 0x01010100));
  const V x = mul(float8_value<F, 0, true>(codes), set1(F::kScale));
  return as_float(bit_or(as_int(x), shift_left32<23>(special)));
}

inline bool float8_is_nan(uint8_t code, int32_t nan) { return (code & nan & 0x7f) == (nan & 0x7f); }

// Sums over n units (UnitList), 16 factors a unit. nan: lanes that met a NaN.
template <class F, int kHeads>
struct Float8Sums {
  V sum[kHeads][kRowVectors64];
  I nan[kRowVectors64];
};
struct Float8List {
  const PackedTile* tiles;
  int64_t tile_step, u, u_step, n;
  const float* w;
  int64_t w_stride;
};

template <class F, bool kRare, int kHeads, int kByte>
KVPLUG_INLINE void float8_add_byte(const I (&codes)[kRowVectors64], const float* w, int64_t w_stride,
                                   V (&sum)[kHeads][kRowVectors64]) {
  V x[kRowVectors64];
  for (int v = 0; v < kRowVectors64; ++v) x[v] = float8_value<F, kByte, kRare>(codes[v]);
  for (int h = 0; h < kHeads; ++h) {
    const V f = set1(w[h * w_stride + kByte]);
    for (int v = 0; v < kRowVectors64; ++v) sum[h][v] = mul_add(x[v], f, sum[h][v]);
  }
}

template <class F, bool kRare, int kHeads>
KVPLUG_INLINE void float8_add_row(const I (&codes)[kRowVectors64], const float* w, int64_t w_stride,
                                  V (&sum)[kHeads][kRowVectors64]) {
  float8_add_byte<F, kRare, kHeads, 0>(codes, w, w_stride, sum);
  float8_add_byte<F, kRare, kHeads, 1>(codes, w, w_stride, sum);
  float8_add_byte<F, kRare, kHeads, 2>(codes, w, w_stride, sum);
  float8_add_byte<F, kRare, kHeads, 3>(codes, w, w_stride, sum);
}

template <class F, int kHeads>
KVPLUG_INLINE void float8_dot(const Float8List& list, Float8Sums<F, kHeads>& out) {
  V sum[kHeads][kRowVectors64];
  I nan[kRowVectors64];
  for (int v = 0; v < kRowVectors64; ++v) {
    nan[v] = zero_int();
    for (int h = 0; h < kHeads; ++h) sum[h][v] = zero();
  }
  for (int64_t i = 0; i < list.n; ++i) {
    const PackedTile* tile = list.tiles + i * list.tile_step;
    const int64_t unit = unit_bytes<8>(list.u + i * list.u_step);
    const uint8_t *at = tile->data + unit, *ahead = tile[kTilesAhead].data + unit;
    const float* w = list.w + i * 16;
    for (int row = 0; row < 4; ++row, w += 4, at += 64, ahead += 64) {
      __builtin_prefetch(ahead);
      I codes[kRowVectors64];
      bool rare = false;
      for (int v = 0; v < kRowVectors64; ++v) {
        codes[v] = load_int(at + v * 4 * kLanes);
        rare |= float8_any_rare<F>(codes[v]);
      }
      if (!rare) {
        float8_add_row<F, false, kHeads>(codes, w, list.w_stride, sum);
        continue;
      }
      for (int v = 0; v < kRowVectors64; ++v) {
        nan[v] = bit_or(nan[v], equal8(bit_and(codes[v], broadcast(F::kNan)), broadcast(F::kNan)));
      }
      float8_add_row<F, true, kHeads>(codes, w, list.w_stride, sum);
    }
  }
  for (int v = 0; v < kRowVectors64; ++v) {
    out.nan[v] = nan[v];
    for (int h = 0; h < kHeads; ++h) out.sum[h][v] = sum[h][v];
  }
}

// One tile's scores of kHeads vectors. scale: of its 16 tokens.
template <class F, int kHeads>
__attribute__((noinline)) void float8_score(const Float8List& list, const float* scale, float* scores) {
  Float8Sums<F, kHeads> x;
  float8_dot<F, kHeads>(list, x);
  for (int v = 0; v < kRowVectors64; ++v) {
    const V s = load(scale + v * kLanes);
    for (int h = 0; h < kHeads; ++h) {
      store(scores + h * kPackedStride + v * kLanes, mul(mul(x.sum[h][v], set1(F::kScale)), s));
    }
    if (!any(x.nan[v])) continue;
    uint32_t lanes[kLanes];
    memcpy(lanes, &x.nan[v], sizeof lanes);
    for (int i = 0; i < kLanes; ++i) {
      for (int h = 0; h < kHeads && lanes[i] != 0; ++h) {
        scores[h * kPackedStride + v * kLanes + i] = bits_to_float(0x7fc00000);
      }
    }
  }
}

// One unit of 16 dims of V: acc [kHeads][16 of acc_stride] += sums over the tokens of list.n tiles.
template <class F, int kHeads>
__attribute__((noinline)) void float8_sum_unit(const Float8List& list, float* acc, int64_t acc_stride) {
  Float8Sums<F, kHeads> x;
  float8_dot<F, kHeads>(list, x);
  bool nan = false;
  for (int v = 0; v < kRowVectors64; ++v) {
    nan = nan || any(x.nan[v]);
    for (int h = 0; h < kHeads; ++h) {
      float* to = acc + h * acc_stride + v * kLanes;
      store(to, mul_add(x.sum[h][v], set1(F::kScale), load(to)));
    }
  }
  if (!nan) return;
  // A NaN reaches those who give its token a weight.
  for (int64_t t = 0; t < list.n * kTileTokens; ++t) {
    const uint8_t* row = list.tiles[t / kTileTokens].data + unit_bytes<8>(list.u) + t % kTileTokens / 4 * 64 + t % 4;
    for (int d = 0; d < 16; ++d) {
      if (!float8_is_nan(row[4 * d], F::kNan)) continue;
      for (int h = 0; h < kHeads; ++h) {
        if (list.w[h * list.w_stride + t] != 0) acc[h * acc_stride + d] = bits_to_float(0x7fc00000);
      }
    }
  }
}

// q [n][key_pad] -> scores [n][kPackedStride].
template <class F>
void packed_scores(F, const PackedItem& item, const float* q, int64_t key_pad, float* scores, Carver work) {
  const PackedSide& side = item.call->k;
  const int64_t units = units_of(side.form.head_dim);
  float* scale = work.take(kTileTokens);
  const PackedTile* tile = item.k;
  for (int64_t t = item.begin; t < item.end; t += kTileTokens, ++tile) {
    load_floats(side.form.scale_dtype, tile->scale, 0, kTileTokens, scale);
    for (int64_t r = 0; r < item.n; r += kPackedHeads) {
      const Float8List list = {tile, 0, 0, 1, units, q + r * key_pad, key_pad};
      with_count<kPackedHeads>(item.n - r, [&](auto count) {
        float8_score<F, decltype(count)::value>(list, scale, scores + r * kPackedStride + t);
      });
    }
  }
}

// acc [n][value_pad] += weights [n][kPackedStride] times V.
template <class F>
void packed_sum(F, const PackedItem& item, const float* weights, float* acc, int64_t value_pad, Carver work) {
  const PackedSide& side = item.call->v;
  const int64_t units = units_of(side.form.head_dim);
  float* factors = work.take(item.n * kPackedChunk);
  float* scale = work.take(kPackedChunk);
  const PackedTile* tiles = item.v;
  for (int64_t t = item.begin; t < item.end;) {
    const int64_t n = (lesser(item.end, (t / kPackedChunk + 1) * kPackedChunk) - t) / kTileTokens;
    for (int64_t i = 0; i < n; ++i) {
      load_floats(side.form.scale_dtype, tiles[i].scale, 0, kTileTokens, scale + i * kTileTokens);
    }
    for (int64_t r = 0; r < item.n; ++r) {
      for (int64_t i = 0; i < n * kTileTokens; i += kLanes) {
        const V p = load(weights + r * kPackedStride + t + i);
        const V y = mul(p, load(scale + i));
        // A token that weighs nothing may be masked: whatever it holds is nobody's.
        store(factors + r * kPackedChunk + i, select_ge(zero(), p, zero(), y));
      }
    }
    for (int64_t r = 0; r < item.n; r += kPackedHeads) {
      with_count<kPackedHeads>(item.n - r, [&](auto count) {
        for (int64_t u = 0; u < units; ++u) {
          const Float8List list = {tiles, 1, u, 0, n, factors + r * kPackedChunk, kPackedChunk};
          float8_sum_unit<F, decltype(count)::value>(list, acc + r * value_pad + u * 16, value_pad);
        }
      });
    }
    t += n * kTileTokens;
    tiles += n;
  }
}

}  // namespace
}  // namespace kvplug::sdk
