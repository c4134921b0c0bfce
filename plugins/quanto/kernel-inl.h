// SPDX-License-Identifier: Apache-2.0
// optimum-quanto's MaxOptimizer and its quantization, rounded to T after every operation, on lanes. The offset is
// quanto's -shift, the smallest value of the group. Where the reference has no answer: a group that holds NaN or
// infinities has scale and offset NaN; a step that T does not hold, or that leads beyond its largest value, is capped.
#pragma once

#include "quant/method-inl.h"

namespace kvplug::sdk {
namespace {

struct Quanto {
  template <class T>
  KVP_LANE_CODE static void solve(Panel& p, int bits) {
    const auto levels = static_cast<float>((1 << bits) - 1);
    const Range r = range_of(p);
    const L range = round_to<T>(sub(r.high, r.low));
    const L scale = stored_step<T>(div(range, all(levels)), range, levels, step_limit<T>(Limits<T>::largest, levels));
    put_codes(p, [&](int64_t i) { return to_code(round_to<T>(div(round_to<T>(sub(p.at(i), r.low)), scale)), levels); });
    p.scale = where_finite(r, scale);
    p.offset = where_finite(r, r.low);
  }

  template <class T>
  KVP_LANE_CODE static L value(const L& code, const L& scale, const L& offset) {
    return add(round_to<T>(mul(scale, code)), offset);
  }
};

}  // namespace
}  // namespace kvplug::sdk
