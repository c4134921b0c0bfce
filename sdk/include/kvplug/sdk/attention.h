// SPDX-License-Identifier: Apache-2.0
// The CPU attention of every plugin and of the host: fused, group-aware, over rows that are lists of K/V blocks.
//
// Blocks are cut at multiples of kBlockTokens in *row positions* (slot - pad), and everything that is summed is summed
// in an order that follows from row positions alone. So capacity, paging, padding, neighbours in the batch and the
// number of threads leave a row's bits alone. Query heads that share a K/V head read it once; long rows are split into
// fixed partitions that are merged by log-sum-exp; prefill is tiled, no S x S matrix exists.
// What a row's bits do depend on, besides its data: whether it has few queries (one, or up to 16 query vectors for a
// K/V head: partitions of the row's positions) or many (tiles). Among many, a query's bits are its own. Softmax and
// accumulators are float32. score = softcap(scale * q.k) + bias, softcap(x) = c * tanh(x / c). A query that sees no
// token has out 0 and lse -inf (with a sink: the sink), never NaN. Thread-safe: no state. Never allocates: the caller
// gives scratch. Never throws.
#pragma once

#include <kvplug/abi.h>

#include <cstddef>
#include <cstdint>

namespace kvplug::sdk {

inline constexpr int64_t kBlockTokens = 64;

// K and V of up to kBlockTokens consecutive row positions of one row, all K/V heads. Strides in elements, last dim 1.
struct KvBlock {
  const void* k;
  const void* v;
  int64_t k_head_stride, k_token_stride;
  int64_t v_head_stride, v_token_stride;
};

// One row of the batch. blocks[i] holds row positions (first_block + i) * kBlockTokens and up; only kv_begin..kv_end-1
// are read. Query i stands at row position q_position + i; a negative one is padding: out 0, lse -inf.
struct AttendRow {
  const KvBlock* blocks;
  int64_t first_block;
  int64_t kv_begin, kv_end;
  int64_t q_position;
  int64_t q_count;      // queries of this row, the rest up to Sq is right padding: out 0, lse -inf
  int64_t bias_column;  // column of `bias` that belongs to row position 0 (pad - kv_offset)
  int64_t origin = 0;   // added to positions where chunks are counted
};

struct AttendShape {
  int64_t batch, q_heads, kv_heads, max_query;  // q_heads a multiple of kv_heads
  int64_t key_dim, value_dim;
  kvp_dtype dtype;  // of q, K and V: float32, bfloat16, float16
};

struct AttendCall {
  const kvp_tensor* q;     // [batch, q_heads, Sq, key_dim], last stride 1
  kvp_tensor* out;         // [batch, q_heads, Sq, value_dim], last stride 1, dtype of q or float32
  kvp_tensor* lse;         // NULL or float32 [batch, q_heads, Sq]
  const kvp_tensor* bias;  // NULL or float32, broadcastable to [batch, q_heads, Sq, columns] (stride 0 where broadcast)
  const kvp_tensor* sinks;  // NULL or float32 [q_heads], one more logit in the denominator
  const AttendRow* rows;    // [batch]
  int64_t window, chunk;    // 0 = none
  float scale, softcap;     // softcap 0 = none
  bool causal;
};

// Bytes of scratch for calls up to `shape` with `workers` threads; independent of the K/V length. 64-byte aligned.
size_t attend_scratch_bytes(const AttendShape& shape, int32_t workers);

// parallel may be NULL (serial). scratch: attend_scratch_bytes of a shape at least as large, same dims and dtype.
// Returns KVP_OK, or KVP_UNSUPPORTED / KVP_INVALID_ARGUMENT for dtypes and shapes it does not serve (nothing written).
kvp_status attend(const AttendShape& shape, const AttendCall& call, const kvp_host_parallel* parallel, void* scratch,
                  size_t scratch_bytes);

// "avx512_vnni", "avx512", "avx2" or "scalar": the level in use, the best this CPU has. Tests may force one, NULL
// undoes it; false if it is unknown or the CPU lacks it.
const char* attend_level();
bool set_attend_level(const char* level);

}  // namespace kvplug::sdk
