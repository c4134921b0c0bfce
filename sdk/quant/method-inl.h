// SPDX-License-Identifier: Apache-2.0
// What the arithmetic of an affine quantizer is written with: a panel of groups on lanes, and what methods share. On
// the CPU sixteen lanes of a vector, on a device one a thread (sdk/cuda/lanes.h): one source, the same bits. Method has
//   template <class T> KVP_LANE_CODE static void solve(Panel& panel, int bits);  (the values are not needed afterwards)
//   template <class T> KVP_LANE_CODE static L value(L code, L scale, L offset);  before the last rounding to T
// T is the type of what is quantized, of its scales and offsets: float, F16, Bf16.
#pragma once

#if defined(KVP_DEVICE_LANES)
#include "cuda/lanes.h"
#else
#include "quant/lanes-inl.h"
#endif

namespace kvplug::sdk {
namespace {

// kGroupLanes groups of n values, x[i * kPanelPitch + lane]; lanes without a group hold zeros.
struct Panel {
  float* x;
  int64_t n;
  L scale, offset;  // values of T
  // Where codes go: element i, lanes at codes + i * stride; or, transposed, lane j at codes + j * stride + i.
  uint8_t* codes;
  int64_t stride, lanes;
  bool transposed;

  KVP_LANE_CODE L at(int64_t i) const { return load16(x + i * kPanelPitch); }
  KVP_LANE_CODE void put(int64_t i, const L& v) { store16(x + i * kPanelPitch, v); }
};

// Calls element(i) -> code for all elements and stores what it gives.
template <class F>
KVP_LANE_CODE void put_codes(Panel& p, F&& element) {
  if (!p.transposed) {
    for (int64_t i = 0; i < p.n; ++i) store_codes(p.codes + i * p.stride, element(i), p.lanes);
    return;
  }
  for (int64_t i0 = 0; i0 < p.n; i0 += kGroupLanes) {
    uint8_t tile[kGroupLanes][kGroupLanes];
    const int64_t n = p.n - i0 < kGroupLanes ? p.n - i0 : kGroupLanes;
    for (int64_t i = 0; i < n; ++i) store_codes(tile[i], element(i0 + i), kGroupLanes);
    for (int64_t j = 0; j < kGroupLanes; ++j) {
      uint8_t* to = p.codes + j * p.stride + i0;
      for (int64_t i = 0; i < n; ++i) to[i] = tile[i][j];
    }
  }
}

template <class T>
struct Limits;
template <>
struct Limits<float> {
  static constexpr float largest = 0x1.fffffep127f, normal = 0x1p-126f, tiny = 0x1p-149f;
};
template <>
struct Limits<Bf16> {
  static constexpr float largest = 0x1.fep127f, normal = 0x1p-126f, tiny = 0x1p-133f;
};
template <>
struct Limits<F16> {
  static constexpr float largest = 65504.0f, normal = 0x1p-14f, tiny = 0x1p-24f;
};

// The largest step of T whose `levels`-fold stays within `reach`.
template <class T>
KVP_LANE_CODE float step_limit(float reach, float levels) {
  const float limit = reach / levels;
  float s = first_lane(round_to(set1(limit), T()));
  if (s > limit) s -= s * 0x1p-8f, s = first_lane(round_to(set1(s), T()));
  const float largest = Limits<T>::largest;
  return s < largest ? s : largest;
}

// Smallest and largest value, and where all are finite (0) or not (NaN).
struct Range {
  L low, high, finite;
};
KVP_LANE_CODE Range range_of(const Panel& p) {
  Range r = {p.at(0), p.at(0), all(0)};
  for (int64_t i = 0; i < p.n; ++i) {
    const L x = p.at(i);
    r.low = select_ge(r.low, x, x, r.low);
    r.high = select_ge(r.high, x, r.high, x);
    r.finite = add(r.finite, sub(x, x));
  }
  return r;
}

// x, and one and the same NaN in lanes that are not finite.
KVP_LANE_CODE L where_finite(const Range& r, const L& x) {
  return select_ge(r.finite, all(0), x, all(__builtin_nanf("")));
}

// A step as T holds it: capped; where T has few bits left, long enough for all levels to span the range.
template <class T>
KVP_LANE_CODE L stored_step(const L& step, const L& range, float levels, float limit) {
  const L s = at_most(round_to<T>(step), all(limit));
  const L longer = add(s, all(Limits<T>::tiny));
  const L grown = select_ge(mul(s, all(levels)), range, s, longer);
  return select_ge(s, all(Limits<T>::normal), s, grown);
}

}  // namespace
}  // namespace kvplug::sdk
