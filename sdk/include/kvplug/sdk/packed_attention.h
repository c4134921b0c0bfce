// SPDX-License-Identifier: Apache-2.0
// Attention over packed K/V as it lies ("kvp.quant-attend/1" of the affine quantizers): codes are unpacked in
// registers, once for all query heads of a K/V head; there is no unpacked copy of them anywhere.
//
// Few queries: integer dot products over tiles, scales folded into q and into the weights. Many queries: tiles of
// float32 K and V in scratch of fixed size, shared by all q vectors of a work item. Results within the rounding of q
// and of the weights (16 bits against 8-bit codes, 8 bits against fewer) of attention over the unpacked values. A row's
// bits do not depend on pages, neighbours or threads. Never allocates, never throws.
#pragma once

#include <kvplug/sdk/packed.h>

namespace kvplug::sdk {

// NULL, or why packed_attend() does not serve this, in words.
const char* packed_attend_refusal(const PackedForm& k, const PackedForm& v, const kvp_qattend_desc& desc) noexcept;

// Bytes of workspace for calls up to `desc`; independent of the number of packed tokens.
uint64_t packed_attend_workspace(const PackedForm& k, const PackedForm& v, const kvp_qattend_desc& desc,
                                 int32_t workers) noexcept;

// Parts of a page: k DATA, SCALE, ZERO, v DATA, SCALE, ZERO. parallel may be NULL. INVALID_ARGUMENT for tensors that
// contradict the forms (nothing written).
kvp_status packed_attend(const PackedForm& k, const PackedForm& v, const kvp_qattend_args& args,
                         const kvp_host_parallel* parallel, kvp_tensor& out, kvp_tensor& lse) noexcept;

}  // namespace kvplug::sdk
