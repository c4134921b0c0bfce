// SPDX-License-Identifier: Apache-2.0
// The kernels compiled for a CUDA device.
#include "cuda/affine.h"

#include "kernel-inl.h"
#include "kernels.h"

namespace kvplug::hqq {

const sdk::AffineDevice* cuda_kernels() noexcept {
  static const sdk::AffineDevice kernels = sdk::cuda::affine_device<sdk::Hqq>();
  return &kernels;
}

}  // namespace kvplug::hqq
