// SPDX-License-Identifier: Apache-2.0
// What an affine quantizer plugin compiles once per SIMD level: packing and unpacking of its groups, in its arithmetic.
// All levels give the same bits: lanes are groups, every lane is one group's sequence of single operations.
#pragma once

#include <kvplug/sdk/packed.h>

namespace kvplug::sdk {

struct AffineKernels {
  // One block of one head. in: [token_block][head_dim] of the form's scale_dtype, tokens token_stride elements apart.
  // scale, offset: groups() of scale_dtype. codes: [token_block][head_dim]. panel: affine_panel_floats(form).
  void (*quantize)(const PackedForm& form, const void* in, int64_t token_stride, void* scale, void* offset,
                   uint8_t* codes, float* panel);
  // Tokens [first, first + kTileTokens) of a block, whose codes are `codes` [kTileTokens][head_dim], into `out`.
  void (*dequantize)(const PackedForm& form, int64_t first, const uint8_t* codes, const void* scale, const void* offset,
                     void* out, kvp_dtype out_dtype, int64_t token_stride);
};

// The values of 16 groups, twice: as they come and as the solver wants them.
inline int64_t affine_panel_floats(const PackedForm& form) noexcept {
  const bool shorter = form.group_dim == KVP_GROUP_HEAD_DIM && form.group_size > form.head_dim;
  return 16 * (shorter ? form.head_dim : form.group_size);
}

// The SIMD level that this machine runs: 2 AVX-512 (F, BW, DQ, VL), 1 AVX2 with FMA and F16C, 0 the baseline.
int simd_level() noexcept;

}  // namespace kvplug::sdk
