/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Layers: what a cache is asked to serve.
 *
 * A plugin is given owning layers only and a flat index into its own list. NONE layers, readers of a shared layer and
 * hybrids (attention and state in one) are resolved by the host before.
 */
#ifndef KVPLUG_LAYER_H
#define KVPLUG_LAYER_H

#include <stddef.h>
#include <stdint.h>

#include "kvplug/tensor.h"

#define KVP_LAYER_NONE 0    /* owns nothing */
#define KVP_LAYER_FULL 1    /* attention over all tokens */
#define KVP_LAYER_SLIDING 2 /* attention over the last `window` tokens */
#define KVP_LAYER_CHUNKED 3 /* attention within chunks of `window` positions */
#define KVP_LAYER_CROSS 4   /* attention over encoder tokens: filled once, not causal */
#define KVP_LAYER_STATE 5   /* convolution and recurrent state, no keys and values */

/* Flags of a layer. */
#define KVP_LAYER_SHARED 1u /* reads the storage of layer `shared_with` of the same list and owns none */

#define KVP_STATE_CONV 1      /* [channels, width] */
#define KVP_STATE_RECURRENT 2 /* any shape */

/* One state tensor of a STATE layer; the shape is without the batch. */
typedef struct kvp_state_slot {
  size_t struct_size;
  int32_t kind; /* KVP_STATE_… */
  int32_t ndim;
  int64_t shape[4];
  kvp_dtype dtype;
  uint32_t flags; /* 0 */
} kvp_state_slot;

typedef struct kvp_layer {
  size_t struct_size;
  int32_t kind;   /* KVP_LAYER_… */
  uint32_t flags; /* KVP_LAYER_SHARED */
  int32_t q_heads;
  int32_t kv_heads;
  int32_t key_dim; /* width of one head's keys and of its values */
  int32_t value_dim;
  int64_t window;              /* SLIDING: W, CHUNKED: C; in tokens, 0 = none */
  const kvp_state_slot* slots; /* of a STATE layer */
  size_t n_slots;
  size_t slot_stride; /* bytes from one slot to the next */
  int32_t shared_with;
  int32_t model_layer; /* index in the model, for messages only */
  int32_t index_dim;   /* width of indexer keys kept beside K and V, 0 = none */
  int32_t reserved;
} kvp_layer;

#endif /* KVPLUG_LAYER_H */
