// SPDX-License-Identifier: Apache-2.0
// Included before kernels that are written for AVX-512: the intrinsics in plain C++, from SIMDe, and here those that
// its 0.7.4 lacks. Nothing is fast.
#pragma once

#define SIMDE_NO_NATIVE
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx2.h>
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>
#include <simde/x86/fma.h>

#include <cmath>
#include <cstdint>
#include <cstring>

// The compiler's own intrinsics, which kernels include.
#define _IMMINTRIN_H_INCLUDED
#define __IMMINTRIN_H

namespace emulated {

template <class T, int kCount>
struct Lanes {
  T x[kCount];
};
template <class To, class From>
inline To as(const From& from) {
  To to;
  static_assert(sizeof to == sizeof from);
  std::memcpy(&to, &from, sizeof to);
  return to;
}
template <class To, class From, class Function>
inline auto lanes(const From& from, Function f) {
  To to;
  for (int i = 0; i < static_cast<int>(sizeof to.x / sizeof to.x[0]); ++i) to.x[i] = f(from.x[i]);
  return to;
}

using Floats = Lanes<float, 16>;
using Ints = Lanes<int32_t, 16>;
using Halves = Lanes<uint16_t, 16>;

inline float half_to_float(uint16_t half) {
  const uint32_t exponent = half >> 10 & 31, mantissa = half & 1023;
  const float size = exponent == 31  ? (mantissa != 0 ? NAN : INFINITY)
                     : exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                                     : std::ldexp(static_cast<float>(mantissa + 1024), static_cast<int>(exponent) - 25);
  return std::copysign(size, (half & 0x8000) != 0 ? -1.0f : 1.0f);
}
// Nearest even.
inline uint16_t float_to_half(float x) {
  const auto sign = static_cast<uint16_t>(std::signbit(x) ? 0x8000 : 0);
  const float size = std::fabs(x);
  if (std::isnan(x)) return sign | 0x7e00;
  if (size < 0x1p-14f) return static_cast<uint16_t>(sign | static_cast<int>(std::nearbyint(size * 0x1p24f)));
  int exponent = 0;
  const float mantissa = std::frexp(size, &exponent);  // [0.5, 1)
  if (size >= 65520.0f) return sign | 0x7c00;
  const int bits = static_cast<int>(std::nearbyint(mantissa * 2048)) - 1024;  // 1024: into the exponent
  return static_cast<uint16_t>(sign | (((exponent + 14) << 10) + bits));
}

template <class Vector, class T, int kCount>
inline Vector masked_load(uint32_t mask, const void* from) {
  Lanes<T, kCount> to{};
  for (int i = 0; i < kCount; ++i) {
    if ((mask >> i & 1) != 0) std::memcpy(&to.x[i], static_cast<const T*>(from) + i, sizeof(T));
  }
  return as<Vector>(to);
}
template <class T, int kCount, class Vector>
inline void masked_store(void* to, uint32_t mask, const Vector& vector) {
  const auto from = as<Lanes<T, kCount>>(vector);
  for (int i = 0; i < kCount; ++i) {
    if ((mask >> i & 1) != 0) std::memcpy(static_cast<T*>(to) + i, &from.x[i], sizeof(T));
  }
}

inline __m512 permuted(__m512 a, int control) {
  const auto from = as<Floats>(a);
  Floats to;
  for (int i = 0; i < 16; ++i) to.x[i] = from.x[i / 4 * 4 + (control >> (i % 4 * 2) & 3)];
  return as<__m512>(to);
}
inline __m512 shuffled(__m512 a, __m512 b, int control) {
  using Quarters = Lanes<Lanes<float, 4>, 4>;
  const auto x = as<Quarters>(a), y = as<Quarters>(b);
  return as<__m512>(Quarters{{x.x[control & 3], x.x[control >> 2 & 3], y.x[control >> 4 & 3], y.x[control >> 6 & 3]}});
}
inline __m512i shifted(__m512i a, int by) {
  return as<__m512i>(lanes<Ints>(as<Ints>(a), [&](int32_t x) { return x >> by; }));
}
inline __m256i halves(__m512 a) { return as<__m256i>(lanes<Halves>(as<Floats>(a), float_to_half)); }

}  // namespace emulated

using __mmask16 = uint16_t;
using _MM_PERM_ENUM = int;

#define _mm512_permute_ps(a, control) emulated::permuted(a, control)
#define _mm512_shuffle_epi32(a, control) \
  emulated::as<__m512i>(emulated::permuted(emulated::as<__m512>(a), static_cast<int>(control)))
#define _mm512_shuffle_f32x4(a, b, control) emulated::shuffled(a, b, control)
#define _mm512_srai_epi32(a, by) emulated::shifted(a, by)
#define _mm512_cvtps_ph(a, rounding) emulated::halves(a)
#define _mm512_maskz_loadu_ps(mask, from) emulated::masked_load<__m512, float, 16>(mask, from)
#define _mm512_maskz_loadu_epi16(mask, from) emulated::masked_load<__m512i, uint16_t, 32>(mask, from)
#define _mm256_maskz_loadu_epi16(mask, from) emulated::masked_load<__m256i, uint16_t, 16>(mask, from)
#define _mm512_mask_storeu_ps(to, mask, a) emulated::masked_store<float, 16>(to, mask, a)
#define _mm256_mask_storeu_epi16(to, mask, a) emulated::masked_store<uint16_t, 16>(to, mask, a)

inline __m512 _mm512_cvtph_ps(__m256i a) {
  return emulated::as<__m512>(
      emulated::lanes<emulated::Floats>(emulated::as<emulated::Halves>(a), emulated::half_to_float));
}
inline __m512i _mm512_cvtepu8_epi32(__m128i a) {
  const auto from = emulated::as<emulated::Lanes<uint8_t, 16>>(a);
  return emulated::as<__m512i>(emulated::lanes<emulated::Ints>(from, [](uint8_t x) { return int32_t{x}; }));
}
inline __m512i _mm512_cvtepu16_epi32(__m256i a) {
  const auto from = emulated::as<emulated::Halves>(a);
  return emulated::as<__m512i>(emulated::lanes<emulated::Ints>(from, [](uint16_t x) { return int32_t{x}; }));
}
inline __m512 _mm512_cvtepi32_ps(__m512i a) {
  const auto from = emulated::as<emulated::Ints>(a);
  return emulated::as<__m512>(emulated::lanes<emulated::Floats>(from, [](int32_t x) { return static_cast<float>(x); }));
}
inline __m256i _mm512_cvtepi32_epi16(__m512i a) {
  const auto from = emulated::as<emulated::Ints>(a);
  return emulated::as<__m256i>(
      emulated::lanes<emulated::Halves>(from, [](int32_t x) { return static_cast<uint16_t>(x); }));
}
#undef _mm512_madd_epi16  // SIMDe's is the masked one
inline __m512i _mm512_madd_epi16(__m512i a, __m512i b) {
  using Shorts = emulated::Lanes<int16_t, 32>;
  const auto x = emulated::as<Shorts>(a), y = emulated::as<Shorts>(b);
  emulated::Ints to;
  for (int i = 0; i < 16; ++i) to.x[i] = x.x[2 * i] * y.x[2 * i] + x.x[2 * i + 1] * y.x[2 * i + 1];
  return emulated::as<__m512i>(to);
}

// Statements that hold a value in a vector register: there is none.
#define __asm__(...) static_cast<void>(0)
