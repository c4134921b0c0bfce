/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The quantizer interface "kvp.quantizer/1": packs blocks of tokens and unpacks them.
 *
 * The two sides: a cache decides when a token is packed and where the parts lie; a quantizer decides how. Every part is
 * [batch, kv_heads, blocks, n] with last stride 1, and block i holds tokens i * token_block and up: so a cache appends
 * and crops on axis 2, gathers on axis 0 and slices what it passes, without knowing the layout. Old tokens are never
 * quantized again. An instance is immutable and may be used by many threads at once; keys and values each have their
 * own. In strict mode (KVP_Q_STRICT) token_block is 0, the shape of parts is free, and the whole tensor is passed at
 * once. A NULL slot that is not required reads as "returns UNSUPPORTED".
 */
#ifndef KVPLUG_QUANTIZER_H
#define KVPLUG_QUANTIZER_H

#include <stddef.h>
#include <stdint.h>

#include "kvplug/call.h"
#include "kvplug/error.h"
#include "kvplug/options.h"
#include "kvplug/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVP_IFACE_QUANTIZER "kvp.quantizer/1"

/* An instance; the plugin's own struct. */
typedef struct kvp_quantizer kvp_quantizer;

#define KVP_FORMAT_AFFINE 1    /* x = (code - zero) * scale, in the way the plugin documents */
#define KVP_FORMAT_SYMMETRIC 2 /* x = code * scale */
#define KVP_FORMAT_FP8_E4M3 3
#define KVP_FORMAT_FP8_E5M2 4
#define KVP_FORMAT_CODEBOOK 5

#define KVP_GROUP_WHOLE 0    /* one scale for the whole tensor */
#define KVP_GROUP_TOKENS 1   /* groups along tokens: per channel, usual for keys */
#define KVP_GROUP_HEAD_DIM 2 /* groups along the head dimension: per token, usual for values */

/* Flags of a kvp_qspec and of quantize; one number space. */
#define KVP_Q_STRICT 1u     /* spec: the arithmetic of the reference library, the whole tensor at once */
#define KVP_Q_KEEP_SCALE 2u /* quantize: SHARED parts are input (frozen scales, codebooks) and are not written */

/* What a quantizer does, or the ends of a range of what it can do. */
typedef struct kvp_qspec {
  size_t struct_size;
  int32_t format;    /* KVP_FORMAT_… */
  uint32_t n_levels; /* number of code values; 0 for the fp8 formats */
  uint32_t storage_bits;
  int32_t group_dim;  /* KVP_GROUP_… */
  int64_t group_size; /* elements of one group along group_dim; 0 = the whole axis */
  kvp_dtype scale_dtype;
  kvp_dtype zero_dtype;
  kvp_dtype out_dtype;
  uint32_t flags; /* KVP_Q_STRICT */
} kvp_qspec;

#define KVP_ROLE_KEY 1
#define KVP_ROLE_VALUE 2

typedef struct kvp_qcreate {
  size_t struct_size;
  int32_t role; /* KVP_ROLE_… */
  int32_t head_dim;
  const kvp_qspec* spec;     /* NULL: everything follows from the options */
  const kvp_option* options; /* resolved for this role: no `_key` or `_value` names */
  size_t n_options;
  kvp_dtype dtype; /* of what will be quantized */
  int32_t device_type;
  int32_t device_id;
  uint32_t reserved;
} kvp_qcreate;

#define KVP_PART_DATA 1
#define KVP_PART_SCALE 2
#define KVP_PART_ZERO 3
#define KVP_PART_CODEBOOK 4
#define KVP_PART_OWN 16 /* this and above: the quantizer's own */

#define KVP_QPART_SHARED 1u /* one for all blocks: neither grows nor is cropped */

/* One tensor of packed data. In a plan: shape and dtype, data NULL. Frozen. */
typedef struct kvp_qpart {
  int32_t role;   /* KVP_PART_… */
  uint32_t flags; /* KVP_QPART_SHARED */
  kvp_tensor t;   /* [batch, kv_heads, blocks, n]; SHARED: blocks 1; whole-tensor: 1 on every axis */
} kvp_qpart;

#define KVP_MAX_PARTS 8

typedef struct kvp_qplan {
  size_t struct_size;
  int64_t token_block;      /* tokens of one block, the granularity of appending; 0 in strict mode */
  uint64_t workspace_bytes; /* of one quantize call of the planned size */
  double bits_per_element;  /* all parts together */
  uint32_t n_parts;
  uint32_t reserved;
  kvp_qpart parts[KVP_MAX_PARTS];
} kvp_qplan;

typedef struct kvp_quantizer_iface {
  size_t struct_size;

  /* Returns the number of ranges that spec_range knows. Required.
   * Thread: any. Allocates: no. Synchronises: no. Owns: nothing. Since 0.1. */
  uint32_t (*spec_count)(void);

  /* Gives range i of what is supported: levels, group dims and sizes, types. Required.
   * Thread: any. Allocates: no. Synchronises: no. Owns: low and high are the caller's. Since 0.1. */
  int32_t (*spec_range)(uint32_t i, kvp_qspec* low, kvp_qspec* high, kvp_error* err);

  /* Makes an instance, immutable from then on. Required.
   * Thread: any. Allocates: yes, small. Synchronises: no. Owns: *self is the caller's until destroy. Since 0.1. */
  int32_t (*create)(const kvp_qcreate* create, kvp_quantizer** self, kvp_error* err);

  /* Ends an instance; NULL is ignored. Required.
   * Thread: instance. Allocates: no. Synchronises: no. Owns: takes self. Since 0.1. */
  void (*destroy)(kvp_quantizer* self);

  /* Tells what the options came to. Required.
   * Thread: any. Allocates: no. Synchronises: no. Owns: out is the caller's. Since 0.1. */
  int32_t (*describe)(kvp_quantizer* self, kvp_qspec* out, kvp_error* err);

  /* Tells the parts (types and shapes), block, workspace and cost for a tensor [batch, kv_heads, tokens, head_dim].
   * Pure. Required. Thread: any. Allocates: no. Synchronises: no. Owns: out is the caller's. Since 0.1. */
  int32_t (*plan)(kvp_quantizer* self, int64_t batch, int64_t kv_heads, int64_t tokens, int64_t head_dim,
                  kvp_qplan* out, kvp_error* err);

  /* Packs `in` [batch, kv_heads, tokens, head_dim], whole blocks and no padding (strict: as the reference library),
   * into parts that the caller allocated as planned. Deterministic; constant, zero, NaN and infinite groups are
   * defined. `workspace`: workspace_bytes on the call's device, 64-aligned, NULL if that is 0. Required. Thread: any.
   * Allocates: no. Synchronises: no. Owns: all stays the caller's. Since 0.1. */
  int32_t (*quantize)(kvp_quantizer* self, const kvp_call* call, const kvp_tensor* in, uint32_t flags,
                      const kvp_qpart* parts, uint32_t n_parts, void* workspace, kvp_error* err);

  /* Unpacks into `out` [batch, kv_heads, tokens, head_dim], f32, f16 or bf16, any strides with last 1. Required.
   * Thread: any. Allocates: no. Synchronises: no. Owns: all stays the caller's. Since 0.1. */
  int32_t (*dequantize)(kvp_quantizer* self, const kvp_call* call, const kvp_qpart* parts, uint32_t n_parts,
                        kvp_tensor* out, kvp_error* err);

  /* Declares the largest error of a round trip, in units of the group's scale. Required.
   * Thread: any. Allocates: no. Synchronises: no. Owns: out is the caller's. Since 0.1. */
  int32_t (*error_bound)(kvp_quantizer* self, double* out, kvp_error* err);

  /* Returns the static table of an extension (KVP_EXT_QUANT_ATTEND), or NULL. The whole slot may be NULL.
   * Thread: any. Allocates: no. Synchronises: no. Owns: the table is the plugin's, static. Since 0.1. */
  const void* (*get_extension)(const char* id);
} kvp_quantizer_iface;

/* A quantizer as a cache receives it: kept alive by the host until the cache is destroyed. */
typedef struct kvp_qhandle {
  size_t struct_size;
  const struct kvp_quantizer_iface* iface;
  kvp_quantizer* self;
  const char* id; /* of the descriptor, for messages */
} kvp_qhandle;

#ifdef __cplusplus
}
#endif

#endif /* KVPLUG_QUANTIZER_H */
