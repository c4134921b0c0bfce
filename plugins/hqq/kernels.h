// SPDX-License-Identifier: Apache-2.0
// The kernels of each SIMD level (kernel-inl.h).
#pragma once

#include <kvplug/sdk/affine_kernels.h>

namespace kvplug::hqq {

extern const sdk::AffineKernels kScalarKernels;
#if defined(__x86_64__)
extern const sdk::AffineKernels kAvx2Kernels, kAvx512Kernels;
#endif

}  // namespace kvplug::hqq
