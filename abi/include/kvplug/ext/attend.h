/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extension "kvp.attend/1": appends K and V and attends over all of it in one call, where the data lies.
 *
 * Masks. Query i of a row stands at slot row_seen (before the call) + i; with nothing appended, the queries are the
 * newest tokens; q_offset (flagged) overrides. It sees slot j iff row_pad <= j < the row's length, and, causal: j <=
 * i's slot; window: j > slot - window; chunk: equal (j - pad) / chunk. Everything else is `bias`. score = softcap(scale
 * * q.k) + bias, softcap(x) = c * tanh(x / c). A row that sees nothing: out 0, lse -inf, never NaN.
 *
 * Partial results merge: lse = log(sum exp(lse_i)), out = sum exp(lse_i - lse) * out_i. A row's blocks are cut at
 * multiples of the kernel's block in row positions, so that capacity, tier, paging, padding and neighbours leave its
 * bits alone. The result equals update and plain attention within the tolerance that probe declared.
 */
#ifndef KVPLUG_EXT_ATTEND_H
#define KVPLUG_EXT_ATTEND_H

#include <stddef.h>
#include <stdint.h>

#include "kvplug/cache.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVP_EXT_ATTEND "kvp.attend/1"

/* Flags. In args: what is so in this call. In a desc: what may occur. */
#define KVP_ATTEND_CAUSAL 1u
#define KVP_ATTEND_Q_OFFSET 2u /* q_offset is used */
#define KVP_ATTEND_APPEND 4u   /* desc only: calls with k and v */
#define KVP_ATTEND_BIAS 8u     /* desc only */
#define KVP_ATTEND_SINKS 16u   /* desc only */
#define KVP_ATTEND_LSE 32u     /* desc only: lse is asked for */
#define KVP_ATTEND_PADDED 64u  /* desc only: rows with pad or count */

/* What is going to be asked, at preparation time. */
typedef struct kvp_attend_desc {
  size_t struct_size;
  int32_t layer;
  uint32_t flags; /* KVP_ATTEND_… */
  int64_t max_batch;
  int64_t max_query; /* queries of one call */
  kvp_dtype q_dtype;
  kvp_dtype out_dtype;
  float scale;
  float softcap; /* 0 = none */
  int64_t window;
  int64_t chunk;
} kvp_attend_desc;

typedef struct kvp_attend_args {
  size_t struct_size;
  int32_t layer;
  uint32_t flags;      /* KVP_ATTEND_CAUSAL, KVP_ATTEND_Q_OFFSET */
  const kvp_tensor* q; /* [batch, q_heads, queries, key_dim] */
  const kvp_tensor* k; /* as in kvp_update_args; k and v both NULL = nothing is appended */
  const kvp_tensor* v;
  const int64_t* pad; /* as in kvp_update_args; unused without k and v */
  const int64_t* count;
  const kvp_tensor* positions;
  const kvp_tensor*
      bias; /* f32, broadcastable to [batch, q_heads, queries, kv_len], columns as lengths says; or NULL */
  const kvp_tensor* sinks; /* f32 [q_heads]: one more logit in the denominator, counted in lse; or NULL */
  int64_t q_offset;        /* slot of query 0 of every row */
  int64_t window;          /* 0 = the layer's own; smaller is allowed */
  int64_t chunk;           /* 0 = the layer's own; smaller is allowed */
  float scale;
  float softcap; /* 0 = none */
} kvp_attend_args;

typedef struct kvp_attend_ext {
  size_t struct_size;

  /* Tells whether attend can do what the description says; UNSUPPORTED with the reason in words.
   * Thread: instance. Allocates: no. Synchronises: no. Owns: all stays the caller's. Since 0.1. */
  int32_t (*probe)(kvp_cache* self, const kvp_attend_desc* desc, kvp_error* err);

  /* Appends (if k and v are given) and attends. out: [batch, q_heads, queries, value_dim], allocated by the caller, any
   * strides with last 1. lse: f32 [batch, q_heads, queries], natural log, or NULL.
   * Thread: instance. Allocates: yes, unless PREPARED or CAPTURE. Synchronises: no. Owns: all stays the caller's.
   * Since 0.1. */
  int32_t (*attend)(kvp_cache* self, const kvp_call* call, const kvp_attend_args* args, kvp_tensor* out,
                    kvp_tensor* lse, kvp_error* err);
} kvp_attend_ext;

#ifdef __cplusplus
}
#endif

#endif /* KVPLUG_EXT_ATTEND_H */
