/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extension "kvp.quant-attend/1" of a quantizer: attends over one packed segment without unpacking it first.
 *
 * Called on the key quantizer with the value quantizer's handle. All tokens of the segment are older than every query,
 * so no causal mask is needed. The cache merges the result with its other segments by their log-sum-exp.
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

typedef struct kvp_qattend_args {
  size_t struct_size;
  const kvp_tensor* q;      /* [batch, q_heads, queries, key_dim] */
  const kvp_qpart* k_parts; /* as planned by the key quantizer, cut to the segment */
  const kvp_qpart* v_parts;
  uint32_t n_k_parts;
  uint32_t n_v_parts;
  const int64_t* kv_position; /* [batch], host memory: row position of the segment's first token */
  const int64_t* kv_count;    /* [batch]: tokens of the segment in the row */
  const int64_t* q_position;  /* [batch]: row position of query 0 */
  int64_t window;             /* 0 = none */
  int64_t chunk;              /* 0 = none */
  float scale;
  float softcap; /* 0 = none */
} kvp_qattend_args;

typedef struct kvp_qattend_ext {
  size_t struct_size;

  /* Tells whether attend can do what the description says with these two quantizers.
   * Thread: any. Allocates: no. Synchronises: no. Owns: all stays the caller's. Since 0.1. */
  int32_t (*probe)(kvp_quantizer* self, const kvp_qhandle* v, const kvp_attend_desc* desc, kvp_error* err);

  /* Attends; out [batch, q_heads, queries, value_dim], lse f32 [batch, q_heads, queries], natural log, -inf for a row
   * that sees nothing. Thread: any. Allocates: no. Synchronises: no. Owns: all stays the caller's. Since 0.1. */
  int32_t (*attend)(kvp_quantizer* self, const kvp_qhandle* v, const kvp_call* call, const kvp_qattend_args* args,
                    kvp_tensor* out, kvp_tensor* lse, kvp_error* err);
} kvp_qattend_ext;

#ifdef __cplusplus
}
#endif

#endif /* KVPLUG_EXT_QUANT_ATTEND_H */
