// SPDX-License-Identifier: Apache-2.0
// The 8-bit floats of OCP: e4m3 (fn: no infinities, largest 448) and e5m2 (largest 57344), nearest even, subnormals
// kept. Integer operations and single roundings only, so all levels and devices give the same bits.
#pragma once

#include "quant/method-inl.h"

namespace kvplug::sdk {
namespace {

struct E4m3 {
  static constexpr int kMantissa = 3, kBias = 7;
  static constexpr float kLargest = 448.0f;
  static constexpr float kOverflow = 464.0f;  // rounds to 448 still
  static constexpr uint32_t kNan = 0x7f;
};
struct E5m2 {
  static constexpr int kMantissa = 2, kBias = 15;
  static constexpr float kLargest = 57344.0f;
  static constexpr float kOverflow = 57344.0f;
  static constexpr uint32_t kNan = 0x7f;
};

template <class F>
KVP_LANE_CODE VU encode(V x, bool saturates) {
  const VU u = as_bits(x), sign = u >> 24 & 0x80u;
  VU rest = u & 0x7fffffffu;
  const VI nan = rest > 0x7f800000u;
  const float largest = F::kLargest, overflow = F::kOverflow;
  const VI over = rest > float_to_bits(saturates ? largest : overflow);
  rest = choose(over, VU{} + float_to_bits(largest), rest);
  // Subnormal: the addition rounds at the right bit.
  constexpr uint32_t denormal = static_cast<uint32_t>(127 - F::kBias + 23 - F::kMantissa + 1) << 23;
  const VU small = as_bits(add(as_floats(rest), set1(bits_to_float(denormal)))) - denormal;
  constexpr uint32_t rebias = static_cast<uint32_t>(127 - F::kBias) << 23;
  const VU odd = rest >> (23 - F::kMantissa) & 1u;
  const VU normal = (rest - rebias + ((1u << (22 - F::kMantissa)) - 1) + odd) >> (23 - F::kMantissa);
  VU code = choose(rest < (static_cast<uint32_t>(128 - F::kBias) << 23), small, normal);
  code = choose(saturates ? nan : nan | over, VU{} + F::kNan, code);
  return code | sign;
}

template <class F>
KVP_LANE_CODE V decode(VU code) {
  const VU rest = code & 0x7fu;
  const V size = mul(as_floats(rest << (23 - F::kMantissa)), set1(F::kBias == 7 ? 0x1p120f : 0x1p112f));
  const VI special = F::kBias == 7 ? rest == 0x7fu : rest >= 0x7cu;
  const VU infinite = VU{} + 0x7f800000u + ((F::kBias == 7 ? VU{} + 1u : rest & 3u) << 20);
  return as_floats(choose(special, infinite, as_bits(size)) | (code & 0x80u) << 24);
}

}  // namespace
}  // namespace kvplug::sdk
