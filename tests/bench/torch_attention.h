// SPDX-License-Identifier: Apache-2.0
// LibTorch's attention as a peer.
#pragma once

#include <cstdint>

namespace kvplug::bench {

// scaled_dot_product_attention of one query over the same views: bfloat16 q [q_heads, dim], K and V [kv_heads, context,
// dim]; out float32 [q_heads, dim].
void torch_attention(void* q, void* k, void* v, int64_t q_heads, int64_t kv_heads, int64_t context, int64_t dim,
                     int threads, float* out);

}  // namespace kvplug::bench
