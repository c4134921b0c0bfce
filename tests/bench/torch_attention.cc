// SPDX-License-Identifier: Apache-2.0
#include "torch_attention.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

namespace kvplug::bench {

void torch_attention(void* q, void* k, void* v, int64_t q_heads, int64_t kv_heads, int64_t context, int64_t dim,
                     int threads, float* out) {
  const c10::InferenceMode no_gradients;
  if (at::get_num_threads() != threads) at::set_num_threads(threads);
  const auto view = [&](void* data, int64_t heads, int64_t tokens) {
    return at::from_blob(data, {1, heads, tokens, dim}, at::kBFloat16);
  };
  const at::Tensor result = at::scaled_dot_product_attention(
      view(q, q_heads, 1), view(k, kv_heads, context), view(v, kv_heads, context), {}, 0.0, false, std::nullopt, true);
  at::from_blob(out, {1, q_heads, 1, dim}, at::kFloat).copy_(result);
}

}  // namespace kvplug::bench
