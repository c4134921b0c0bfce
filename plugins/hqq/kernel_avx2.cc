// SPDX-License-Identifier: Apache-2.0
// The kernels compiled for AVX2 and F16C.
#include "kernel-inl.h"
#include "kernels.h"
#include "quant/affine-inl.h"

namespace kvplug::hqq {

const sdk::AffineKernels kAvx2Kernels = {sdk::quantize<sdk::Hqq>, sdk::dequantize<sdk::Hqq>};

}  // namespace kvplug::hqq
