/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache interface "kvp.cache/1": stores keys and values, gives them back as borrowed views.
 *
 * Rows. All rows of a batch own slots 0, 1, 2, …; lengths speaks of the longest row. pad[b]: that many leading tokens
 * of a call are padding: they take slots, so that rows keep one length, but are hidden from every later call, never
 * quantized, and need not be stored; legal while the row holds nothing but padding. count[b]: the row takes the first
 * count[b] tokens only; rows become ragged, as after a per-row crop. A row's position is slot - pad. Slots that a row
 * does not have, and those of padding, read as zero in views and are masked by whoever attends.
 *
 * Views are valid until the next mutating call on the instance (PER_LAYER_VIEWS: on the same layer). What lengths
 * answers before an update equals the views that the update then returns. Views that need scratch hold it until the
 * next call that changes the instance; it counts in plan's peak and in memory().reserved[SCRATCH] while held, not in
 * plan's reserved.
 *
 * The length of a view is what lengths said: that of the longest row before the call plus the tokens of the call,
 * whatever count says; columns that no row has are zero. The batch is set by the first update of an empty instance, or
 * by gather. In a call that appends nothing, k and v may be NULL.
 *
 * The layers of an instance are updated one after another and differ in the middle of a step. crop counts from the
 * longest layer: a row keeps what its longest layer has seen, less n_remove, and a layer that is shorter already keeps
 * all it has. So crop takes back a step that ended half-way.
 *
 * Lengths and offsets are host integers; no call may synchronise a device to answer one.
 */
#ifndef KVPLUG_CACHE_H
#define KVPLUG_CACHE_H

#include <stddef.h>
#include <stdint.h>

#include "kvplug/call.h"
#include "kvplug/error.h"
#include "kvplug/layer.h"
#include "kvplug/memory.h"
#include "kvplug/options.h"
#include "kvplug/quantizer.h"
#include "kvplug/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVP_IFACE_CACHE "kvp.cache/1"

/* An instance; the plugin's own struct. */
typedef struct kvp_cache kvp_cache;

/* What a cache is made for. Everything it points at is valid during the call only, but for the quantizers. */
typedef struct kvp_cache_create {
  size_t struct_size;
  const kvp_layer* layers;
  size_t n_layers;
  size_t layer_stride; /* bytes from one layer to the next */
  int64_t batch;       /* expected, -1 = unknown */
  int64_t tokens;      /* expected, and the capacity of fixed kinds; -1 = unknown */
  int64_t rollback;    /* depth of crop that is asked for, -1 = unknown */
  int32_t device_type; /* where K and V arrive and attention runs */
  int32_t device_id;
  kvp_dtype dtype; /* of K and V */
  uint32_t flags;  /* 0 */
  const kvp_option* options;
  size_t n_options;
  const kvp_qhandle* quantizer_key; /* NULL, or kept by the host until destroy */
  const kvp_qhandle* quantizer_value;
  uint64_t owner; /* token for every mem_alloc of the instance */
} kvp_cache_create;

/* Flags of kvp_cache_info. */
#define KVP_CACHE_LOSSY 1u           /* what is read may differ from what was stored */
#define KVP_CACHE_STABLE_ADDRESS 2u  /* storage never moves */
#define KVP_CACHE_PER_LAYER_VIEWS 4u /* views live until the next mutating call on the same layer */
#define KVP_CACHE_OWN_MEMORY 8u      /* takes large memory from elsewhere than the host */
#define KVP_CACHE_ROW_CROP 16u       /* crop takes one count per row */
#define KVP_CACHE_SCHEDULE 32u       /* what a token becomes depends on how it arrived */
#define KVP_CACHE_NO_ATTEND 64u      /* so configured, kvp.attend/1 refuses all: the host attends to views */

/* What probe answers. */
typedef struct kvp_cache_info {
  size_t struct_size;
  uint32_t flags; /* KVP_CACHE_… */
  uint32_t reserved;
  int64_t max_rollback; /* tokens that crop can take back, -1 = any number */
  int64_t token_block;  /* granularity of storage in tokens, 1 if none */
  double tolerance; /* attend against update and plain attention, in units of the largest |v| in sight; 0 with a host
                       kernel */
} kvp_cache_info;

/* What lengths answers; seen, max, kv_len and kv_offset are of the longest row. */
typedef struct kvp_lengths {
  size_t struct_size;
  int64_t seen;      /* tokens that arrived, padding and evicted ones included */
  int64_t max;       /* the most that fit, -1 = no end */
  int64_t kv_len;    /* length of the views that the next update of query_len tokens will return */
  int64_t kv_offset; /* slot of their first column */
  int64_t* row_seen; /* NULL, or the caller's array of n_rows to be filled: tokens of each row */
  int64_t* row_pad;  /* NULL, or the caller's array of n_rows to be filled: leading padding of each row */
  size_t n_rows;     /* the batch; a larger one is INVALID_ARGUMENT unless the instance has no batch yet (then zeros) */
} kvp_lengths;

typedef struct kvp_update_args {
  size_t struct_size;
  int32_t layer; /* index in the list given to create */
  uint32_t flags;
  const kvp_tensor* k;         /* [batch, kv_heads, tokens, key_dim], any strides with last 1; */
  const kvp_tensor* v;         /* [batch, kv_heads, tokens, value_dim]; k and v both NULL: zero tokens */
  const int64_t* pad;          /* [batch], host memory, NULL = none */
  const int64_t* count;        /* [batch], host memory, NULL = all tokens */
  const kvp_tensor* positions; /* int64 [batch, tokens], or NULL = row_seen - row_pad + i */
} kvp_update_args;

typedef struct kvp_cache_iface {
  size_t struct_size;

  /* Tells whether these layers, types and options can be served, and how. UNSUPPORTED with the reason in words. Changes
   * nothing; what options name, such as a folder, may be looked at, and is refused with IO. Required.
   * Thread: any. Allocates: no. Synchronises: no. Owns: all stays the caller's. Since 0.1. */
  int32_t (*probe)(const kvp_cache_create* create, kvp_cache_info* out, kvp_error* err);

  /* Tells the exact bytes per tier and purpose for a batch and a number of tokens. Pure. out->reserved is what is held
   * once `tokens` are stored: a function of `tokens` alone, however they arrived and whether or not reserve was called.
   * out->peak is the most held on the way there by update, attend and gather. Required.
   * Thread: any. Allocates: no. Synchronises: no. Owns: all stays the caller's. Since 0.1. */
  int32_t (*plan)(const kvp_cache_create* create, int64_t batch, int64_t tokens, kvp_memory* out, kvp_error* err);

  /* Makes an instance, in one phase. Required.
   * Thread: any. Allocates: yes. Synchronises: no. Owns: *self is the caller's until destroy. Since 0.1. */
  int32_t (*create)(const kvp_cache_create* create, kvp_cache** self, kvp_error* err);

  /* Ends an instance and frees what it holds; NULL is ignored; legal on a poisoned one. Required.
   * Thread: instance. Allocates: no. Synchronises: yes. Owns: takes self. Since 0.1. */
  void (*destroy)(kvp_cache* self);

  /* Tells tokens seen, the maximum, and the columns that the next update of query_len tokens will present. A STATE
   * layer answers seen with kv_len 0. Fixed kinds present the filled part; the whole capacity only while bound to a
   * capture. Required. Thread: instance. Allocates: no. Synchronises: no. Owns: out and its arrays are the caller's.
   * Since 0.1. */
  int32_t (*lengths)(kvp_cache* self, int32_t layer, int64_t query_len, kvp_lengths* out, kvp_error* err);

  /* Appends new K and V and gives views of all that is to be attended to. out_k and out_v are borrowed
   * [batch, kv_heads, kv_len, dim], or both NULL = append only. They may alias args->k and args->v. Zero tokens:
   * nothing changes, the views show what is stored. Required. Thread: instance. Allocates: yes, unless PREPARED or
   * CAPTURE. Synchronises: no. Owns: args stay the caller's; what views point at stays the instance's. Since 0.1. */
  int32_t (*update)(kvp_cache* self, const kvp_call* call, const kvp_update_args* args, kvp_tensor* out_k,
                    kvp_tensor* out_v, kvp_error* err);

  /* Empties the instance and keeps its buffers; ends POISONED; the batch is free again. Required.
   * Thread: instance. Allocates: no. Synchronises: no. Owns: nothing. Since 0.1. */
  int32_t (*reset)(kvp_cache* self, const kvp_call* call, kvp_error* err);

  /* Makes n rows of which row i is the old row src_rows[i], -1 = an empty row: beam reorder, repeat and select in one.
   * Optional. Honours CHECK.
   * Thread: instance. Allocates: yes. Synchronises: no. Owns: src_rows (host memory) stays the caller's. Since 0.1. */
  int32_t (*gather)(kvp_cache* self, const kvp_call* call, const int64_t* src_rows, int64_t n, kvp_error* err);

  /* Drops the newest tokens: n 1 = one count for all rows; n = batch: one per row (ROW_CROP). Removing all that was
   * seen, or more, empties and always works; beyond what is kept: INVALID_STATE. Optional. Honours CHECK. Thread:
   * instance. Allocates: no. Synchronises: no. Owns: n_remove (host memory) stays the caller's. Since 0.1. */
  int32_t (*crop)(kvp_cache* self, const kvp_call* call, const int64_t* n_remove, int64_t n, kvp_error* err);

  /* From now on crop of up to max_tokens must work: windows keep extra, recurrent state keeps checkpoints, or this call
   * refuses. 0 ends it. Optional. Honours CHECK.
   * Thread: instance. Allocates: yes. Synchronises: no. Owns: nothing. Since 0.1. */
  int32_t (*set_rollback)(kvp_cache* self, const kvp_call* call, int64_t max_tokens, kvp_error* err);

  /* Makes a copy, deep in meaning, accounted to `owner`; sharing pages copy-on-write inside is fine. Optional.
   * Thread: instance. Allocates: yes. Synchronises: no. Owns: *out is the caller's until destroy. Since 0.1. */
  int32_t (*clone)(kvp_cache* self, const kvp_call* call, uint64_t owner, kvp_cache** out, kvp_error* err);

  /* Takes what is needed so that later calls up to that size do not allocate, scratch of attend included. Optional.
   * Honours CHECK.
   * Thread: instance. Allocates: yes. Synchronises: no. Owns: nothing. Since 0.1. */
  int32_t (*reserve)(kvp_cache* self, const kvp_call* call, int64_t batch, int64_t tokens, kvp_error* err);

  /* Tells used and reserved bytes by tier and purpose, the peak, and what an unquantized cache would use; layer -1 =
   * all. Required. Thread: instance. Allocates: no. Synchronises: no. Owns: out is the caller's. Since 0.1. */
  int32_t (*memory)(kvp_cache* self, int32_t layer, kvp_memory* out, kvp_error* err);

  /* Tells what really ran: fused calls, dequantized tokens, prefetch hits, bytes moved. *n: in, room at out; out, how
   * many there are (min of both were written). out may be NULL with *n 0. Optional. Thread: instance. Allocates: no.
   * Synchronises: no. Owns: out is the caller's, names are static. Since 0.1. */
  int32_t (*counters)(kvp_cache* self, kvp_counter* out, size_t* n);

  /* Returns the static table of an extension (KVP_EXT_…) of the kind, not of an instance, or NULL. Required.
   * Thread: any. Allocates: no. Synchronises: no. Owns: the table is the plugin's, static. Since 0.1. */
  const void* (*get_extension)(const char* id);
} kvp_cache_iface;

#ifdef __cplusplus
}
#endif

#endif /* KVPLUG_CACHE_H */
