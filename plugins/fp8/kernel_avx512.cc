// SPDX-License-Identifier: Apache-2.0
// The kernels compiled for AVX-512 F, BW, DQ and VL.
#include "kernel-inl.h"

namespace kvplug::fp8 {

const Kernels kAvx512Kernels = {sdk::largest_of, sdk::encode_of, sdk::decode_of};

}  // namespace kvplug::fp8
