// SPDX-License-Identifier: Apache-2.0
// Tokens with scales of their own, in blocks that attention reads as they lie (packed.h). Immutable, thread-safe.
#pragma once

#include <kvplug/sdk/packed.h>

#include "kernels.h"

namespace kvplug::fp8 {

// At least 2^-126: no division overflows.
float scale_of(float largest, bool e5m2) noexcept;

class Blocks {
 public:
  // role: KVP_ROLE_…; values are of type `dtype`.
  Blocks(int32_t role, int64_t head_dim, bool e5m2, kvp_dtype dtype, const Kernels& kernels, int32_t device_type);

  void plan(int64_t batch, int64_t kv_heads, int64_t tokens, kvp_qplan& out) const;
  // in: [batch, kv_heads, tokens, head_dim], tokens whole blocks.
  void quantize(const kvp_call& call, const kvp_tensor& in, const kvp_qpart* parts, uint32_t n_parts) const;
  void dequantize(const kvp_call& call, const kvp_qpart* parts, uint32_t n_parts, kvp_tensor& out) const;
  uint64_t attend_probe(const Blocks& values, const kvp_qattend_desc& desc) const;
  void attend(const Blocks& values, const kvp_call& call, const kvp_qattend_args& args, kvp_tensor& out,
              kvp_tensor& lse) const;

 private:
  bool e5m2() const noexcept { return form_.format == KVP_FORMAT_FP8_E5M2; }

  sdk::PackedForm form_;
  kvp_dtype dtype_;
  const Kernels& kernels_;
  int32_t device_type_;
  const sdk::AffineDevice* device_;  // NULL: the CPU
};

}  // namespace kvplug::fp8
