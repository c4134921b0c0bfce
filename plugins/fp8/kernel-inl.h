// SPDX-License-Identifier: Apache-2.0
// The 8-bit floats of OCP: e4m3 (fn: no infinities, largest 448) and e5m2 (largest 57344), nearest even, subnormals
// kept. Sixteen values at a time; integer operations and single roundings only, so all levels give the same bits.
#pragma once

#include "kernels.h"
#include "quant/affine-inl.h"

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

inline VU choose(VI mask, VU yes, VU no) {
  return (reinterpret_cast<VU>(mask) & yes) | (~reinterpret_cast<VU>(mask) & no);
}

template <class F>
inline VU encode(V x, bool saturates) {
  const VU u = reinterpret_cast<VU>(x), sign = u >> 24 & 0x80u;
  VU rest = u & 0x7fffffffu;
  const VI nan = rest > 0x7f800000u;
  const VI over = rest > float_to_bits(saturates ? F::kLargest : F::kOverflow);
  rest = choose(over, VU{} + float_to_bits(F::kLargest), rest);
  // Subnormal: the addition rounds at the right bit.
  constexpr uint32_t denormal = static_cast<uint32_t>(127 - F::kBias + 23 - F::kMantissa + 1) << 23;
  const VU small = reinterpret_cast<VU>(add(reinterpret_cast<V>(rest), set1(bits_to_float(denormal)))) - denormal;
  constexpr uint32_t rebias = static_cast<uint32_t>(127 - F::kBias) << 23;
  const VU odd = rest >> (23 - F::kMantissa) & 1u;
  const VU normal = (rest - rebias + ((1u << (22 - F::kMantissa)) - 1) + odd) >> (23 - F::kMantissa);
  VU code = choose(rest < (static_cast<uint32_t>(128 - F::kBias) << 23), small, normal);
  code = choose(saturates ? nan : nan | over, VU{} + F::kNan, code);
  return code | sign;
}

template <class F>
inline V decode(VU code) {
  const VU rest = code & 0x7fu;
  const V size = mul(reinterpret_cast<V>(rest << (23 - F::kMantissa)), set1(F::kBias == 7 ? 0x1p120f : 0x1p112f));
  const VI special = F::kBias == 7 ? rest == 0x7fu : rest >= 0x7cu;
  const VU infinite = VU{} + 0x7f800000u + ((F::kBias == 7 ? VU{} + 1u : rest & 3u) << 20);
  return reinterpret_cast<V>(choose(special, infinite, reinterpret_cast<VU>(size)) | (code & 0x80u) << 24);
}

template <class T>
inline float largest(const T* row, int64_t n, bool reference) {
  L most = all(0), nan = all(0);
  for (int64_t i = 0; i < n; i += kGroupLanes) {
    const L x = load16_first(row + i, n - i), size = vabs(x);
    if (reference) {
      most = select_ge(most, size, most, size);  // a NaN may be lost again here, not in the sum
      nan = add(nan, select_ge(size, all(0), all(0), size));
    } else {
      const L finite = select_ge(all(0x1.fffffep127f), size, size, all(0));
      most = select_ge(most, finite, most, finite);
    }
  }
  float out = 0, bad = 0;
  for (int i = 0; i < kVectors; ++i) {
    float t[kLanes], b[kLanes];
    store(t, most.v[i]);
    store(b, nan.v[i]);
    for (int k = 0; k < kLanes; ++k) out = t[k] > out ? t[k] : out, bad += b[k];
  }
  return out + bad;
}

float largest_of(const void* row, kvp_dtype dtype, int64_t n, bool reference) {
  float out = 0;
  with_type(dtype, [&](auto t) { out = largest(static_cast<const decltype(t)*>(row), n, reference); });
  return out;
}

template <class F, class T>
inline void encode_row(const T* row, int64_t n, float scale, bool saturates, uint8_t* codes) {
  const L s = all(scale);
  for (int64_t i = 0; i < n; i += kGroupLanes) {
    const L x = div(load16_first(row + i, n - i), s);
    store_bytes(codes + i, each([&](int v) { return reinterpret_cast<V>(encode<F>(x.v[v], saturates)); }), n - i);
  }
}

void encode_of(const void* row, kvp_dtype dtype, int64_t n, float scale, bool e5m2, bool saturates, uint8_t* codes) {
  with_type(dtype, [&](auto t) {
    const auto* from = static_cast<const decltype(t)*>(row);
    if (e5m2) return encode_row<E5m2>(from, n, scale, saturates, codes);
    encode_row<E4m3>(from, n, scale, saturates, codes);
  });
}

template <class F, class T, class Out>
inline void decode_row(const uint8_t* codes, int64_t n, float scale, Out* out) {
  const L s = all(scale);
  for (int64_t i = 0; i < n; i += kGroupLanes) {
    const L c = load_bytes(codes + i, n - i);
    const L x = each([&](int v) { return decode<F>(reinterpret_cast<VU>(c.v[v])); });
    store16_first(out + i, round_to<T>(mul(x, s)), n - i);
  }
}

void decode_of(const uint8_t* codes, int64_t n, float scale, bool e5m2, kvp_dtype dtype, void* out,
               kvp_dtype out_dtype) {
  with_type(dtype, [&](auto t) {
    with_type(out_dtype, [&](auto o) {
      auto* to = static_cast<decltype(o)*>(out);
      if (e5m2) return decode_row<E5m2, decltype(t)>(codes, n, scale, to);
      decode_row<E4m3, decltype(t)>(codes, n, scale, to);
    });
  });
}

}  // namespace
}  // namespace kvplug::sdk
