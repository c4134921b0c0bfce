// SPDX-License-Identifier: Apache-2.0
// Single values of the plain types, for code that repeats a reference value by value.
#pragma once

#include <kvplug/sdk/tensor.h>

#include <cmath>
#include <cstdint>
#include <cstring>

namespace kvplug::sdk {

inline float float_of(uint32_t bits) noexcept {
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}
inline uint32_t bits_of(float f) noexcept {
  uint32_t u;
  std::memcpy(&u, &f, sizeof u);
  return u;
}

inline float widen(uint16_t h, kvp_dtype dtype) noexcept {
  if (dtype.code == KVP_DTYPE_BFLOAT) return float_of(uint32_t{h} << 16);
  const uint32_t sign = (h & 0x8000u) << 16, rest = h & 0x7fffu;
  if (rest >= 0x7c00u) return float_of(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  return float_of(sign | bits_of(float_of(rest << 13) * 0x1p112f));
}

inline uint16_t narrow(float f, kvp_dtype dtype) noexcept {
  const uint32_t u = bits_of(f), sign = u >> 16 & 0x8000u, rest = u & 0x7fffffffu;
  if (dtype.code == KVP_DTYPE_BFLOAT) {
    if (rest > 0x7f800000u) return 0x7fc0;
    return static_cast<uint16_t>((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
  }
  if (rest > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (rest >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (rest < 0x38800000u) return static_cast<uint16_t>(sign | (bits_of(float_of(rest) + 0.5f) - 0x3f000000u));
  return static_cast<uint16_t>(sign | (rest - 0x38000000u + 0xfffu + (rest >> 13 & 1u)) >> 13);
}

inline float load_value(const void* from, int64_t i, kvp_dtype dtype) noexcept {
  if (dtype.bits == 32) return static_cast<const float*>(from)[i];
  return widen(static_cast<const uint16_t*>(from)[i], dtype);
}
inline void store_value(void* to, int64_t i, kvp_dtype dtype, float f) noexcept {
  if (dtype.bits == 32) {
    static_cast<float*>(to)[i] = f;
  } else {
    static_cast<uint16_t*>(to)[i] = narrow(f, dtype);
  }
}
// The nearest value of the type, ties to even.
inline float rounded(float f, kvp_dtype dtype) noexcept {
  return dtype.bits == 32 ? f : widen(narrow(f, dtype), dtype);
}

// min and max as the reference has them: NaN wins.
inline float min_nan(float a, float b) noexcept { return std::isnan(a) || a < b ? a : b; }
inline float max_nan(float a, float b) noexcept { return std::isnan(a) || a > b ? a : b; }
// clamp(round(x), 0, levels), half to even; NaN: 0.
inline uint8_t code_of(float x, int32_t levels) noexcept {
  const float r = std::nearbyint(x);
  return static_cast<uint8_t>(!(r > 0) ? 0 : r > static_cast<float>(levels) ? levels : static_cast<int32_t>(r));
}

// f(flat index, address of element) over [batch, heads, tokens, dim] in order.
template <class F>
void for_each_value(const kvp_tensor& t, F&& f) {
  int64_t i = 0;
  for (int64_t b = 0; b < t.shape[0]; ++b) {
    for (int64_t h = 0; h < t.shape[1]; ++h) {
      for (int64_t s = 0; s < t.shape[2]; ++s) {
        std::byte* row = at(t, b, h, s);
        for (int64_t d = 0; d < t.shape[3]; ++d) f(i++, row, d);
      }
    }
  }
}

}  // namespace kvplug::sdk
