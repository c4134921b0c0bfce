// SPDX-License-Identifier: Apache-2.0
// Rows of values to 8-bit floats and back, compiled once per SIMD level, the same bits in each (kernel-inl.h), and
// whole blocks on devices.
#pragma once

#include <kvplug/sdk/affine_device.h>

namespace kvplug::fp8 {

struct Kernels {
  // The largest magnitude among the finite values of a row; `reference`: of all, NaN where one is NaN.
  float (*largest)(const void* row, kvp_dtype dtype, int64_t n, bool reference);
  // e5m2, else e4m3. `saturates`: beyond the largest code is the largest code, else NaN.
  void (*encode)(const void* row, kvp_dtype dtype, int64_t n, float scale, bool e5m2, bool saturates, uint8_t* codes);
  // fl_T(code * scale), T = `dtype`, as `out_dtype`.
  void (*decode)(const uint8_t* codes, int64_t n, float scale, bool e5m2, kvp_dtype dtype, void* out,
                 kvp_dtype out_dtype);
};

extern const Kernels kScalarKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels, kAvx512Kernels;
#endif
// For values of type `dtype`; NULL in a build without them.
#if defined(KVPLUG_CUDA_KERNELS)
const sdk::AffineDevice* cuda_kernels(kvp_dtype dtype) noexcept;
#else
inline const sdk::AffineDevice* cuda_kernels(kvp_dtype) noexcept { return nullptr; }
#endif

}  // namespace kvplug::fp8
