// SPDX-License-Identifier: Apache-2.0
// The attention kernels compiled for AVX2, FMA and F16C.
#include "decode-inl.h"
#include "packed_decode-inl.h"
#include "packed_prefill-inl.h"
#include "prefill-inl.h"

namespace kvplug::sdk {

const KernelLevel kAvx2Level = {"avx2", decode, fold, finish, prefill, packed_decode, packed_prefill};

}  // namespace kvplug::sdk
