// SPDX-License-Identifier: Apache-2.0
// The attention kernels compiled for AVX-512 F, BW, DQ and VL.
#include "decode-inl.h"
#include "packed_decode-inl.h"
#include "packed_prefill-inl.h"
#include "prefill-inl.h"

namespace kvplug::sdk {

const KernelLevel kAvx512Level = {"avx512", decode, fold, finish, prefill, packed_decode, packed_prefill};

}  // namespace kvplug::sdk
