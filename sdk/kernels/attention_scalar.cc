// SPDX-License-Identifier: Apache-2.0
// The attention kernels compiled for whatever the compiler's baseline has.
#include "decode-inl.h"
#include "packed_decode-inl.h"
#include "packed_prefill-inl.h"
#include "prefill-inl.h"

namespace kvplug::sdk {

const KernelLevel kScalarLevel = {"scalar", decode, fold, finish, prefill, packed_decode, packed_prefill};

}  // namespace kvplug::sdk
