// SPDX-License-Identifier: Apache-2.0
// The kernels compiled for whatever the compiler's baseline has.
#include "kernel-inl.h"

namespace kvplug::fp8 {

const Kernels kScalarKernels = {sdk::largest_of, sdk::encode_of, sdk::decode_of};

}  // namespace kvplug::fp8
