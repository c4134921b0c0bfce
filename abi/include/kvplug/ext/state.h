/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extension "kvp.state/1": convolution and recurrent state of STATE layers.
 *
 * The step of a layer: conv_append for each convolution slot, state_view for each recurrent slot, then one commit. crop
 * then restores both kinds of state exactly, as far as set_rollback asked for.
 */
#ifndef KVPLUG_EXT_STATE_H
#define KVPLUG_EXT_STATE_H

#include <stddef.h>
#include <stdint.h>

#include "kvplug/cache.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVP_EXT_STATE "kvp.state/1"

typedef struct kvp_state_ext {
  size_t struct_size;

  /* Appends x [batch, channels, n] to a convolution slot and gives a view of the kept columns and the new ones,
   * [batch, channels, kept + n]. Hidden columns of x are zero. count: [batch], NULL = all.
   * Thread: instance. Allocates: yes, unless PREPARED or CAPTURE. Synchronises: no. Owns: x is the caller's; the view
   * is borrowed until the next mutating call. Since 0.1. */
  int32_t (*conv_append)(kvp_cache* self, const kvp_call* call, int32_t layer, int32_t slot, const kvp_tensor* x,
                         const int64_t* count, kvp_tensor* full, kvp_error* err);

  /* Gives the recurrent state before and the room for those after n tokens: prev [batch, …], next [m, batch, …]. The
   * scan reads prev and writes next[m-1] after the last token and next[m-1-i] after the i-th before it. m is 1 without
   * rollback (next[0] aliases prev: in place), else min(n, depth + 1).
   * Thread: instance. Allocates: yes, unless PREPARED or CAPTURE. Synchronises: no. Owns: views borrowed until commit.
   * Since 0.1. */
  int32_t (*state_view)(kvp_cache* self, const kvp_call* call, int32_t layer, int32_t slot, int64_t n, kvp_tensor* prev,
                        kvp_tensor* next, kvp_error* err);

  /* Ends the layer's step of n tokens: seen grows, has_previous is set, checkpoints are kept.
   * Thread: instance. Allocates: no. Synchronises: no. Owns: count stays the caller's. Since 0.1. */
  int32_t (*commit)(kvp_cache* self, const kvp_call* call, int32_t layer, int64_t n, const int64_t* count,
                    kvp_error* err);

  /* Tells (1 or 0) whether the slot holds state from an earlier step.
   * Thread: instance. Allocates: no. Synchronises: no. Owns: yes is the caller's. Since 0.1. */
  int32_t (*has_previous)(kvp_cache* self, int32_t layer, int32_t slot, uint32_t* yes, kvp_error* err);
} kvp_state_ext;

#ifdef __cplusplus
}
#endif

#endif /* KVPLUG_EXT_STATE_H */
