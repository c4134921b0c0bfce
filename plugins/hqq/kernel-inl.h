// SPDX-License-Identifier: Apache-2.0
// HQQ's solver on lanes, one group each, in float32. What differs from the reference (docs/quantizers.md): it stops
// group by group; it works on values less the group's smallest, so that no precision is lost where a group is far from
// zero; the step is range / levels without limits for small ranges, and the solver and the codes see step and offset as
// they are stored. x = code * step + offset.
#pragma once

#include "quant/method-inl.h"

namespace kvplug::sdk {
namespace {

// 0.1 * x^-0.3 for x > 0.1, to about 1e-6 of it: log2 and exp2 as polynomials, no operation fused.
KVP_LANE_CODE V shrinkage(V x) {
  const VU u = as_bits(x);
  const VU near = (u - 0x3f3504f3u) & 0xff800000u;  // exponent of x / sqrt(1/2)
  const V m = as_floats(u - near);                  // [sqrt(1/2), sqrt(2))
  const V one = set1(1.0f);
  const V f = div(sub(m, one), add(m, one)), g = mul(f, f);
  V y = add(mul(g, set1(0.41219858f)), set1(0.57707802f));  // 2 log2(e) (1/7, 1/5, ..)
  y = add(mul(y, g), set1(0.96179669f));
  y = add(mul(y, g), set1(2.88539008f));
  const V log2 = add(mul(y, f), exponents(near));
  const V t = mul(log2, set1(-0.3f));
  const V magic = set1(12582912.0f);
  const V whole = add(t, magic);
  const V r = mul(sub(t, sub(whole, magic)), set1(0.69314718f));  // [-0.35, 0.35]
  V z = add(mul(r, set1(1.0f / 720)), set1(1.0f / 120));
  z = add(mul(z, r), set1(1.0f / 24));
  z = add(mul(z, r), set1(1.0f / 6));
  z = add(mul(z, r), set1(0.5f));
  z = add(mul(z, r), one);
  z = add(mul(z, r), one);
  return mul(as_floats(as_bits(z) + (as_bits(whole) << 23)), set1(0.1f));
}

struct Hqq {
  static constexpr float kShrinkFrom = 0.1701f;  // below that the shrinkage takes all of an error
  static constexpr int kIterations = 20;

  template <class T>
  KVP_LANE_CODE static void solve(Panel& p, int bits) {
    const auto levels = static_cast<float>((1 << bits) - 1);
    const Range r = range_of(p);
    // Lanes of extreme size are scaled by a power of two, so that range and 1 / step are normal numbers.
    const L size = select_ge(vabs(r.low), vabs(r.high), vabs(r.low), vabs(r.high));
    L factor = select_ge(size, all(0x1p124f), all(0x1p-4f), all(1));
    L back = select_ge(size, all(0x1p124f), all(0x1p4f), all(1));
    L range = sub(mul(r.high, factor), mul(r.low, factor));
    const L wide = select_ge(size, all(1), all(1), range);  // of large values a constant group alone has a small range
    factor = select_ge(wide, all(0x1p-90f), factor, all(0x1p60f));
    back = select_ge(wide, all(0x1p-90f), back, all(0x1p-60f));
    range = sub(mul(r.high, factor), mul(r.low, factor));
    const L low = mul(r.low, factor);

    const float limit = step_limit<T>(Limits<float>::largest, levels);
    const L scale = stored_step<T>(mul(div(range, all(levels)), back), mul(range, back), levels, limit);
    // A constant group has no step, one with NaN no meaningful one: any will do.
    const L step = select_ge(r.finite, all(0), select_ge(all(0), scale, all(1), mul(scale, factor)), all(1));
    const L inverse = div(all(1), step);
    for (int64_t i = 0; i < p.n; ++i) {
      p.put(i, select_ge(r.finite, all(0), sub(mul(p.at(i), factor), low), all(0)));
    }

    float longest = 0;
    for (int i = 0; i < kVectors; ++i) {
      const float here = max_lane(step.v[i]);
      longest = here > longest ? here : longest;
    }
    // An error is at most 1.5 steps, and a half for every bit that the step's type lacks.
    const L z =
        longest * 3 < kShrinkFrom ? search<false>(p, levels, step, inverse) : search<true>(p, levels, step, inverse);

    // The offset as it is stored, and the codes for it. z beyond a half is another code's business.
    const L half = at_least(at_most(z, all(0.5f)), all(-0.5f));
    const L wanted = sub(r.low, mul(half, scale));
    const L offset = round_to<T>(at_least(at_most(wanted, all(Limits<T>::largest)), all(-Limits<T>::largest)));
    const L zero = mul(mul(sub(r.low, offset), factor), inverse);
    put_codes(p, [&](int64_t i) { return to_code(add(mul(p.at(i), inverse), zero), levels); });
    p.scale = where_finite(r, scale);
    p.offset = where_finite(r, offset);
  }

  // The zero of values less the smallest one.
  template <bool kShrinks>
  KVP_LANE_CODE static L search(const Panel& p, float levels, const L& step, const L& inverse) {
    const L count = all(static_cast<float>(p.n));
    L z = all(0), best = all(__builtin_inff()), active = all(1);
    for (int turn = 0; turn < kIterations; ++turn) {
      L sum = all(0), error = all(0);
      for (int64_t i = 0; i < p.n; ++i) {
        const L x = p.at(i), xs = mul(x, inverse), q = to_code(add(xs, z), levels);
        const L e = sub(x, mul(sub(q, z), step)), size = vabs(e);
        error = add(error, size);
        if constexpr (kShrinks) {
          const L bounded = at_least(size, all(0.15f));
          const L left = at_least(sub(size, each([&](int v) { return shrinkage(bounded.v[v]); })), all(0));
          const L w = select_ge(e, all(0), left, sub(all(0), left));
          sum = add(sum, sub(q, mul(sub(x, w), inverse)));
        } else {
          sum = add(sum, sub(q, xs));
        }
      }
      z = select_ge(active, all(1), div(sum, count), z);
      active = select_ge(error, best, all(0), active);
      best = select_ge(error, best, best, error);
      float any = 0;
      for (int v = 0; v < kVectors; ++v) any += max_lane(active.v[v]);
      if (!(any > 0)) break;
    }
    return z;
  }

  template <class T>
  KVP_LANE_CODE static L value(const L& code, const L& scale, const L& offset) {
    return add(mul(code, scale), offset);
  }
};

}  // namespace
}  // namespace kvplug::sdk
