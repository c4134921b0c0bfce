// SPDX-License-Identifier: Apache-2.0
// The kernels compiled for AVX2 and F16C.
#include "kernel-inl.h"

namespace kvplug::fp8 {

const Kernels kAvx2Kernels = {sdk::largest_of, sdk::encode_of, sdk::decode_of};

}  // namespace kvplug::fp8
