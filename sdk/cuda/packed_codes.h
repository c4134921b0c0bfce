// SPDX-License-Identifier: Apache-2.0
// Packed codes (packed.h) on a device: four at a time, as they share a word. `lane`: the token of a tile of keys, the
// dim within a row's 16 of values; the four codes are then dims 4 * row and up, or tokens 4 * (row % 4) and up.
#pragma once

#include <kvplug/sdk/packed.h>

#include "launch.h"

namespace kvplug::sdk::cuda {

constexpr int kTile = static_cast<int>(kTileTokens);

// Rows that share 64 bytes: 8 / bits, as a power of two.
KVP_DEVICE_CODE int log_rows(int bits) { return bits == 8 ? 0 : bits == 4 ? 1 : bits == 2 ? 2 : 3; }

KVP_DEVICE_CODE uint32_t plane_quad(const uint8_t* plane, int bits, int row, int lane) {
  const int log = log_rows(bits);
  const uint32_t word = *reinterpret_cast<const uint32_t*>(plane + (row >> log) * 64 + 4 * lane);
  return word >> ((row & ((1 << log) - 1)) * bits) & 0x01010101u * ((1u << bits) - 1);
}
KVP_DEVICE_CODE uint32_t quad_of(int bits, int64_t high_plane, const uint8_t* tile, int row, int lane) {
  if (bits != 3) return plane_quad(tile, bits, row, lane);
  return plane_quad(tile, 2, row, lane) | plane_quad(tile + high_plane, 1, row, lane) << 2;
}

// What a code stands for before scale and offset. Floats of 8 bits: infinities are NaN, as on the CPU.
KVP_DEVICE_CODE float number_of(int32_t format, uint32_t code) {
  if (format == KVP_FORMAT_AFFINE) return static_cast<float>(code);
  const int mantissa = format == KVP_FORMAT_FP8_E4M3 ? 3 : 2, bias = mantissa == 3 ? 7 : 15;
  const uint32_t size = code & 127u, exponent = size >> mantissa, rest = size & ((1u << mantissa) - 1);
  float x = NAN;
  if (size < (mantissa == 3 ? 0x7fu : 0x7cu)) {
    const uint32_t whole = exponent == 0 ? rest : rest | 1u << mantissa;
    x = static_cast<float>(whole) * ldexpf(1.0f, static_cast<int>(exponent == 0 ? 1 : exponent) - bias - mantissa);
  }
  return code < 128u ? x : -x;
}

KVP_DEVICE_CODE float load_plain(kvp_dtype dtype, const void* from, int64_t i) {
  if (dtype.bits == 32) return static_cast<const float*>(from)[i];
  if (dtype.code == KVP_DTYPE_BFLOAT) return BF16::load(static_cast<const BF16::Bits*>(from)[i]);
  return F16::load(static_cast<const F16::Bits*>(from)[i]);
}
KVP_DEVICE_CODE void store_plain(kvp_dtype dtype, void* to, int64_t i, float x) {
  if (dtype.bits == 32) {
    static_cast<float*>(to)[i] = x;
  } else if (dtype.code == KVP_DTYPE_BFLOAT) {
    static_cast<BF16::Bits*>(to)[i] = BF16::store(x);
  } else {
    static_cast<F16::Bits*>(to)[i] = F16::store(x);
  }
}

}  // namespace kvplug::sdk::cuda
