/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extension "kvp.snapshot/1": the content of a cache as named tensors; the host writes and reads the file.
 *
 * NATIVE is bit-exact for the same kind and options. PORTABLE is KEY and VALUE in the cache's dtype from first_token
 * on, states and rows: any kind may take it. Without the extension the host makes PORTABLE from zero-token updates and
 * restores it by update.
 */
#ifndef KVPLUG_EXT_SNAPSHOT_H
#define KVPLUG_EXT_SNAPSHOT_H

#include <stddef.h>
#include <stdint.h>

#include "kvplug/cache.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVP_EXT_SNAPSHOT "kvp.snapshot/1"

#define KVP_SNAP_PORTABLE 1
#define KVP_SNAP_NATIVE 2

#define KVP_SNAP_KEY 1
#define KVP_SNAP_VALUE 2
#define KVP_SNAP_CONV 3
#define KVP_SNAP_RECURRENT 4
#define KVP_SNAP_ROWS 5  /* row_seen and row_pad */
#define KVP_SNAP_META 16 /* JSON */
#define KVP_SNAP_OWN 17  /* this and above: the plugin's own */

typedef struct kvp_snap_item {
  size_t struct_size;
  int32_t role; /* KVP_SNAP_… */
  int32_t layer;
  int32_t slot; /* of a state, else 0 */
  uint32_t flags;
  int64_t first_token;
  const char* name; /* unique within the snapshot */
  kvp_tensor t;
} kvp_snap_item;

typedef struct kvp_snapshot_ext {
  size_t struct_size;

  /* Tells the number of items of a form.
   * Thread: instance. Allocates: no. Synchronises: no. Owns: n is the caller's. Since 0.1. */
  int32_t (*count)(kvp_cache* self, int32_t form, uint64_t* n, kvp_error* err);

  /* Gives item i; its name and tensor live until the next call.
   * Thread: instance. Allocates: yes. Synchronises: no. Owns: what the item points at is the instance's. Since 0.1. */
  int32_t (*item)(kvp_cache* self, const kvp_call* call, int32_t form, uint64_t i, kvp_snap_item* out, kvp_error* err);

  /* Fills an empty instance, all or nothing; wrong shapes, missing or doubled items are CORRUPT. stride: bytes from one
   * item to the next.
   * Thread: instance. Allocates: yes. Synchronises: no. Owns: items stay the caller's. Since 0.1. */
  int32_t (*restore)(kvp_cache* self, const kvp_call* call, int32_t form, const kvp_snap_item* items, size_t n,
                     size_t stride, kvp_error* err);
} kvp_snapshot_ext;

#ifdef __cplusplus
}
#endif

#endif /* KVPLUG_EXT_SNAPSHOT_H */
