// SPDX-License-Identifier: Apache-2.0
// For kernels-inl.h: the three element types, widened to tiles of floats and rounded back.
#pragma once

#include <stdint.h>
#include <string.h>

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace kvplug::model::KVPLUG_LEVEL {
namespace {

constexpr int64_t kTile = 256;
constexpr int kLanes = 16;

inline uint32_t bits_of(float x) {
  uint32_t u;
  memcpy(&u, &x, 4);
  return u;
}
inline float float_of(uint32_t u) {
  float x;
  memcpy(&x, &u, 4);
  return x;
}
inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

struct F32 {
  using Stored = float;
};
struct BF16 {
  using Stored = uint16_t;
};
struct F16 {
  using Stored = uint16_t;
};

inline void widen(F32, const float* x, float* y, int64_t n) { memcpy(y, x, static_cast<size_t>(n) * 4); }
inline void narrow(F32, const float* x, float* y, int64_t n) { memcpy(y, x, static_cast<size_t>(n) * 4); }
inline void round_to(F32, float*, int64_t) {}

// Round to nearest, ties to even; a NaN stays one.
inline uint32_t bf16_of(float x) {
  const uint32_t u = bits_of(x);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  return (u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : rounded;
}
inline void widen(BF16, const uint16_t* x, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = float_of(static_cast<uint32_t>(x[i]) << 16);
}
inline void narrow(BF16, const float* x, uint16_t* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = static_cast<uint16_t>(bf16_of(x[i]));
}
inline void round_to(BF16, float* x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) x[i] = float_of(bf16_of(x[i]) << 16);
}

inline float float_of_half(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16, magnitude = h & 0x7fffu;
  if (magnitude >= 0x7c00u) return float_of(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
  // Subnormal halves come out right because the product with 2^112 is exact.
  return float_of(bits_of(float_of(magnitude << 13) * float_of(0x77800000u)) | sign);
}
inline uint16_t half_of_float(float x) {
  const uint32_t u = bits_of(x), sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | (magnitude >> 13 & 0x3ffu));
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // subnormal: adding 0.5 leaves the rounded value in the low bits
    return static_cast<uint16_t>(sign | (bits_of(float_of(magnitude) + 0.5f) - 0x3f000000u));
  }
  return static_cast<uint16_t>(sign | ((magnitude + 0xc8000fffu + (magnitude >> 13 & 1u)) >> 13));
}
inline void widen(F16, const uint16_t* x, float* y, int64_t n) {
  int64_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i))));
  }
#endif
  for (; i < n; ++i) y[i] = float_of_half(x[i]);
}
inline void narrow(F16, const float* x, uint16_t* y, int64_t n) {
  int64_t i = 0;
#if defined(__F16C__)
  for (; i + 8 <= n; i += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), 0));
  }
#endif
  for (; i < n; ++i) y[i] = half_of_float(x[i]);
}
inline void round_to(F16 type, float* x, int64_t n) {
  uint16_t half[kTile];
  for (int64_t i = 0; i < n; i += kTile) {
    const int64_t count = smaller(n - i, kTile);
    narrow(type, x + i, half, count);
    widen(type, half, x + i, count);
  }
}

}  // namespace
}  // namespace kvplug::model::KVPLUG_LEVEL
