// SPDX-License-Identifier: Apache-2.0
// The kernels compiled for a CUDA device.
#include "cuda/affine.h"

#include "kernel-inl.h"
#include "kernels.h"

namespace kvplug::quanto {

const sdk::AffineDevice* cuda_kernels() noexcept {
  static const sdk::AffineDevice kernels = sdk::cuda::affine_device<sdk::Quanto>();
  return &kernels;
}

}  // namespace kvplug::quanto
