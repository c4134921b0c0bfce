// SPDX-License-Identifier: Apache-2.0
// Rows of 8-bit floats (codec-inl.h), sixteen values at a time.
#pragma once

#include "codec-inl.h"
#include "kernels.h"
#include "quant/affine-inl.h"

namespace kvplug::sdk {
namespace {

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
