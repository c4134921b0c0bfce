// SPDX-License-Identifier: Apache-2.0
// Bodies of kernels.h, included once per instruction set with KVPLUG_LEVEL and KVPLUG_TABLE defined. Rows are worked on
// in tiles of floats that stay in the first-level cache; the loops are plain and left to the vectoriser. Everything
// lies in a namespace of its own and nothing inline from the standard library is used: code built for a newer CPU must
// never be merged with code that runs on an older one.
#include <stdint.h>
#include <string.h>

#if defined(__F16C__)
#include <immintrin.h>
#endif

#include "model/exec/kernels.h"

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

struct Lanes {
  float sum[kLanes];
};

inline void add_squares(Lanes& lanes, const float* x, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes.sum[j] += x[i + j] * x[i + j];
  }
  for (; i < n; ++i) lanes.sum[i % kLanes] += x[i] * x[i];
}
inline float total(const Lanes& lanes) {
  float tree[kLanes];
  memcpy(tree, lanes.sum, sizeof tree);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) tree[j] += tree[j + width];
  }
  return tree[0];
}
inline float inverse_rms(const Lanes& lanes, int64_t n, float eps) {
  return 1.0f / __builtin_sqrtf(total(lanes) / static_cast<float>(n) + eps);
}

// tile = weight * round(tile * inverse), rounded.
template <class T>
inline void scale_tile(float* tile, const float* weight, float inverse, int64_t n) {
  for (int64_t i = 0; i < n; ++i) tile[i] *= inverse;
  round_to(T{}, tile, n);
  for (int64_t i = 0; i < n; ++i) tile[i] *= weight[i];
}

template <class T>
void normalise(const typename T::Stored* x, const Lanes& lanes, const float* weight, float eps, typename T::Stored* y,
               int64_t n) {
  const float inverse = inverse_rms(lanes, n, eps);
  float tile[kTile];
  for (int64_t i = 0; i < n; i += kTile) {
    const int64_t count = smaller(n - i, kTile);
    widen(T{}, x + i, tile, count);
    scale_tile<T>(tile, weight + i, inverse, count);
    narrow(T{}, tile, y + i, count);
  }
}

template <class T>
void rms_norm(const void* from, const float* weight, float eps, void* to, int64_t rows, int64_t n) {
  float tile[kTile];
  for (int64_t r = 0; r < rows; ++r) {
    const auto* x = static_cast<const typename T::Stored*>(from) + r * n;
    Lanes lanes{};
    for (int64_t i = 0; i < n; i += kTile) {
      const int64_t count = smaller(n - i, kTile);
      widen(T{}, x + i, tile, count);
      add_squares(lanes, tile, count);
    }
    normalise<T>(x, lanes, weight, eps, static_cast<typename T::Stored*>(to) + r * n, n);
  }
}

template <class T>
void add_rms_norm(void* into, const void* delta, const float* weight, float eps, void* to, int64_t rows, int64_t n) {
  float tile[kTile], more[kTile];
  for (int64_t r = 0; r < rows; ++r) {
    auto* x = static_cast<typename T::Stored*>(into) + r * n;
    const auto* d = static_cast<const typename T::Stored*>(delta) + r * n;
    Lanes lanes{};
    for (int64_t i = 0; i < n; i += kTile) {
      const int64_t count = smaller(n - i, kTile);
      widen(T{}, x + i, tile, count);
      widen(T{}, d + i, more, count);
      for (int64_t j = 0; j < count; ++j) tile[j] += more[j];
      round_to(T{}, tile, count);
      narrow(T{}, tile, x + i, count);
      add_squares(lanes, tile, count);
    }
    normalise<T>(x, lanes, weight, eps, static_cast<typename T::Stored*>(to) + r * n, n);
  }
}

template <class T>
void rope(void* x, int64_t row_stride, int64_t rows, int64_t heads, int64_t head_dim, const float* cos,
          const float* sin, const float* weight, float eps) {
  const int64_t half = head_dim / 2;
  float head[kMaxHeadDim], a[kMaxHeadDim], b[kMaxHeadDim];
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t h = 0; h < heads; ++h) {
      auto* at = static_cast<typename T::Stored*>(x) + r * row_stride + h * head_dim;
      widen(T{}, at, head, head_dim);
      if (weight != nullptr) {
        Lanes lanes{};
        add_squares(lanes, head, head_dim);
        scale_tile<T>(head, weight, inverse_rms(lanes, head_dim, eps), head_dim);
        round_to(T{}, head, head_dim);
      }
      if (cos != nullptr) {
        const float *c = cos + r * half, *s = sin + r * half;
        for (int64_t i = 0; i < half; ++i) {
          a[i] = head[i] * c[i];
          b[i] = head[i + half] * s[i];
          a[i + half] = head[i + half] * c[i];
          b[i + half] = head[i] * s[i];
        }
        round_to(T{}, a, head_dim);
        round_to(T{}, b, head_dim);
        for (int64_t i = 0; i < half; ++i) {
          head[i] = a[i] - b[i];
          head[i + half] = a[i + half] + b[i + half];
        }
      }
      narrow(T{}, head, at, head_dim);
    }
  }
}

// exp for |x| <= 88; 2 units in the last place. Cephes' polynomial.
inline float exp_of(float x) {
  const float magic = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const float shifted = x * 1.44269504088896341f + magic;
  const float k = shifted - magic;
  const float r = (x - k * 0.693359375f) - k * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * r) * r + r + 1.0f;
  return p * float_of((bits_of(shifted) - 0x4b400000u + 127u) << 23);
}

// Within -88..88; a NaN stays one.
inline float limited(float x) {
  x = x > 88.0f ? 88.0f : x;
  return x < -88.0f ? -88.0f : x;
}

template <class T>
void silu_mul(const void* gate_up, void* to, int64_t rows, int64_t width) {
  float gate[kTile], up[kTile], minus[kTile];
  for (int64_t r = 0; r < rows; ++r) {
    const auto* x = static_cast<const typename T::Stored*>(gate_up) + r * 2 * width;
    auto* y = static_cast<typename T::Stored*>(to) + r * width;
    for (int64_t i = 0; i < width; i += kTile) {
      const int64_t count = smaller(width - i, kTile);
      widen(T{}, x + i, gate, count);
      widen(T{}, x + width + i, up, count);
      // A loop of its own: within the next one, compilers compute the limits' results in every lane, slow subnormals.
      for (int64_t j = 0; j < count; ++j) minus[j] = limited(-gate[j]);
      for (int64_t j = 0; j < count; ++j) gate[j] = gate[j] / (1.0f + exp_of(minus[j]));
      round_to(T{}, gate, count);
      for (int64_t j = 0; j < count; ++j) gate[j] *= up[j];
      narrow(T{}, gate, y + i, count);
    }
  }
}

template <class T>
void to_float(const void* x, float* y, int64_t n) {
  widen(T{}, static_cast<const typename T::Stored*>(x), y, n);
}
template <class T>
void from_float(const float* x, void* y, int64_t n) {
  narrow(T{}, x, static_cast<typename T::Stored*>(y), n);
}

template <class T>
constexpr Kernels table_of() {
  return {rms_norm<T>, add_rms_norm<T>, rope<T>, silu_mul<T>, to_float<T>, from_float<T>};
}

}  // namespace
}  // namespace kvplug::model::KVPLUG_LEVEL

namespace kvplug::model {

const Kernels KVPLUG_TABLE[3] = {KVPLUG_LEVEL::table_of<KVPLUG_LEVEL::F32>(),
                                 KVPLUG_LEVEL::table_of<KVPLUG_LEVEL::BF16>(),
                                 KVPLUG_LEVEL::table_of<KVPLUG_LEVEL::F16>()};

}  // namespace kvplug::model
