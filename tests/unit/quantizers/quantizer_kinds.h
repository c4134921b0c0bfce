// SPDX-License-Identifier: Apache-2.0
// Every quantizer with every choice of its options that packs differently, and random K/V with outlier channels.
#pragma once

#include <cmath>
#include <random>

#include "loaded_quantizer.h"

namespace kvplug::test {

struct Kind {
  std::string plugin;
  int64_t bits, axis, size;  // of an affine one
  std::string granularity;   // of fp8
  std::string format = "e4m3";

  LoadedQuantizer::Options options() const {
    if (plugin == "fp8")
      return {option("fp8_format", format.c_str()), option("scale_granularity", granularity.c_str())};
    return {option("nbits", bits), option("axis", axis), option("q_group_size", size)};
  }
  std::string name() const {
    if (plugin == "fp8") return plugin + " " + format + " " + granularity;
    return plugin + " " + std::to_string(bits) + " bits, axis " + std::to_string(axis) + ", size " +
           std::to_string(size);
  }
};

inline std::vector<Kind> kinds(std::initializer_list<int64_t> sizes = {16, 24, 64}) {
  std::vector<Kind> out;
  for (const int64_t size : sizes) {
    for (const int64_t axis : {0, 1}) {
      for (const int64_t bits : {1, 2, 3, 4, 8}) out.push_back({"hqq", bits, axis, size, ""});
      for (const int64_t bits : {2, 4, 8}) out.push_back({"quanto", bits, -axis, size, ""});
    }
  }
  for (const char* format : {"e4m3", "e5m2"}) {
    for (const char* granularity : {"token_head", "head", "tensor"})
      out.push_back({"fp8", 8, 0, 0, granularity, format});
  }
  return out;
}

// The nearest value of the type; float16: subnormal ones too.
inline void store_nearest(void* at, kvp_dtype dtype, float f) {
  const auto u = std::bit_cast<uint32_t>(f);
  if (dtype.bits == 32) {
    store(at, dtype, f);
  } else if (dtype.code == KVP_DTYPE_BFLOAT) {
    store(at, dtype, std::bit_cast<float>((u + 0x7fffu + (u >> 16 & 1u)) & 0xffff0000u));
  } else if (std::fabs(f) < 0x1p-14f) {
    const auto bits =
        static_cast<uint16_t>((u >> 16 & 0x8000u) | static_cast<uint32_t>(std::nearbyint(std::fabs(f) * 0x1p24f)));
    std::memcpy(at, &bits, 2);
  } else {
    store(at, dtype, std::bit_cast<float>((u + 0xfffu + (u >> 13 & 1u)) & 0xffffe000u));
  }
}

// Normal values; with outliers, every ninth channel is thirty times as large and far from zero.
inline Values normal(kvp_dtype dtype, int64_t batch, int64_t heads, int64_t tokens, int64_t dim, Random& random,
                     bool outliers = false) {
  const Values v = make(dtype, {batch, heads, tokens, dim});
  std::normal_distribution<float> draw;
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t d = 0; d < dim; ++d) {
          const float x = draw(random);
          store_nearest(v.at(b, h, t, d), dtype, outliers && d % 9 == 4 ? 30 * x + 100 : x);
        }
      }
    }
  }
  return v;
}

// Tokens [first, first + n) of v.
inline kvp_tensor tokens_of(const kvp_tensor& v, int64_t first, int64_t n) {
  kvp_tensor t = v;
  t.data = static_cast<std::byte*>(t.data) + first * t.strides[2] * (t.dtype_bits / 8);
  t.shape[2] = n;
  return t;
}

}  // namespace kvplug::test
