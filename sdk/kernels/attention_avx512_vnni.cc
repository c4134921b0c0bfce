// SPDX-License-Identifier: Apache-2.0
// The same as attention_avx512.cc, with one instruction for a dot product of bytes or halves (AVX-512 VNNI): the same
// bits in half the instructions.
#include "decode-inl.h"
#include "packed_decode-inl.h"
#include "packed_prefill-inl.h"
#include "prefill-inl.h"

namespace kvplug::sdk {

const KernelLevel kAvx512VnniLevel = {"avx512_vnni", decode, fold, finish, prefill, packed_decode, packed_prefill};

}  // namespace kvplug::sdk
