// SPDX-License-Identifier: Apache-2.0
// The integer dot product over packed codes, one for keys and values: lanes times 16 codes a step ("unit", four rows of
// a tile), unpacked in registers once for up to kPackedHeads vectors.
//
// Codes of up to 4 bits meet factors of 8 bits: byte products in 16-bit sums, which cannot overflow before they are
// widened (kUnitsBetween), or at once in 32-bit sums where the CPU has that (kDotBytes). Codes of 8 bits meet factors
// of 16 bits, even and odd bytes apart. A lane's sum is exact, so no order of anything can change it, and no level of
// instructions either.
#pragma once

#include "packed_job.h"
#include "simd_int-inl.h"

namespace kvplug::sdk {
namespace {

#define KVPLUG_INLINE inline __attribute__((always_inline))

inline constexpr int kPackedHeads = 4;

template <int kBits>
inline constexpr bool kWide = kBits == 8;
template <int kBits>
inline constexpr int kUnitWords = kWide<kBits> ? 8 : 4;
template <int kBits>
inline constexpr float kFactorLimit = kWide<kBits> ? 16383.0f : 127.0f;
template <int kBits>
inline constexpr float kMiddle = ((1 << kBits) - 1) * 0.5f;
// 127 * 2 * (2^bits - 1) a row and lane, four rows a unit, below 2^15.
template <int kBits>
inline constexpr int64_t kUnitsBetween = kBits == 4   ? 2
                                         : kBits == 3 ? 4
                                         : kBits == 2 ? 8
                                                      : 32;

// A unit's codes before they are shifted apart.
template <int kBits>
inline int64_t unit_bytes(int64_t unit) {
  return kBits == 8 ? unit * 256 : kBits == 4 ? unit * 128 : kBits == 1 ? unit / 2 * 64 : unit * 64;
}

template <int kBits, int kRow>
KVPLUG_INLINE I unit_row(const uint8_t* tile, int64_t unit, int64_t high_plane, int64_t vector) {
  const uint8_t* at = tile + unit_bytes<kBits>(unit) + vector * 4 * kLanes;
  if constexpr (kBits == 8) {
    return load_int(at + kRow * 64);
  } else if constexpr (kBits == 4) {
    return bit_and(shift_right16<kRow % 2 * 4>(load_int(at + kRow / 2 * 64)), broadcast(0x0f0f0f0f));
  } else if constexpr (kBits == 2) {
    return bit_and(shift_right16<2 * kRow>(load_int(at)), broadcast(0x03030303));
  } else if constexpr (kBits == 1) {
    return bit_and(shift_right16<kRow>(shift_right16(load_int(at), unit % 2 * 4)), broadcast(0x01010101));
  } else {
    const I low = bit_and(shift_right16<2 * kRow>(load_int(at)), broadcast(0x03030303));
    const I high = shift_right16(load_int(tile + high_plane + unit_bytes<1>(unit) + vector * 4 * kLanes), unit % 2 * 4);
    const I moved = kRow < 3 ? shift_left16<2 - kRow % 3>(high) : shift_right16<1>(high);
    return bit_or(low, bit_and(moved, broadcast(0x04040404)));
  }
}

// n units; unit i is number u + i * u_step of tiles[i * tile_step]. w: the factors, kUnitWords a unit, w_stride a
// vector.
struct UnitList {
  const PackedTile* tiles;
  int64_t tile_step, u, u_step, n, high_plane;
  const int32_t* w;
  int64_t w_stride;
};

template <int kHeads>
using Sums = I[kHeads][kRowVectors64];

template <int kBits, int kHeads, int kRow>
KVPLUG_INLINE void add_row(const uint8_t* tile, int64_t unit, int64_t high_plane, const int32_t* w, int64_t w_stride,
                           Sums<kHeads>& first, Sums<kHeads>& second) {
  I c[kRowVectors64];
  for (int v = 0; v < kRowVectors64; ++v) c[v] = unit_row<kBits, kRow>(tile, unit, high_plane, v);
  if constexpr (kWide<kBits>) {
    I even[kRowVectors64], odd[kRowVectors64];
    for (int v = 0; v < kRowVectors64; ++v) even[v] = bit_and(c[v], broadcast(0x00ff00ff));
    for (int v = 0; v < kRowVectors64; ++v) odd[v] = shift_right16<8>(c[v]);
    for (int h = 0; h < kHeads; ++h) {
      const I a = broadcast(w[h * w_stride + 2 * kRow]), b = broadcast(w[h * w_stride + 2 * kRow + 1]);
      for (int v = 0; v < kRowVectors64; ++v) first[h][v] = dot16(first[h][v], even[v], a);
      for (int v = 0; v < kRowVectors64; ++v) second[h][v] = dot16(second[h][v], odd[v], b);
      for (int v = 0; v < kRowVectors64; ++v) settle(first[h][v]), settle(second[h][v]);
    }
  } else {
    Sums<kHeads>& to = kRow % 2 == 0 ? first : second;
    for (int h = 0; h < kHeads; ++h) {
      const I a = broadcast(w[h * w_stride + kRow]);
      for (int v = 0; v < kRowVectors64; ++v) to[h][v] = dot8(to[h][v], c[v], a);
      for (int v = 0; v < kRowVectors64; ++v) settle(to[h][v]);
    }
  }
}

template <int kHeads>
KVPLUG_INLINE void clear(Sums<kHeads>& sums) {
  for (int h = 0; h < kHeads; ++h) {
    for (int v = 0; v < kRowVectors64; ++v) sums[h][v] = zero_int();
  }
}

// Every other row is added to `second`, which may be `first`.
template <int kBits, int kHeads>
KVPLUG_INLINE void add_unit(const UnitList& list, int64_t i, Sums<kHeads>& first, Sums<kHeads>& second) {
  const PackedTile* at = list.tiles + i * list.tile_step;
  const uint8_t *tile = at->data, *ahead = at[kTilesAhead].data;
  const int64_t unit = list.u + i * list.u_step;
  const int32_t* w = list.w + i * kUnitWords<kBits>;
  for (int64_t line = 0; line < (kBits == 8 ? 256 : kBits == 4 ? 128 : 64); line += 64) {
    __builtin_prefetch(ahead + unit_bytes<kBits>(unit) + line);
  }
  add_row<kBits, kHeads, 0>(tile, unit, list.high_plane, w, list.w_stride, first, second);
  add_row<kBits, kHeads, 1>(tile, unit, list.high_plane, w, list.w_stride, first, second);
  add_row<kBits, kHeads, 2>(tile, unit, list.high_plane, w, list.w_stride, first, second);
  add_row<kBits, kHeads, 3>(tile, unit, list.high_plane, w, list.w_stride, first, second);
}

template <int kBits, int kHeads>
KVPLUG_INLINE void dot_units(const UnitList& list, Sums<kHeads>& sum) {
  clear<kHeads>(sum);
  if constexpr (kDotBytes) {  // a dot product waits for the one before: two chains a vector keep the CPU busy
    Sums<kHeads> second;
    clear<kHeads>(second);
    for (int64_t i = 0; i < list.n; ++i) add_unit<kBits, kHeads>(list, i, sum, second);
    for (int h = 0; h < kHeads; ++h) {
      for (int v = 0; v < kRowVectors64; ++v) sum[h][v] = add32(sum[h][v], second[h][v]);
    }
  } else if constexpr (kWide<kBits>) {
    for (int64_t i = 0; i < list.n; ++i) add_unit<kBits, kHeads>(list, i, sum, sum);
  } else {
    for (int64_t i = 0; i < list.n;) {
      Sums<kHeads> acc;
      clear<kHeads>(acc);
      for (const int64_t stop = lesser(list.n, i + kUnitsBetween<kBits>); i < stop; ++i) {
        add_unit<kBits, kHeads>(list, i, acc, acc);
      }
      for (int h = 0; h < kHeads; ++h) {
        for (int v = 0; v < kRowVectors64; ++v) {
          sum[h][v] = add32(sum[h][v], multiply_add16(acc[h][v], broadcast(0x00010001)));
        }
      }
    }
  }
}

// x[0..n), n a multiple of 16, as integer factors: x = scale * factor, what rounding took summed in the lanes of
// `lost`. A NaN or infinite x makes `lost` NaN.
struct Factors {
  float scale;
  V lost;
};
template <int kBits>
inline Factors quantize(const float* x, int64_t n, int32_t* words) {
  V top = zero(), sum = zero(), rounded = zero();
  for (int64_t i = 0; i < n; i += kLanes) top = vmax(top, vabs(load(x + i)));
  const float most = max_lane(top);
  const bool usable = most > 1e-30f && most < 3.0e38f;  // so that no division overflows
  const V inverse = set1(usable ? kFactorLimit<kBits> / most : 0.0f), magic = set1(kRoundMagic);
  for (int64_t i = 0; i < n; i += 16, words += kUnitWords<kBits>) {
    V y[kRowVectors64];
    for (int v = 0; v < kRowVectors64; ++v) {
      const V f = load(x + i + v * kLanes);
      y[v] = mul_add(f, inverse, magic);
      sum = add(sum, f);
      rounded = add(rounded, sub(y[v], magic));
    }
    if constexpr (kWide<kBits>) {
      store_codes16(words, y);
    } else {
      store_codes8(words, y);
    }
  }
  const float scale = usable ? most / kFactorLimit<kBits> : 0.0f;
  return {scale, sub(sum, mul(set1(scale), rounded))};
}

}  // namespace
}  // namespace kvplug::sdk
