// SPDX-License-Identifier: Apache-2.0
// Vectors of one token's head: conversion to and from float32, the Walsh-Hadamard rotation, and the merging of partial
// attention results. Plain loops that compilers vectorise; every sum has an order that follows from the dims alone.
#pragma once

#include <kvplug/sdk/tensor.h>

#include <cmath>
#include <cstring>
#include <limits>

namespace kvplug::quantized {

inline float bits_to_float(uint32_t bits) noexcept {
  float f;
  std::memcpy(&f, &bits, 4);
  return f;
}
inline uint32_t float_to_bits(float f) noexcept {
  uint32_t bits;
  std::memcpy(&bits, &f, 4);
  return bits;
}

inline float half_to_float(uint16_t half) noexcept {
  const uint32_t sign = uint32_t{half & 0x8000u} << 16, rest = half & 0x7fffu;
  if (rest >= 0x7c00u) return bits_to_float(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  // Exact for normal and subnormal numbers alike: the exponent is moved by a product.
  return bits_to_float(sign | float_to_bits(bits_to_float(rest << 13) * 0x1p112f));
}

// Nearest, ties to even.
inline uint16_t float_to_half(float f) noexcept {
  const uint32_t bits = float_to_bits(f), sign = bits >> 16 & 0x8000u, rest = bits & 0x7fffffffu;
  if (rest > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (rest >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (rest < 0x38800000u) {                           // below 2^-14: steps of 2^-24
    const float scaled = bits_to_float(rest) + 0.5f;  // the sum rounds at 2^-24
    return static_cast<uint16_t>(sign | (float_to_bits(scaled) - 0x3f000000u));
  }
  return static_cast<uint16_t>(sign | (rest + 0xfffu + (rest >> 13 & 1u) - 0x38000000u) >> 13);
}

inline uint16_t float_to_bfloat(float f) noexcept {
  const uint32_t bits = float_to_bits(f);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

inline void to_floats(const void* from, kvp_dtype dtype, int64_t n, float* to) noexcept {
  if (dtype.bits == 32) {
    std::memcpy(to, from, static_cast<size_t>(n) * 4);
    return;
  }
  const auto* half = static_cast<const uint16_t*>(from);
  if (dtype.code == KVP_DTYPE_BFLOAT) {
    for (int64_t i = 0; i < n; ++i) to[i] = bits_to_float(uint32_t{half[i]} << 16);
  } else {
    for (int64_t i = 0; i < n; ++i) to[i] = half_to_float(half[i]);
  }
}

inline void from_floats(const float* from, int64_t n, kvp_dtype dtype, void* to) noexcept {
  if (dtype.bits == 32) {
    std::memcpy(to, from, static_cast<size_t>(n) * 4);
    return;
  }
  auto* half = static_cast<uint16_t*>(to);
  if (dtype.code == KVP_DTYPE_BFLOAT) {
    for (int64_t i = 0; i < n; ++i) half[i] = float_to_bfloat(from[i]);
  } else {
    for (int64_t i = 0; i < n; ++i) half[i] = float_to_half(from[i]);
  }
}

// The orthonormal Walsh-Hadamard matrix over consecutive blocks of the largest power of two that divides n. It is its
// own inverse.
inline void rotate(float* x, int64_t n) noexcept {
  const int64_t block = n & -n;
  const float scale = 1.0f / std::sqrt(static_cast<float>(block));
  for (int64_t half = 1; half < block; half *= 2) {
    for (int64_t at = 0; at < n; at += 2 * half) {
      float* const a = x + at;
      float* const b = a + half;
      for (int64_t i = 0; i < half; ++i) {
        const float sum = a[i] + b[i], difference = a[i] - b[i];
        a[i] = sum;
        b[i] = difference;
      }
    }
  }
  for (int64_t i = 0; i < n; ++i) x[i] *= scale;
}

// acc and part become one result in acc: lse = log(exp a + exp b), out weighted alike. The one alone stays as it is.
inline void merge(float* acc, float& acc_lse, const float* part, float part_lse, int64_t n) noexcept {
  if (part_lse == -std::numeric_limits<float>::infinity()) return;
  if (acc_lse == -std::numeric_limits<float>::infinity()) {
    std::memcpy(acc, part, static_cast<size_t>(n) * 4);
    acc_lse = part_lse;
    return;
  }
  const float most = std::fmax(acc_lse, part_lse);
  const float a = std::exp(acc_lse - most), b = std::exp(part_lse - most), sum = a + b;
  const float wa = a / sum, wb = b / sum;
  for (int64_t i = 0; i < n; ++i) acc[i] = wa * acc[i] + wb * part[i];
  acc_lse = most + std::log(sum);
}

}  // namespace kvplug::quantized
