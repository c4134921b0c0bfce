// SPDX-License-Identifier: Apache-2.0
// The kernels compiled for whatever the compiler's baseline has.
#include "kernel-inl.h"
#include "kernels.h"
#include "quant/affine-inl.h"

namespace kvplug::hqq {

const sdk::AffineKernels kScalarKernels = {sdk::quantize<sdk::Hqq>, sdk::dequantize<sdk::Hqq>};

}  // namespace kvplug::hqq
