// SPDX-License-Identifier: Apache-2.0
// The kernels compiled for whatever the compiler's baseline has.
#include "kernel-inl.h"
#include "kernels.h"
#include "quant/affine-inl.h"

namespace kvplug::quanto {

const sdk::AffineKernels kScalarKernels = {sdk::quantize<sdk::Quanto>, sdk::dequantize<sdk::Quanto>};

}  // namespace kvplug::quanto
