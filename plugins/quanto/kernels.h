// SPDX-License-Identifier: Apache-2.0
// The kernels of each SIMD level and of devices (kernel-inl.h).
#pragma once

#include <kvplug/sdk/affine_device.h>
#include <kvplug/sdk/affine_kernels.h>

namespace kvplug::quanto {

extern const sdk::AffineKernels kScalarKernels;
#if defined(__x86_64__)
extern const sdk::AffineKernels kAvx2Kernels, kAvx512Kernels;
#endif
#if defined(KVPLUG_CUDA_KERNELS)
const sdk::AffineDevice* cuda_kernels() noexcept;
#else
inline const sdk::AffineDevice* cuda_kernels() noexcept { return nullptr; }
#endif

}  // namespace kvplug::quanto
