// SPDX-License-Identifier: Apache-2.0
// The small operations between the matrix products, fused where that saves a pass. Compiled once per instruction set
// and chosen at run time. Values are rounded to the element type exactly where Transformers rounds them; the order of
// every sum is fixed (16 lanes, then a tree), so all instruction sets give the same bits. No state, no allocation.
#pragma once

#include <cstdint>

#include "model/exec/type.h"

namespace kvplug::model {

// Largest head_dim of rope().
inline constexpr int64_t kMaxHeadDim = 512;

// Most rows of x that dots() takes.
inline constexpr int64_t kMaxDotRows = 4;

struct Kernels {
  // y = weight * round(x / sqrt(mean(x^2) + eps)) for each row; x [rows, n], weight [n], y [rows, n].
  void (*rms_norm)(const void* x, const float* weight, float eps, void* y, int64_t rows, int64_t n);
  // x += delta, then y = rms_norm(x); y may be x.
  void (*add_rms_norm)(void* x, const void* delta, const float* weight, float eps, void* y, int64_t rows, int64_t n);
  // The same two, but y is rounded once, after the weight: Gemma's norms.
  void (*rms_norm_once)(const void* x, const float* weight, float eps, void* y, int64_t rows, int64_t n);
  void (*add_rms_norm_once)(void* x, const void* delta, const float* weight, float eps, void* y, int64_t rows,
                            int64_t n);
  // Rotates heads in place: x [rows] of `row_stride` elements, heads of head_dim side by side from its start on, second
  // half against first. cos, sin [rows, head_dim / 2], already rounded to the type. weight [head_dim] or NULL: an RMS
  // norm per head before it. cos NULL: the norm alone.
  void (*rope)(void* x, int64_t row_stride, int64_t rows, int64_t heads, int64_t head_dim, const float* cos,
               const float* sin, const float* weight, float eps);
  // Rotates neighbours (2i, 2i + 1) instead, in float32 and rounded once; cos and sin are not rounded. unit_norm: then
  // an RMS norm per head without weights.
  void (*rope_pairs)(void* x, int64_t row_stride, int64_t rows, int64_t heads, int64_t head_dim, const float* cos,
                     const float* sin, bool unit_norm, float eps);
  // y = silu(gate) * up; gate_up [rows, 2 * width] with the gate first, y [rows, width].
  void (*silu_mul)(const void* gate_up, void* y, int64_t rows, int64_t width);
  // The same with gelu's tanh form: gate / 2 * (1 + tanh(sqrt(2 / pi) * (gate + 0.044715 * gate^3))).
  void (*gelu_mul)(const void* gate_up, void* y, int64_t rows, int64_t width);
  // y = factor * x; y may be x.
  void (*scale)(const void* x, float factor, void* y, int64_t n);
  // x = cap * tanh(x / cap), rounded after each of the three steps.
  void (*softcap)(void* x, float cap, int64_t n);
  // sum += x, then x += sum rounded.
  void (*accumulate)(float* sum, const void* x, int64_t n);
  void (*add_sum)(void* x, const float* sum, int64_t n);
  // y[r * y_stride + o] = x[r] . w[o] for a few rows of x [rows, in] and w [outs, in], summed in float32.
  void (*dots)(const float* x, int64_t rows, const void* w, int64_t outs, int64_t in, float* y, int64_t y_stride);
  void (*to_float)(const void* x, float* y, int64_t n);
  void (*from_float)(const float* x, void* y, int64_t n);
};

// "avx512", "avx2" or "baseline": the best this CPU runs.
const char* kernel_level();
const Kernels& kernels(Type type);
// For tests: a lower level; NULL where this CPU lacks it.
const Kernels* kernels_of(const char* level, Type type);

// One table per instruction set, indexed by Type.
extern const Kernels kBaselineKernels[3];
extern const Kernels kAvx2Kernels[3];
extern const Kernels kAvx512Kernels[3];

}  // namespace kvplug::model
