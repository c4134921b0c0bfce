// SPDX-License-Identifier: Apache-2.0
// lanes-inl.h on a device: one lane, one group a thread. Operations are intrinsics that the compiler never fuses, so a
// method's bits are those of the CPU; which NaN a NaN is may differ.
#pragma once

#include <cmath>

#include "launch.h"

#define KVP_LANE_CODE KVP_DEVICE_CODE

namespace kvplug::sdk {
namespace {

using V = float;
using VU = uint32_t;
using VI = bool;  // what comparisons give
using F16 = cuda::F16;
using Bf16 = cuda::BF16;

inline constexpr int kGroupLanes = 1;
inline constexpr int kVectors = 1;
inline constexpr int kPanelPitch = 32;  // threads of a block: their panels lie interleaved

struct L {
  float v[1];
};

#if defined(__CUDACC__)
KVP_DEVICE_CODE V add(V a, V b) { return __fadd_rn(a, b); }
KVP_DEVICE_CODE V sub(V a, V b) { return __fsub_rn(a, b); }
KVP_DEVICE_CODE V mul(V a, V b) { return __fmul_rn(a, b); }
KVP_DEVICE_CODE V div(V a, V b) { return __fdiv_rn(a, b); }
KVP_DEVICE_CODE VU as_bits(V x) { return __float_as_uint(x); }
KVP_DEVICE_CODE V as_floats(VU x) { return __uint_as_float(x); }
#else
inline V add(V a, V b) { return a + b; }
inline V sub(V a, V b) { return a - b; }
inline V mul(V a, V b) { return a * b; }
inline V div(V a, V b) { return a / b; }
inline VU as_bits(V x) {
  VU u;
  std::memcpy(&u, &x, sizeof u);
  return u;
}
inline V as_floats(VU u) {
  V x;
  std::memcpy(&x, &u, sizeof x);
  return x;
}
#endif
KVP_DEVICE_CODE VU choose(VI mask, VU yes, VU no) { return mask ? yes : no; }
KVP_DEVICE_CODE VU float_to_bits(float x) { return as_bits(x); }
KVP_DEVICE_CODE float bits_to_float(VU x) { return as_floats(x); }
KVP_DEVICE_CODE V set1(float x) { return x; }
KVP_DEVICE_CODE float first_lane(V x) { return x; }
KVP_DEVICE_CODE float max_lane(V x) { return x; }
KVP_DEVICE_CODE V exponents(VU x) { return static_cast<float>(static_cast<int32_t>(x) >> 23); }

KVP_DEVICE_CODE V round_to(V x, float) { return x; }
template <class T>
KVP_DEVICE_CODE V round_to(V x, T) {
  return T::load(T::store(x));
}

template <class F>
KVP_DEVICE_CODE L each(const F& f) {
  return {{f(0)}};
}
KVP_DEVICE_CODE L all(float x) { return {{x}}; }
KVP_DEVICE_CODE L add(const L& a, const L& b) { return {{add(a.v[0], b.v[0])}}; }
KVP_DEVICE_CODE L sub(const L& a, const L& b) { return {{sub(a.v[0], b.v[0])}}; }
KVP_DEVICE_CODE L mul(const L& a, const L& b) { return {{mul(a.v[0], b.v[0])}}; }
KVP_DEVICE_CODE L div(const L& a, const L& b) { return {{div(a.v[0], b.v[0])}}; }
KVP_DEVICE_CODE L vabs(const L& a) { return {{fabsf(a.v[0])}}; }
KVP_DEVICE_CODE L select_ge(const L& a, const L& b, const L& yes, const L& no) { return a.v[0] >= b.v[0] ? yes : no; }
KVP_DEVICE_CODE L at_least(const L& x, const L& low) { return select_ge(low, x, low, x); }
KVP_DEVICE_CODE L at_most(const L& x, const L& high) { return select_ge(x, high, high, x); }
template <class T>
KVP_DEVICE_CODE L round_to(const L& x) {
  return {{round_to(x.v[0], T())}};
}
KVP_DEVICE_CODE L load16(const float* p) { return {{*p}}; }
KVP_DEVICE_CODE void store16(float* p, const L& x) { *p = x.v[0]; }

KVP_DEVICE_CODE L to_code(const L& x, float levels) {
  const L magic = all(12582912.0f);
  const L c = at_most(select_ge(x, all(0), x, all(0)), all(levels));
  return sub(add(c, magic), magic);
}
KVP_DEVICE_CODE void store_codes(uint8_t* p, const L& code, int64_t) { *p = static_cast<uint8_t>(code.v[0]); }

}  // namespace
}  // namespace kvplug::sdk
