// SPDX-License-Identifier: Apache-2.0
// For kernels-inl.h: activations and capped logits, on an exponential of our own that gives the same bits everywhere.
#pragma once

#include "model/exec/kernels_types-inl.h"

namespace kvplug::model::KVPLUG_LEVEL {
namespace {

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

inline float magnitude(float x) { return float_of(bits_of(x) & 0x7fffffffu); }
inline float with_sign_of(float x, float y) { return float_of(bits_of(y) | (bits_of(x) & 0x80000000u)); }

// 2 units in the last place, of |x|. Cephes' polynomial near 0, where the other form cancels. twice: 2 * |x|, in
// limits.
inline float tanh_of(float x, float twice) {
  const float z = x * x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const float near = p * z * x + x;
  const float far = 1.0f - 2.0f / (exp_of(twice) + 1.0f);
  return x < 0.625f ? near : far;
}

// Both are gate / (1 + exp(minus)).
struct Silu {
  static float minus(float gate) { return -gate; }
};
struct Gelu {  // the tanh form: (1 + tanh(u)) / 2 = 1 / (1 + exp(-2u))
  static float minus(float gate) { return -2.0f * (0.7978845608028654f * (gate + 0.044715f * (gate * gate * gate))); }
};

template <class T, class Curve>
void gated_mul(const void* gate_up, void* to, int64_t rows, int64_t width) {
  float gate[kTile], up[kTile], minus[kTile];
  for (int64_t r = 0; r < rows; ++r) {
    const auto* x = static_cast<const typename T::Stored*>(gate_up) + r * 2 * width;
    auto* y = static_cast<typename T::Stored*>(to) + r * width;
    for (int64_t i = 0; i < width; i += kTile) {
      const int64_t count = smaller(width - i, kTile);
      widen(T{}, x + i, gate, count);
      widen(T{}, x + width + i, up, count);
      // A loop of its own: within the next one, compilers compute the limits' results in every lane, slow subnormals.
      for (int64_t j = 0; j < count; ++j) minus[j] = limited(Curve::minus(gate[j]));
      for (int64_t j = 0; j < count; ++j) gate[j] = gate[j] / (1.0f + exp_of(minus[j]));
      round_to(T{}, gate, count);
      for (int64_t j = 0; j < count; ++j) gate[j] *= up[j];
      narrow(T{}, gate, y + i, count);
    }
  }
}

template <class T>
void softcap(void* x, float cap, int64_t n) {
  float tile[kTile], twice[kTile];
  auto* at = static_cast<typename T::Stored*>(x);
  for (int64_t i = 0; i < n; i += kTile) {
    const int64_t count = smaller(n - i, kTile);
    widen(T{}, at + i, tile, count);
    for (int64_t j = 0; j < count; ++j) tile[j] /= cap;
    round_to(T{}, tile, count);
    for (int64_t j = 0; j < count; ++j) twice[j] = limited(magnitude(tile[j]) * 2.0f);
    for (int64_t j = 0; j < count; ++j) {
      tile[j] = with_sign_of(tile[j], tanh_of(magnitude(tile[j]), twice[j]));
    }
    round_to(T{}, tile, count);
    for (int64_t j = 0; j < count; ++j) tile[j] *= cap;
    narrow(T{}, tile, at + i, count);
  }
}

}  // namespace
}  // namespace kvplug::model::KVPLUG_LEVEL
