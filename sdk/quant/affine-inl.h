// SPDX-License-Identifier: Apache-2.0
// Blocks of an affine quantizer, on lanes: gathers groups into a panel, has the plugin's method solve them, scatters
// codes and scales; and back. Included once per plugin and SIMD level. Method has
//   template <class T> static void solve(Panel& panel, int bits);      (the values are not needed afterwards)
//   template <class T> static L value(L code, L scale, L offset);      before the last rounding to T
// T is the type of what is quantized, of its scales and offsets: float, F16, Bf16.
#pragma once

#include <kvplug/sdk/affine_kernels.h>

#include "quant/lanes-inl.h"

namespace kvplug::sdk {
namespace {

// Sixteen groups of n values, x[i * 16 + lane]; lanes without a group hold zeros.
struct Panel {
  float* x;
  int64_t n;
  L scale, offset;  // values of T
  // Where codes go: element i, lanes at codes + i * stride; or, transposed, lane j at codes + j * stride + i.
  uint8_t* codes;
  int64_t stride, lanes;
  bool transposed;

  L at(int64_t i) const { return load16(x + i * kGroupLanes); }
  void put(int64_t i, const L& v) { store16(x + i * kGroupLanes, v); }
};

// Calls element(i) -> code for all elements and stores what it gives.
template <class F>
inline void put_codes(Panel& p, F&& element) {
  if (!p.transposed) {
    for (int64_t i = 0; i < p.n; ++i) store_codes(p.codes + i * p.stride, element(i), p.lanes);
    return;
  }
  for (int64_t i0 = 0; i0 < p.n; i0 += kGroupLanes) {
    uint8_t tile[kGroupLanes][kGroupLanes];
    const int64_t n = p.n - i0 < kGroupLanes ? p.n - i0 : kGroupLanes;
    for (int64_t i = 0; i < n; ++i) store_codes(tile[i], element(i0 + i), kGroupLanes);
    for (int64_t j = 0; j < kGroupLanes; ++j) {
      uint8_t* to = p.codes + j * p.stride + i0;
      for (int64_t i = 0; i < n; ++i) to[i] = tile[i][j];
    }
  }
}

template <class T>
struct Limits;
template <>
struct Limits<float> {
  static constexpr float largest = 0x1.fffffep127f, normal = 0x1p-126f, tiny = 0x1p-149f;
};
template <>
struct Limits<Bf16> {
  static constexpr float largest = 0x1.fep127f, normal = 0x1p-126f, tiny = 0x1p-133f;
};
template <>
struct Limits<F16> {
  static constexpr float largest = 65504.0f, normal = 0x1p-14f, tiny = 0x1p-24f;
};

// The largest step of T whose `levels`-fold stays within `reach`.
template <class T>
inline float step_limit(float reach, float levels) {
  const float limit = reach / levels;
  float s = first_lane(round_to(set1(limit), T()));
  if (s > limit) s -= s * 0x1p-8f, s = first_lane(round_to(set1(s), T()));
  return s < Limits<T>::largest ? s : Limits<T>::largest;
}

// Smallest and largest value, and where all are finite (0) or not (NaN).
struct Range {
  L low, high, finite;
};
inline Range range_of(const Panel& p) {
  Range r = {p.at(0), p.at(0), all(0)};
  for (int64_t i = 0; i < p.n; ++i) {
    const L x = p.at(i);
    r.low = select_ge(r.low, x, x, r.low);
    r.high = select_ge(r.high, x, r.high, x);
    r.finite = add(r.finite, sub(x, x));
  }
  return r;
}

// x, and one and the same NaN in lanes that are not finite.
inline L where_finite(const Range& r, const L& x) { return select_ge(r.finite, all(0), x, all(__builtin_nanf(""))); }

// A step as T holds it: capped; where T has few bits left, long enough for all levels to span the range.
template <class T>
inline L stored_step(const L& step, const L& range, float levels, float limit) {
  const L s = at_most(round_to<T>(step), all(limit));
  const L longer = add(s, all(Limits<T>::tiny));
  const L grown = select_ge(mul(s, all(levels)), range, s, longer);
  return select_ge(s, all(Limits<T>::normal), s, grown);
}

// Tokens of a block, channels [c, c + n) of 16 of them from `in` on, to x[channel][token].
template <class T>
inline void gather_channels(const T* in, int64_t stride, int64_t n, float* x) {
  typedef float Q __attribute__((vector_size(16)));
  const auto low = [](Q a, Q b) { return __builtin_shufflevector(a, b, 0, 4, 1, 5); };
  const auto high = [](Q a, Q b) { return __builtin_shufflevector(a, b, 2, 6, 3, 7); };
  for (int64_t c = 0; c < n; c += kGroupLanes) {
    float rows[kGroupLanes][kGroupLanes];
    for (int64_t t = 0; t < kGroupLanes; ++t) store16(rows[t], load16_first(in + t * stride + c, n - c));
    const int64_t wide = n - c < kGroupLanes ? n - c : kGroupLanes;
    for (int64_t t = 0; t < kGroupLanes; t += 4) {
      for (int64_t k = 0; k < wide; k += 4) {
        Q q[4];
        for (int i = 0; i < 4; ++i) memcpy(&q[i], &rows[t + i][k], sizeof q[i]);
        const Q a = low(q[0], q[2]), b = low(q[1], q[3]), d = high(q[0], q[2]), e = high(q[1], q[3]);
        const Q y[4] = {low(a, b), high(a, b), low(d, e), high(d, e)};
        for (int i = 0; i < 4 && k + i < wide; ++i) memcpy(x + (c + k + i) * kGroupLanes + t, &y[i], sizeof y[i]);
      }
    }
  }
}

template <class Method, class T>
inline void quantize_block(const PackedForm& form, const T* in, int64_t stride, T* scale, T* offset, uint8_t* codes,
                           float* x) {
  const int64_t dim = form.head_dim, size = form.group_size;
  Panel p = {x, size, {}, {}, nullptr, dim, kGroupLanes, false};
  const auto solve = [&](uint8_t* to, int64_t group) {
    p.codes = to;
    Method::template solve<T>(p, form.bits);
    store16_first(scale + group, p.scale, p.lanes);
    store16_first(offset + group, p.offset, p.lanes);
  };
  if (form.group_dim == KVP_GROUP_TOKENS) {
    for (int64_t t = 0; t < form.token_block(); t += size) {
      for (int64_t c = 0; c < dim; c += kGroupLanes) {
        p.lanes = dim - c < kGroupLanes ? dim - c : kGroupLanes;
        for (int64_t i = 0; i < size; ++i) p.put(i, load16_first(in + (t + i) * stride + c, p.lanes));
        solve(codes + t * dim + c, form.group_of(t, c));
      }
    }
    return;
  }
  p.transposed = true;
  for (int64_t c = 0; c < dim; c += size) {
    p.n = dim - c < size ? dim - c : size;
    gather_channels(in + c, stride, p.n, x);
    solve(codes + c, form.group_of(0, c));
  }
}

// Channels [c, end) of one token; scales of groups along HEAD_DIM are one, else one a channel.
template <class Method, class T, class Out>
inline void dequantize_run(const uint8_t* codes, const T* scale, const T* offset, bool one, int64_t n, Out* out) {
  const float s0 = first_lane(load_first(scale, 1)), m0 = first_lane(load_first(offset, 1));
  const L most = all(Limits<T>::largest), least = all(-Limits<T>::largest);
  for (int64_t c = 0; c < n; c += kGroupLanes) {
    const L s = one ? all(s0) : load16_first(scale + c, n - c), m = one ? all(m0) : load16_first(offset + c, n - c);
    const L y = Method::template value<T>(load_codes(codes + c, n - c), s, m);
    store16_first(out + c, round_to<T>(at_least(at_most(y, most), least)), n - c);
  }
}

template <class Method, class T, class Out>
inline void dequantize_tile(const PackedForm& form, int64_t first, const uint8_t* codes, const T* scale,
                            const T* offset, Out* out, int64_t stride) {
  const int64_t dim = form.head_dim;
  const bool tokens = form.group_dim == KVP_GROUP_TOKENS;
  const int64_t run = tokens || form.group_size > dim ? dim : form.group_size;
  for (int64_t t = 0; t < kTileTokens; ++t) {
    for (int64_t c = 0; c < dim; c += run) {
      const int64_t group = form.group_of(first + t, c), n = dim - c < run ? dim - c : run;
      dequantize_run<Method>(codes + t * dim + c, scale + group, offset + group, !tokens, n, out + t * stride + c);
    }
  }
}

template <class F>
inline void with_type(kvp_dtype dtype, F&& f) {
  if (dtype.bits == 32) return f(float());
  if (dtype.code == KVP_DTYPE_BFLOAT) return f(Bf16());
  f(F16());
}

template <class Method>
void quantize(const PackedForm& form, const void* in, int64_t stride, void* scale, void* offset, uint8_t* codes,
              float* panel) {
  with_type(form.scale_dtype, [&](auto t) {
    using T = decltype(t);
    quantize_block<Method, T>(form, static_cast<const T*>(in), stride, static_cast<T*>(scale), static_cast<T*>(offset),
                              codes, panel);
  });
}

template <class Method>
void dequantize(const PackedForm& form, int64_t first, const uint8_t* codes, const void* scale, const void* offset,
                void* out, kvp_dtype out_dtype, int64_t stride) {
  with_type(form.scale_dtype, [&](auto t) {
    using T = decltype(t);
    with_type(out_dtype, [&](auto o) {
      using Out = decltype(o);
      dequantize_tile<Method, T, Out>(form, first, codes, static_cast<const T*>(scale), static_cast<const T*>(offset),
                                      static_cast<Out*>(out), stride);
    });
  });
}

}  // namespace
}  // namespace kvplug::sdk
