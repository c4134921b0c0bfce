// SPDX-License-Identifier: Apache-2.0
// Blocks of an affine quantizer, on lanes: gathers groups into a panel, has the plugin's method (method-inl.h) solve
// them, scatters codes and scales; and back. Included once per plugin and SIMD level.
#pragma once

#include <kvplug/sdk/affine_kernels.h>

#include "quant/method-inl.h"

namespace kvplug::sdk {
namespace {

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
