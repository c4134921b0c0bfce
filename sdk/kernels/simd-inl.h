// SPDX-License-Identifier: Apache-2.0
// A vector of floats, as wide as the target this file is compiled for, and the few operations the kernels need.
//
// Included once per target translation unit, everything in an unnamed namespace: code compiled for AVX-512 must never
// be the copy the linker picks for everybody. For the same reason the kernels use no template of the standard library.
// A Pair holds 2 * kLanes consecutive elements in an order of the element type's own: bfloat16 splits into even and odd
// elements, one instruction each. load_pair and store_pair agree on it; sums over both lanes do not see it.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace kvplug::sdk {
namespace {

struct Bf16 {
  uint16_t bits;
};
struct F16 {
  uint16_t bits;
};

inline float bits_to_float(uint32_t u) {
  float f;
  memcpy(&f, &u, sizeof f);
  return f;
}

inline uint32_t float_to_bits(float f) {
  uint32_t u;
  memcpy(&u, &f, sizeof u);
  return u;
}

#if defined(__AVX512F__)

using V = __m512;
struct Pair {
  V a, b;
};
inline constexpr int kLanes = 16;
inline constexpr int kDotRows = 4;    // decode: q vectors that share a loaded K or V vector, so that the usual groups
inline constexpr int kDotTokens = 4;  // read each once; tokens (scores) and pairs of the dim (output) beside them
inline constexpr int kSumPairs = 2;
inline constexpr int kRowVectors = 4;  // prefill: register tile, row vectors (scores) and value vectors (output)
inline constexpr int kTokenTile = 4;

inline V zero() { return _mm512_setzero_ps(); }
inline V set1(float x) { return _mm512_set1_ps(x); }
inline V add(V a, V b) { return _mm512_add_ps(a, b); }
inline V sub(V a, V b) { return _mm512_sub_ps(a, b); }
inline V mul(V a, V b) { return _mm512_mul_ps(a, b); }
inline V div(V a, V b) { return _mm512_div_ps(a, b); }
inline V vmax(V a, V b) { return _mm512_max_ps(a, b); }
inline V vabs(V a) { return _mm512_abs_ps(a); }
inline V mul_add(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
inline V select_ge(V a, V b, V yes, V no) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GE_OQ), no, yes);
}
inline V add_exponent(V x, V n) {
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), _mm512_slli_epi32(_mm512_castps_si512(n), 23)));
}
inline V load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, V x) { _mm512_storeu_ps(p, x); }

inline V widen(__m256i w, Bf16) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(w), 16)); }
inline V widen(__m256i w, F16) { return _mm512_cvtph_ps(w); }
template <class T>
inline V load(const T* p) {
  return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), T());
}
inline uint32_t first_bits(int64_t n) { return n >= 32 ? ~0u : n <= 0 ? 0u : (1u << n) - 1; }
inline V load_first(const float* p, int64_t n) {
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>(first_bits(n)), p);
}
template <class T>
inline V load_first(const T* p, int64_t n) {
  return widen(_mm256_maskz_loadu_epi16(static_cast<__mmask16>(first_bits(n)), p), T());
}

inline Pair split(__m512i w, Bf16) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(w, 16)),
          _mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32(static_cast<int>(0xffff0000u))))};
}
inline Pair split(__m512i w, F16) {
  return {_mm512_cvtph_ps(_mm512_castsi512_si256(w)), _mm512_cvtph_ps(_mm512_extracti64x4_epi64(w, 1))};
}
inline Pair load_pair(const float* p) { return {load(p), load(p + 16)}; }
template <class T>
inline Pair load_pair(const T* p) {
  return split(_mm512_loadu_si512(p), T());
}
inline Pair load_pair_first(const float* p, int64_t n) { return {load_first(p, n), load_first(p + 16, n - 16)}; }
template <class T>
inline Pair load_pair_first(const T* p, int64_t n) {
  return split(_mm512_maskz_loadu_epi16(first_bits(n), p), T());
}
template <class T>
inline void store_pair(float* p, Pair x, T) {
  store(p, x.a);
  store(p + 16, x.b);
}
inline void store_pair(float* p, Pair x, Bf16) {
  const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
  store(p, _mm512_permutex2var_ps(x.a, low, x.b));
  store(p + 16, _mm512_permutex2var_ps(x.a, high, x.b));
}

// The four sums over lanes. Every vector is summed by the same tree, so its place among the four changes no bit.
inline void store_sums(float* p, V a, V b, V c, V d) {
  const V ab = add(_mm512_mask_blend_ps(0xff00, a, b), _mm512_shuffle_f32x4(a, b, 0x4e));
  const V cd = add(_mm512_mask_blend_ps(0xff00, c, d), _mm512_shuffle_f32x4(c, d, 0x4e));
  const __m512i cross = _mm512_setr_epi32(4, 5, 6, 7, 16, 17, 18, 19, 12, 13, 14, 15, 24, 25, 26, 27);
  V x = add(_mm512_mask_blend_ps(0xf0f0, ab, cd), _mm512_permutex2var_ps(ab, cross, cd));  // a c b d
  x = add(x, _mm512_permute_ps(x, 0x4e));
  x = add(x, _mm512_permute_ps(x, 0xb1));
  const __m512i pick = _mm512_setr_epi32(0, 8, 4, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  _mm_storeu_ps(p, _mm512_castps512_ps128(_mm512_permutexvar_ps(pick, x)));
}
inline __m256 upper_half(V x) { return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1)); }
inline float sum_lanes(V x) {
  const __m256 y = _mm256_add_ps(_mm512_castps512_ps256(x), upper_half(x));
  __m128 z = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
  z = _mm_add_ps(z, _mm_permute_ps(z, 0x4e));
  return _mm_cvtss_f32(_mm_add_ss(z, _mm_movehdup_ps(z)));
}
inline float max_lane(V x) {
  const __m256 y = _mm256_max_ps(_mm512_castps512_ps256(x), upper_half(x));
  __m128 z = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
  z = _mm_max_ps(z, _mm_permute_ps(z, 0x4e));
  return _mm_cvtss_f32(_mm_max_ss(z, _mm_movehdup_ps(z)));
}

inline void store_first(float* p, V x, int64_t n) {
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>(first_bits(n)), x);
}
inline void store_first(F16* p, V x, int64_t n) {
  _mm256_mask_storeu_epi16(p, static_cast<__mmask16>(first_bits(n)), _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
inline void store_first(Bf16* p, V x, int64_t n) {  // round to nearest even, a NaN stays one
  const __m512i u = _mm512_castps_si512(x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  __m512i r = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  r = _mm512_mask_set1_epi32(r, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), 0x7fc0);
  _mm256_mask_storeu_epi16(p, static_cast<__mmask16>(first_bits(n)), _mm512_cvtepi32_epi16(r));
}

#else

#if defined(__AVX2__)
inline constexpr int kDotRows = 4, kDotTokens = 2, kSumPairs = 1;
#else
inline constexpr int kDotRows = 2, kDotTokens = 4, kSumPairs = 2;
#endif
inline constexpr int kRowVectors = 2;
inline constexpr int kTokenTile = 4;

#if defined(__AVX2__)

using V = __m256;
struct Pair {
  V a, b;
};
inline constexpr int kLanes = 8;

inline V zero() { return _mm256_setzero_ps(); }
inline V set1(float x) { return _mm256_set1_ps(x); }
inline V add(V a, V b) { return _mm256_add_ps(a, b); }
inline V sub(V a, V b) { return _mm256_sub_ps(a, b); }
inline V mul(V a, V b) { return _mm256_mul_ps(a, b); }
inline V div(V a, V b) { return _mm256_div_ps(a, b); }
inline V vmax(V a, V b) { return _mm256_max_ps(a, b); }
inline V vabs(V a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
inline V mul_add(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
inline V select_ge(V a, V b, V yes, V no) { return _mm256_blendv_ps(no, yes, _mm256_cmp_ps(a, b, _CMP_GE_OQ)); }
inline V add_exponent(V x, V n) {
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), _mm256_slli_epi32(_mm256_castps_si256(n), 23)));
}
inline V load(const float* p) { return _mm256_loadu_ps(p); }
inline V load(const Bf16* p) {
  const __m128i w = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(w), 16));
}
inline V load(const F16* p) { return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
inline void store(float* p, V x) { _mm256_storeu_ps(p, x); }
inline void store(F16* p, V x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
inline Pair load_pair(const Bf16* p) {
  const __m256i w = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(w, 16)),
          _mm256_castsi256_ps(_mm256_and_si256(w, _mm256_set1_epi32(static_cast<int>(0xffff0000u))))};
}
inline void store_pair(float* p, Pair x, Bf16) {
  const V low = _mm256_unpacklo_ps(x.a, x.b), high = _mm256_unpackhi_ps(x.a, x.b);
  store(p, _mm256_permute2f128_ps(low, high, 0x20));
  store(p + 8, _mm256_permute2f128_ps(low, high, 0x31));
}
// The four sums over lanes. Every vector is summed by the same tree, so its place among the four changes no bit.
inline void store_sums(float* p, V a, V b, V c, V d) {
  const V x = _mm256_hadd_ps(_mm256_hadd_ps(a, b), _mm256_hadd_ps(c, d));
  _mm_storeu_ps(p, _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1)));
}
inline float sum_lanes(V x) {
  const V y = _mm256_hadd_ps(x, x), z = _mm256_hadd_ps(y, y);
  return _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(z), _mm256_extractf128_ps(z, 1)));
}
inline float max_lane(V x) {
  __m128 z = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  z = _mm_max_ps(z, _mm_permute_ps(z, 0x4e));
  return _mm_cvtss_f32(_mm_max_ss(z, _mm_movehdup_ps(z)));
}

#else

typedef float V __attribute__((vector_size(16)));
typedef uint32_t VU __attribute__((vector_size(16)));
struct Pair {
  V a, b;
};
inline constexpr int kLanes = 4;

inline V zero() { return V{0, 0, 0, 0}; }
inline V set1(float x) { return V{x, x, x, x}; }
inline V add(V a, V b) { return a + b; }
inline V sub(V a, V b) { return a - b; }
inline V mul(V a, V b) { return a * b; }
inline V div(V a, V b) { return a / b; }
inline V vmax(V a, V b) { return a > b ? a : b; }
inline V vabs(V a) { return reinterpret_cast<V>(reinterpret_cast<VU>(a) & 0x7fffffff); }
inline V mul_add(V a, V b, V c) { return a * b + c; }
inline V select_ge(V a, V b, V yes, V no) { return a >= b ? yes : no; }
inline V add_exponent(V x, V n) {
  return reinterpret_cast<V>(reinterpret_cast<VU>(x) + (reinterpret_cast<VU>(n) << 23));
}

inline float widen_half(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16, rest = h & 0x7fffu;
  if (rest >= 0x7c00u) return bits_to_float(sign | 0x7f800000u | ((rest & 0x3ffu) << 13));
  const float x = bits_to_float(rest << 13) * 0x1p112f;  // exponent bias 127 - 15; subnormals come out right
  return bits_to_float(sign | float_to_bits(x));
}

inline uint16_t narrow_half(float f) {
  const uint32_t u = float_to_bits(f), sign = (u >> 16) & 0x8000u, rest = u & 0x7fffffffu;
  if (rest > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (rest >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (rest < 0x38800000u) {  // subnormal: the addition rounds at the right bit
    const float x = bits_to_float(rest) + 0.5f;
    return static_cast<uint16_t>(sign | (float_to_bits(x) - 0x3f000000u));
  }
  return static_cast<uint16_t>(sign | ((rest - 0x38000000u + 0xfffu + ((rest >> 13) & 1u)) >> 13));
}

inline V load(const float* p) {
  V x;
  memcpy(&x, p, sizeof x);
  return x;
}
inline V load(const Bf16* p) {
  V x = zero();
  for (int i = 0; i < 4; ++i) x[i] = bits_to_float(static_cast<uint32_t>(p[i].bits) << 16);
  return x;
}
inline V load(const F16* p) {
  return V{widen_half(p[0].bits), widen_half(p[1].bits), widen_half(p[2].bits), widen_half(p[3].bits)};
}
inline void store(float* p, V x) { memcpy(p, &x, sizeof x); }
inline void store(F16* p, V x) {
  for (int i = 0; i < 4; ++i) p[i].bits = narrow_half(x[i]);
}
inline Pair load_pair(const Bf16* p) { return {load(p), load(p + 4)}; }
inline void store_pair(float* p, Pair x, Bf16) {
  store(p, x.a);
  store(p + 4, x.b);
}
inline void store_sums(float* p, V a, V b, V c, V d) {
  p[0] = (a[0] + a[1]) + (a[2] + a[3]);
  p[1] = (b[0] + b[1]) + (b[2] + b[3]);
  p[2] = (c[0] + c[1]) + (c[2] + c[3]);
  p[3] = (d[0] + d[1]) + (d[2] + d[3]);
}
inline float sum_lanes(V x) { return (x[0] + x[1]) + (x[2] + x[3]); }
inline float max_lane(V x) {
  const float a = x[0] > x[1] ? x[0] : x[1], b = x[2] > x[3] ? x[2] : x[3];
  return a > b ? a : b;
}

#endif

// Without masked loads the last elements go through a small copy.
template <class T>
inline Pair load_pair(const T* p) {
  return {load(p), load(p + kLanes)};
}
template <class T>
inline void store_pair(float* p, Pair x, T) {
  store(p, x.a);
  store(p + kLanes, x.b);
}
template <class T>
inline V load_first(const T* p, int64_t n) {
  T t[kLanes] = {};
  memcpy(t, p, static_cast<size_t>(n < 0 ? 0 : n > kLanes ? kLanes : n) * sizeof(T));
  return load(t);
}
template <class T>
inline Pair load_pair_first(const T* p, int64_t n) {
  T t[2 * kLanes] = {};
  memcpy(t, p, static_cast<size_t>(n) * sizeof(T));
  return load_pair(t);
}
inline void store(Bf16* p, V x) {  // round to nearest even, a NaN stays one
  float t[kLanes];
  store(t, x);
  for (int i = 0; i < kLanes; ++i) {
    const uint32_t u = float_to_bits(t[i]);
    p[i].bits =
        static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : (u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
}
template <class T>
inline void store_first(T* p, V x, int64_t n) {
  if (n >= kLanes) return store(p, x);
  T t[kLanes];
  store(t, x);
  memcpy(p, t, static_cast<size_t>(n) * sizeof(T));
}

#endif

template <int kN>
struct Count {
  static constexpr int value = kN;
};

// Calls f with min(n, kMax) as a compile-time Count; n is at least 1.
template <int kMax, class F>
inline void with_count(int64_t n, F&& f) {
  if constexpr (kMax > 1) {
    if (n < kMax) return with_count<kMax - 1>(n, f);
  }
  f(Count<kMax>());
}

// 0, or NaN where x is one.
inline V unless_number(V x) { return select_ge(x, set1(-__builtin_inff()), zero(), set1(__builtin_nanf(""))); }

inline float first_lane(V x) {
  float t[kLanes];
  store(t, x);
  return t[0];
}

// e^x for x <= 0, about one unit in the last place, e^0 = 1 exactly; below the smallest normal number it is 0 (so is
// e^-inf).
inline V exp_nonpositive(V x) {
  const V magic = set1(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer that sits in the low bits
  const V t = mul_add(x, set1(1.44269504088896341f), magic);
  const V n = sub(t, magic);
  V r = mul_add(n, set1(-0.693359375f), x);
  r = mul_add(n, set1(2.12194440e-4f), r);
  V y = mul_add(set1(1.9875691500e-4f), r, set1(1.3981999507e-3f));
  y = mul_add(y, r, set1(8.3334519073e-3f));
  y = mul_add(y, r, set1(4.1665795894e-2f));
  y = mul_add(y, r, set1(1.6666665459e-1f));
  y = mul_add(y, r, set1(5.0000001201e-1f));
  y = add(mul_add(y, mul(r, r), r), set1(1.0f));
  return select_ge(x, set1(-87.33f), add_exponent(y, t), zero());
}

// c * tanh(x / c)
inline V soft_cap(V x, V c, V inverse_c) {
  const V e = exp_nonpositive(mul(vabs(mul(x, inverse_c)), set1(-2.0f)));
  const V one = set1(1.0f);
  const V y = mul(c, div(sub(one, e), add(one, e)));
  return select_ge(x, zero(), y, sub(zero(), y));
}

}  // namespace
}  // namespace kvplug::sdk
