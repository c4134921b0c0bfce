/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extension "kvp.quant-attend/1" of a quantizer: attends over packed tokens without unpacking them first.
 *
 * Called on the key quantizer with the value quantizer's handle. The packed tokens of a row lie in pages, which the
 * cache takes one by one, shares between rows and never moves: every page has the parts of the quantizer's plan, cut to
 * the page's blocks. No packed token is newer than a query, so no causal mask is needed. The cache merges the
 * result with its other segments by their log-sum-exp. On a device tensors, workspace and what pages hold lie in its
 * memory, and work is queued on the stream of the call.
 */
#ifndef KVPLUG_EXT_QUANT_ATTEND_H
#define KVPLUG_EXT_QUANT_ATTEND_H

#include <stddef.h>
#include <stdint.h>

#include "kvplug/ext/attend.h"
#include "kvplug/quantizer.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVP_EXT_QUANT_ATTEND "kvp.quant-attend/1"

/* What is going to be asked, at preparation time. */
typedef struct kvp_qattend_desc {
  size_t struct_size;
  int32_t q_heads; /* a multiple of kv_heads */
  int32_t kv_heads;
  int32_t key_dim;
  int32_t value_dim;
  int64_t max_batch;
  int64_t max_query; /* queries of one call */
  int64_t window;    /* 0 = none */
  int64_t chunk;     /* 0 = none */
  kvp_dtype q_dtype; /* f32, or the type that was quantized */
  float softcap;     /* 0 = none */
  int32_t device_type;
  int32_t device_id;
} kvp_qattend_desc;

/* One page of one row. Frozen. */
typedef struct kvp_qpage {
  int64_t row;
  int64_t position;   /* row position of the page's first token */
  int64_t count;      /* tokens, from the page's first one on; whole blocks */
  void* const* parts; /* [n_k_parts + n_v_parts]: where each part begins in this page; SHARED parts: not looked at */
} kvp_qpage;

typedef struct kvp_qattend_args {
  size_t struct_size;
  const kvp_tensor* q;      /* [batch, q_heads, queries, key_dim] */
  const kvp_qpart* k_parts; /* of any page: shape [1, kv_heads, blocks, n] and strides as planned, data NULL */
  const kvp_qpart* v_parts; /* SHARED parts are whole tensors with their data */
  uint32_t n_k_parts;
  uint32_t n_v_parts;
  const kvp_qpage* pages; /* by row, then by position; those of a row follow one another without a gap */
  int64_t n_pages;
  const int64_t* q_position; /* [batch], host memory: row position of query 0 */
  void* workspace;           /* as probe said, on the call's device, 64-aligned */
  int64_t window;            /* 0 = none */
  int64_t chunk;             /* 0 = none */
  float scale;
  float softcap;                 /* 0 = none */
  const kvp_qpage* device_pages; /* on a device: `pages` once more, in its memory, and so `parts`; NULL on a CPU */
} kvp_qattend_args;

typedef struct kvp_qattend_ext {
  size_t struct_size;

  /* Tells whether attend can do what the description says with these two quantizers, UNSUPPORTED with the reason in
   * words, and the workspace of such a call, which does not depend on the number of packed tokens.
   * Thread: any. Allocates: no. Synchronises: no. Owns: workspace_bytes is the caller's. Since 0.1. */
  int32_t (*probe)(kvp_quantizer* self, const kvp_qhandle* v, const kvp_qattend_desc* desc, uint64_t* workspace_bytes,
                   kvp_error* err);

  /* Attends; out f32 [batch, q_heads, queries, value_dim], lse f32 [batch, q_heads, queries], natural log, -inf (and
   * out 0) for a query that sees no packed token. Any strides, last of out 1. A row's bits do not depend on how its
   * tokens are cut into pages. Thread: any. Allocates: no. Synchronises: no. Owns: all stays the caller's. Since 0.1.
   */
  int32_t (*attend)(kvp_quantizer* self, const kvp_qhandle* v, const kvp_call* call, const kvp_qattend_args* args,
                    kvp_tensor* out, kvp_tensor* lse, kvp_error* err);
} kvp_qattend_ext;

#ifdef __cplusplus
}
#endif

#endif /* KVPLUG_EXT_QUANT_ATTEND_H */
