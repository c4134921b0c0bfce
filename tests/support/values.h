// SPDX-License-Identifier: Apache-2.0
// Tensors for tests: float32, float16 and bfloat16, dense or as a part of a larger buffer, with values that all three
// types hold exactly (multiples of 1/16 up to 8), so that "equal" needs no tolerance.
#pragma once

#include <kvplug/abi.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "reachable.h"

// Where the tensors of a test are said to be: another device is one whose memory the host can reach.
#if !defined(KVPLUG_TEST_DEVICE)
#define KVPLUG_TEST_DEVICE KVP_DEVICE_CPU
#endif

namespace kvplug::test {

inline constexpr kvp_dtype kF32{KVP_DTYPE_FLOAT, 32, 1};
inline constexpr kvp_dtype kF16{KVP_DTYPE_FLOAT, 16, 1};
inline constexpr kvp_dtype kBF16{KVP_DTYPE_BFLOAT, 16, 1};

// f16 here is for normal numbers and zero.
inline float load(const void* at, kvp_dtype dtype) {
  if (dtype.bits == 32) {
    float f;
    std::memcpy(&f, at, 4);
    return f;
  }
  uint16_t bits;
  std::memcpy(&bits, at, 2);
  if (dtype.code == KVP_DTYPE_BFLOAT) return std::bit_cast<float>(uint32_t{bits} << 16);
  const uint32_t sign = uint32_t{bits} >> 15 << 31, exponent = (uint32_t{bits} >> 10) & 31, mantissa = bits & 1023u;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | mantissa << 13);
  if (exponent == 0) return (sign != 0 ? -1.0f : 1.0f) * std::ldexp(static_cast<float>(mantissa), -24);
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

// Values that the type holds exactly only.
inline void store(void* at, kvp_dtype dtype, float f) {
  const auto bits = std::bit_cast<uint32_t>(f);
  if (dtype.bits == 32) {
    std::memcpy(at, &bits, 4);
    return;
  }
  uint16_t half = static_cast<uint16_t>(bits >> 16);
  if (dtype.code != KVP_DTYPE_BFLOAT) {
    const uint32_t exponent = (bits >> 23) & 255;
    half = static_cast<uint16_t>(bits >> 16 & 0x8000u);
    if (exponent != 0) half = static_cast<uint16_t>(half | (exponent - 112) << 10 | ((bits >> 13) & 1023u));
  }
  std::memcpy(at, &half, 2);
}

// A tensor with its memory.
struct Values {
  std::shared_ptr<Reachable<std::byte>> memory;
  kvp_tensor t{};

  kvp_dtype dtype() const { return {t.dtype_code, t.dtype_bits, t.dtype_lanes}; }
  std::byte* at(int64_t i, int64_t j = 0, int64_t k = 0, int64_t l = 0) const {
    const int64_t index[4] = {i, j, k, l};
    int64_t offset = 0;
    for (int32_t d = 0; d < t.ndim; ++d) offset += index[d] * t.strides[d];
    return static_cast<std::byte*>(t.data) + offset * (t.dtype_bits / 8);
  }
  float get(int64_t i, int64_t j = 0, int64_t k = 0, int64_t l = 0) const { return load(at(i, j, k, l), dtype()); }
  void set(float f, int64_t i, int64_t j = 0, int64_t k = 0, int64_t l = 0) const { store(at(i, j, k, l), dtype(), f); }
};

inline kvp_tensor on(int32_t device_type, kvp_tensor t) {
  t.device_type = device_type;
  return t;
}

inline kvp_tensor tensor_of(void* data, kvp_dtype dtype, std::initializer_list<int64_t> shape) {
  kvp_tensor t{};
  t.data = data;
  t.device_type = KVPLUG_TEST_DEVICE;
  t.dtype_code = dtype.code;
  t.dtype_bits = dtype.bits;
  t.dtype_lanes = dtype.lanes;
  for (int64_t size : shape) t.shape[t.ndim++] = size;
  int64_t stride = 1;
  for (int32_t d = t.ndim; d-- > 0;) {
    t.strides[d] = stride;
    stride *= t.shape[d];
  }
  return t;
}

inline Values make(kvp_dtype dtype, std::initializer_list<int64_t> shape) {
  Values v;
  int64_t n = 1;
  for (int64_t size : shape) n *= size;
  v.memory = std::make_shared<Reachable<std::byte>>(static_cast<size_t>(n * dtype.bits / 8));
  v.t = tensor_of(n == 0 ? nullptr : v.memory->data(), dtype, shape);
  return v;
}

// [batch, heads, tokens, dim] as it lies in the output of one fused projection, [batch, tokens, before + heads + after,
// dim].
inline Values make_fused(kvp_dtype dtype, int64_t batch, int64_t heads, int64_t tokens, int64_t dim, int64_t before,
                         int64_t after) {
  const int64_t all = before + heads + after;
  Values v = make(dtype, {batch, tokens, all, dim});
  if (v.t.data != nullptr) v.t.data = static_cast<std::byte*>(v.t.data) + before * dim * dtype.bits / 8;
  const int64_t shape[4] = {batch, heads, tokens, dim}, strides[4] = {tokens * all * dim, dim, all * dim, 1};
  std::memcpy(v.t.shape, shape, sizeof shape);
  std::memcpy(v.t.strides, strides, sizeof strides);
  return v;
}

using Random = std::mt19937_64;
inline int64_t pick(Random& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

inline const Values& fill(const Values& v, Random& random) {
  for (int64_t i = 0; i < v.t.shape[0]; ++i) {
    for (int64_t j = 0; j < v.t.shape[1]; ++j) {
      for (int64_t k = 0; k < v.t.shape[2]; ++k) {
        for (int64_t l = 0; l < v.t.shape[3]; ++l) v.set(static_cast<float>(pick(random, -128, 127)) / 16, i, j, k, l);
      }
    }
  }
  return v;
}

}  // namespace kvplug::test
