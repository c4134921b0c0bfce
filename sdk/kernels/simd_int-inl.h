// SPDX-License-Identifier: Apache-2.0
// Vectors of integers, as wide as those of simd-inl.h: bytes of codes, 16-bit sums, 32-bit sums.
#pragma once

#include "simd-inl.h"

namespace kvplug::sdk {
namespace {

inline constexpr int kRowVectors64 = 16 / kLanes;  // vectors of a row of 64 codes
inline constexpr float kRoundMagic = 12582912.0f;  // 1.5 * 2^23
inline constexpr int32_t kRoundMagicBits = 0x4b400000;

#if defined(__AVX512F__)

using I = __m512i;
inline I load_int(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline I zero_int() { return _mm512_setzero_si512(); }
inline I equal8(I a, I b) { return _mm512_movm_epi8(_mm512_cmpeq_epi8_mask(a, b)); }
inline bool any_equal8(I a, I b) { return _mm512_cmpeq_epi8_mask(a, b) != 0; }
inline I add8(I a, I b) { return _mm512_add_epi8(a, b); }
inline bool any(I a) { return _mm512_test_epi32_mask(a, a) != 0; }
template <int kBy>
inline I shift_left32(I a) {
  return kBy == 0 ? a : _mm512_slli_epi32(a, kBy);
}
template <int kBy>
inline I shift_sign32(I a) {
  return _mm512_srai_epi32(a, kBy);
}
inline V as_float(I a) { return _mm512_castsi512_ps(a); }
inline I as_int(V a) { return _mm512_castps_si512(a); }
inline I load_codes(const uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline I broadcast(int32_t x) { return _mm512_set1_epi32(x); }
inline I bit_and(I a, I b) { return _mm512_and_si512(a, b); }
inline I bit_or(I a, I b) { return _mm512_or_si512(a, b); }
template <int kBy>
inline I shift_right16(I a) {
  return kBy == 0 ? a : _mm512_srli_epi16(a, kBy);
}
inline I shift_right16(I a, int64_t by) { return _mm512_srl_epi16(a, _mm_cvtsi64_si128(by)); }
template <int kBy>
inline I shift_left16(I a) {
  return kBy == 0 ? a : _mm512_slli_epi16(a, kBy);
}
inline I add16(I a, I b) { return _mm512_add_epi16(a, b); }
inline I add32(I a, I b) { return _mm512_add_epi32(a, b); }
inline I multiply_add8(I codes, I b) { return _mm512_maddubs_epi16(codes, b); }
inline I multiply_add16(I a, I b) { return _mm512_madd_epi16(a, b); }
inline V to_float(I a) { return _mm512_cvtepi32_ps(a); }
inline void store_codes8(int32_t* to, const V* x) {
  const I i = _mm512_sub_epi32(_mm512_castps_si512(x[0]), _mm512_set1_epi32(kRoundMagicBits));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtsepi32_epi8(i));
}
inline void store_codes16(int32_t* to, const V* x) {
  const I i = _mm512_sub_epi32(_mm512_castps_si512(x[0]), _mm512_set1_epi32(kRoundMagicBits));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                      _mm512_cvtsepi32_epi16(_mm512_shuffle_epi32(i, static_cast<_MM_PERM_ENUM>(0xd8))));
}

#elif defined(__AVX2__)

using I = __m256i;
inline I load_int(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline I zero_int() { return _mm256_setzero_si256(); }
inline I equal8(I a, I b) { return _mm256_cmpeq_epi8(a, b); }
inline bool any_equal8(I a, I b) { return _mm256_movemask_epi8(_mm256_cmpeq_epi8(a, b)) != 0; }
inline I add8(I a, I b) { return _mm256_add_epi8(a, b); }
inline bool any(I a) { return _mm256_testz_si256(a, a) == 0; }
template <int kBy>
inline I shift_left32(I a) {
  return kBy == 0 ? a : _mm256_slli_epi32(a, kBy);
}
template <int kBy>
inline I shift_sign32(I a) {
  return _mm256_srai_epi32(a, kBy);
}
inline V as_float(I a) { return _mm256_castsi256_ps(a); }
inline I as_int(V a) { return _mm256_castps_si256(a); }
inline I load_codes(const uint8_t* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
inline I broadcast(int32_t x) { return _mm256_set1_epi32(x); }
inline I bit_and(I a, I b) { return _mm256_and_si256(a, b); }
inline I bit_or(I a, I b) { return _mm256_or_si256(a, b); }
template <int kBy>
inline I shift_right16(I a) {
  return kBy == 0 ? a : _mm256_srli_epi16(a, kBy);
}
inline I shift_right16(I a, int64_t by) { return _mm256_srl_epi16(a, _mm_cvtsi64_si128(by)); }
template <int kBy>
inline I shift_left16(I a) {
  return kBy == 0 ? a : _mm256_slli_epi16(a, kBy);
}
inline I add16(I a, I b) { return _mm256_add_epi16(a, b); }
inline I add32(I a, I b) { return _mm256_add_epi32(a, b); }
inline I multiply_add8(I codes, I b) { return _mm256_maddubs_epi16(codes, b); }
inline I multiply_add16(I a, I b) { return _mm256_madd_epi16(a, b); }
inline V to_float(I a) { return _mm256_cvtepi32_ps(a); }
inline I rounded(V x) { return _mm256_sub_epi32(_mm256_castps_si256(x), _mm256_set1_epi32(kRoundMagicBits)); }
inline void store_codes8(int32_t* to, const V* x) {
  const I i = _mm256_permute4x64_epi64(_mm256_packs_epi32(rounded(x[0]), rounded(x[1])), 0xd8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),
                   _mm_packs_epi16(_mm256_castsi256_si128(i), _mm256_extracti128_si256(i, 1)));
}
inline void store_codes16(int32_t* to, const V* x) {
  const I a = _mm256_shuffle_epi32(rounded(x[0]), 0xd8), b = _mm256_shuffle_epi32(rounded(x[1]), 0xd8);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8));
}

#else

typedef uint32_t I __attribute__((vector_size(16)));
typedef uint16_t I16 __attribute__((vector_size(16)));
typedef int32_t IS __attribute__((vector_size(16)));
inline I load_int(const uint8_t* p) {
  I x;
  memcpy(&x, p, sizeof x);
  return x;
}
inline I zero_int() { return I{0, 0, 0, 0}; }
typedef uint8_t I8 __attribute__((vector_size(16)));
inline I equal8(I a, I b) { return reinterpret_cast<I>(reinterpret_cast<I8>(a) == reinterpret_cast<I8>(b)); }
inline I add8(I a, I b) { return reinterpret_cast<I>(reinterpret_cast<I8>(a) + reinterpret_cast<I8>(b)); }
inline bool any(I a) { return (a[0] | a[1] | a[2] | a[3]) != 0; }
inline bool any_equal8(I a, I b) { return any(equal8(a, b)); }
template <int kBy>
inline I shift_left32(I a) {
  return a << kBy;
}
template <int kBy>
inline I shift_sign32(I a) {
  return reinterpret_cast<I>(reinterpret_cast<IS>(a) >> kBy);
}
inline V as_float(I a) { return reinterpret_cast<V>(a); }
inline I as_int(V a) { return reinterpret_cast<I>(a); }
inline I load_codes(const uint8_t* p) { return I{p[0], p[1], p[2], p[3]}; }
inline I broadcast(int32_t x) {
  const uint32_t u = static_cast<uint32_t>(x);
  return I{u, u, u, u};
}
inline I bit_and(I a, I b) { return a & b; }
inline I bit_or(I a, I b) { return a | b; }
template <int kBy>
inline I shift_right16(I a) {
  return reinterpret_cast<I>(reinterpret_cast<I16>(a) >> static_cast<uint16_t>(kBy));
}
inline I shift_right16(I a, int64_t by) {
  return reinterpret_cast<I>(reinterpret_cast<I16>(a) >> static_cast<uint16_t>(by));
}
template <int kBy>
inline I shift_left16(I a) {
  return reinterpret_cast<I>(reinterpret_cast<I16>(a) << static_cast<uint16_t>(kBy));
}
inline I add16(I a, I b) { return reinterpret_cast<I>(reinterpret_cast<I16>(a) + reinterpret_cast<I16>(b)); }
inline I add32(I a, I b) { return a + b; }
inline I multiply_add8(I codes, I b) {
  uint8_t x[16];
  int8_t y[16];
  int16_t z[8];
  memcpy(x, &codes, sizeof x);
  memcpy(y, &b, sizeof y);
  for (int i = 0; i < 8; ++i) z[i] = static_cast<int16_t>(x[2 * i] * y[2 * i] + x[2 * i + 1] * y[2 * i + 1]);
  memcpy(&b, z, sizeof z);
  return b;
}
inline I multiply_add16(I a, I b) {
  int16_t x[8], y[8];
  int32_t z[4];
  memcpy(x, &a, sizeof x);
  memcpy(y, &b, sizeof y);
  for (int i = 0; i < 4; ++i) z[i] = x[2 * i] * y[2 * i] + x[2 * i + 1] * y[2 * i + 1];
  memcpy(&a, z, sizeof z);
  return a;
}
inline V to_float(I a) { return __builtin_convertvector(reinterpret_cast<IS>(a), V); }
inline void store_codes8(int32_t* to, const V* x) {
  for (int i = 0; i < 4; ++i) {
    const IS r = reinterpret_cast<IS>(x[i]) - kRoundMagicBits;
    const int8_t b[4] = {static_cast<int8_t>(r[0]), static_cast<int8_t>(r[1]), static_cast<int8_t>(r[2]),
                         static_cast<int8_t>(r[3])};
    memcpy(to + i, b, sizeof b);
  }
}
inline void store_codes16(int32_t* to, const V* x) {
  for (int i = 0; i < 4; ++i) {
    const IS r = reinterpret_cast<IS>(x[i]) - kRoundMagicBits;
    const int16_t b[4] = {static_cast<int16_t>(r[0]), static_cast<int16_t>(r[2]), static_cast<int16_t>(r[1]),
                          static_cast<int16_t>(r[3])};
    memcpy(to + 2 * i, b, sizeof b);
  }
}

#endif

// acc + codes . b over the bytes of each lane: of 32 bits if kDotBytes, else of 16.
// acc + a . b over the halves of each lane of 32 bits.
#if defined(__AVX512VNNI__)
inline constexpr bool kDotBytes = true;
inline I dot8(I acc, I codes, I b) { return _mm512_dpbusd_epi32(acc, codes, b); }
inline I dot16(I acc, I a, I b) { return _mm512_dpwssd_epi32(acc, a, b); }
#else
inline constexpr bool kDotBytes = false;
inline I dot8(I acc, I codes, I b) { return add16(acc, multiply_add8(codes, b)); }
inline I dot16(I acc, I a, I b) { return add32(acc, multiply_add16(a, b)); }
#endif

// Holds a sum in its register and its place in the order: compilers gather products first and spill them.
inline void settle([[maybe_unused]] I& x) {
#if defined(__AVX512F__)
  __asm__("" : "+v"(x));
#elif defined(__AVX2__)
  __asm__("" : "+x"(x));
#endif
}

}  // namespace
}  // namespace kvplug::sdk
