// SPDX-License-Identifier: Apache-2.0
// hf_compat = "strict": optimum-quanto bit for bit, the whole tensor at once; its grouping, its packing, its refusals.
#pragma once

#include <kvplug/sdk/affine_quantizer.h>

namespace kvplug::quanto {

class Strict {
 public:
  Strict(kvp_dtype dtype, const sdk::AffineOptions& options) : dtype_(dtype), options_(options) {}

  void plan(int64_t batch, int64_t kv_heads, int64_t tokens, int64_t head_dim, kvp_qplan& out) const;
  void quantize(const kvp_tensor& in, const kvp_qpart* parts, uint32_t n_parts, void* workspace) const;
  void dequantize(const kvp_qpart* parts, uint32_t n_parts, kvp_tensor& out) const;

 private:
  struct Matrix;
  Matrix matrix(int64_t batch, int64_t kv_heads, int64_t tokens, int64_t head_dim) const;

  kvp_dtype dtype_;
  sdk::AffineOptions options_;
};

}  // namespace kvplug::quanto
