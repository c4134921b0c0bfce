// SPDX-License-Identifier: Apache-2.0
// Sixteen lanes, one group a lane, on whatever vector the target has. Every operation is one rounding a lane, never
// fused: the bits of a lane do not depend on the width.
#pragma once

#include "kernels/simd-inl.h"

#define KVP_LANE_CODE inline

namespace kvplug::sdk {
namespace {

typedef uint32_t VU __attribute__((vector_size(sizeof(V))));
typedef int32_t VI __attribute__((vector_size(sizeof(V))));

inline constexpr int kGroupLanes = 16;
inline constexpr int kVectors = kGroupLanes / kLanes;
inline constexpr int kPanelPitch = kGroupLanes;

inline VU as_bits(V x) { return reinterpret_cast<VU>(x); }
inline V as_floats(VU x) { return reinterpret_cast<V>(x); }
inline VU choose(VI mask, VU yes, VU no) {
  return (reinterpret_cast<VU>(mask) & yes) | (~reinterpret_cast<VU>(mask) & no);
}
// The exponents, signed, as whole numbers.
inline V exponents(VU x) { return __builtin_convertvector(reinterpret_cast<VI>(x) >> 23, V); }

struct L {
  V v[kVectors];
};

template <class F>
inline L each(F&& f) {
  L r;
  for (int i = 0; i < kVectors; ++i) r.v[i] = f(i);
  return r;
}
inline L all(float x) {
  return each([&](int) { return set1(x); });
}
inline L add(const L& a, const L& b) {
  return each([&](int i) { return add(a.v[i], b.v[i]); });
}
inline L sub(const L& a, const L& b) {
  return each([&](int i) { return sub(a.v[i], b.v[i]); });
}
inline L mul(const L& a, const L& b) {
  return each([&](int i) { return mul(a.v[i], b.v[i]); });
}
inline L div(const L& a, const L& b) {
  return each([&](int i) { return div(a.v[i], b.v[i]); });
}
inline L vabs(const L& a) {
  return each([&](int i) { return vabs(a.v[i]); });
}
// a >= b ? yes : no; a comparison with NaN is false.
inline L select_ge(const L& a, const L& b, const L& yes, const L& no) {
  return each([&](int i) { return select_ge(a.v[i], b.v[i], yes.v[i], no.v[i]); });
}
// Of the two, x where x is NaN.
inline L at_least(const L& x, const L& low) { return select_ge(low, x, low, x); }
inline L at_most(const L& x, const L& high) { return select_ge(x, high, high, x); }

inline L load16(const float* p) {
  return each([&](int i) { return load(p + i * kLanes); });
}
inline void store16(float* p, const L& x) {
  for (int i = 0; i < kVectors; ++i) store(p + i * kLanes, x.v[i]);
}
template <class T>
inline L load16_first(const T* p, int64_t n) {
  return each([&](int i) { return load_first(p + i * kLanes, n - i * kLanes); });
}
template <class T>
inline void store16_first(T* p, const L& x, int64_t n) {
  for (int i = 0; i < kVectors; ++i) {
    const int64_t left = n - i * kLanes;
    if (left > 0) store_first(p + i * kLanes, x.v[i], left < kLanes ? left : kLanes);
  }
}

// The nearest value of T, ties to even; NaN stays NaN.
inline V round_to(V x, float) { return x; }
inline V round_to(V x, Bf16) {
  const VU u = reinterpret_cast<VU>(x);
  const VU r = (u + 0x7fffu + ((u >> 16) & 1u)) & 0xffff0000u;
  const VI nan = (u & 0x7fffffffu) > 0x7f800000u;
  return reinterpret_cast<V>((r & ~reinterpret_cast<VU>(nan)) | (u & reinterpret_cast<VU>(nan)));
}
inline V round_to(V x, F16) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__AVX2__)
  return _mm256_cvtph_ps(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
#else
  for (int i = 0; i < kLanes; ++i) x[i] = widen_half(narrow_half(x[i]));
  return x;
#endif
}
template <class T>
inline L round_to(const L& x) {
  return each([&](int i) { return round_to(x.v[i], T()); });
}

// clamp(round(x), 0, levels), half to even; NaN: 0. Rounding after clamping is the same, and the addition rounds.
inline L to_code(const L& x, float levels) {
  const L magic = all(12582912.0f);  // 1.5 * 2^23
  const L c = at_most(select_ge(x, all(0), x, all(0)), all(levels));
  return sub(add(c, magic), magic);
}
// The low byte of each lane's bits.
inline void store_bytes(uint8_t* p, const L& x, int64_t n) {
  typedef uint8_t Bytes __attribute__((vector_size(kLanes)));
  uint8_t t[kGroupLanes];
  for (int i = 0; i < kVectors; ++i) {
    const Bytes b = __builtin_convertvector(reinterpret_cast<VU>(x.v[i]) & 0xffu, Bytes);
    memcpy(t + i * kLanes, &b, kLanes);
  }
  if (n >= kGroupLanes) {
    memcpy(p, t, kGroupLanes);
  } else {
    memcpy(p, t, static_cast<size_t>(n));
  }
}
inline L load_bytes(const uint8_t* p, int64_t n) {
  typedef uint8_t Bytes __attribute__((vector_size(kLanes)));
  uint8_t t[kGroupLanes] = {};
  if (n >= kGroupLanes) {
    memcpy(t, p, kGroupLanes);
  } else {
    memcpy(t, p, static_cast<size_t>(n));
  }
  return each([&](int i) {
    Bytes b;
    memcpy(&b, t + i * kLanes, kLanes);
    return reinterpret_cast<V>(__builtin_convertvector(b, VU));
  });
}
// Codes, whole numbers up to 255, as bytes: 2^23 more, they are the low bits.
inline void store_codes(uint8_t* p, const L& code, int64_t n) { store_bytes(p, add(code, all(8388608.0f)), n); }
inline L load_codes(const uint8_t* p, int64_t n) {
  const L bytes = load_bytes(p, n);
  return each([&](int i) { return __builtin_convertvector(reinterpret_cast<VI>(bytes.v[i]), V); });
}

}  // namespace
}  // namespace kvplug::sdk
