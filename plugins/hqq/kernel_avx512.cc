// SPDX-License-Identifier: Apache-2.0
// The kernels compiled for AVX-512 F, BW, DQ and VL.
#include "kernel-inl.h"
#include "kernels.h"
#include "quant/affine-inl.h"

namespace kvplug::hqq {

const sdk::AffineKernels kAvx512Kernels = {sdk::quantize<sdk::Hqq>, sdk::dequantize<sdk::Hqq>};

}  // namespace kvplug::hqq
