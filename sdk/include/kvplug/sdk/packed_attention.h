// SPDX-License-Identifier: Apache-2.0
// Attention over packed K/V as it lies ("kvp.quant-attend/1" of the affine quantizers): codes are unpacked in
// registers, once for all query heads of a K/V head; there is no unpacked copy of them anywhere.
//
// Few queries (one, or up to 16 query vectors for a K/V head): integer dot products over tiles; q and the softmax
// weights become integer factors, of 16 bits against 8-bit codes and of 8 bits against fewer. Rounding x to factors of
// max|x| / L (L = 16383 or 127; max over a group of q, or over 64 tokens of a group of weights) costs at most max|x| /
// 2L a product with (code - middle code) * scale: on Gaussian data under 5e-4 (4 bits and fewer, mean square relative
// to attention over the unpacked values), under 1e-7 (8 bits). float8: float products, nothing rounded. Many queries:
// tiles of float32 K and V in scratch of fixed size, shared by all q vectors of a work item, nothing rounded. What is
// cut is cut by the row's own packed tokens, counted from its first: a row's bits do not depend on pages, neighbours or
// threads. A NaN scale or offset makes every result that sees it NaN (many queries and values: also those that do not
// see the token but share its block of 64), never a silent number. Never allocates, never throws.
#pragma once

#include <kvplug/sdk/packed.h>
#include <kvplug/sdk/packed_device.h>

namespace kvplug::sdk {

// NULL, or why packed_attend() does not serve this, in words: groups along tokens must be a multiple of 16 long; along
// the head dimension likewise, or the whole head (float8: that alone); head dimensions up to 512.
const char* packed_attend_refusal(const PackedForm& k, const PackedForm& v, const kvp_qattend_desc& desc) noexcept;

// Bytes of workspace for calls up to `desc`; independent of the number of packed tokens.
uint64_t packed_attend_workspace(const PackedForm& k, const PackedForm& v, const kvp_qattend_desc& desc,
                                 int32_t workers) noexcept;

// Parts of a page: k DATA, SCALE, ZERO, v DATA, SCALE, ZERO (float8: no ZERO). parallel may be NULL. INVALID_ARGUMENT
// for tensors that contradict the forms (nothing written).
kvp_status packed_attend(const PackedForm& k, const PackedForm& v, const kvp_qattend_args& args,
                         const kvp_host_parallel* parallel, kvp_tensor& out, kvp_tensor& lse) noexcept;

// The same on a device, of what packed_attend_refusal() serves on a CPU: codes become float32 in registers, nothing
// else is rounded. DEVICE, with the device's number in *error, if it failed; else 0 there.
uint64_t packed_attend_workspace(const PackedDevice& device, const kvp_qattend_desc& desc) noexcept;
kvp_status packed_attend(const PackedForm& k, const PackedForm& v, const kvp_qattend_args& args,
                         const PackedDevice& device, const kvp_call& where, kvp_tensor& out, kvp_tensor& lse,
                         int* error) noexcept;

}  // namespace kvplug::sdk
