/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extension "kvp.offload/1": hints about which layer comes next, for caches that move data between tiers.
 *
 * Correctness never depends on them: a host may give none, or wrong ones.
 */
#ifndef KVPLUG_EXT_OFFLOAD_H
#define KVPLUG_EXT_OFFLOAD_H

#include <stddef.h>
#include <stdint.h>

#include "kvplug/cache.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVP_EXT_OFFLOAD "kvp.offload/1"

typedef struct kvp_offload_ext {
  size_t struct_size;

  /* A step through the layers begins.
   * Thread: instance. Allocates: no. Synchronises: no. Owns: nothing. Since 0.1. */
  int32_t (*begin_step)(kvp_cache* self, const kvp_call* call, kvp_error* err);

  /* The layer will be needed soon.
   * Thread: instance. Allocates: no. Synchronises: no. Owns: nothing. Since 0.1. */
  int32_t (*prefetch)(kvp_cache* self, const kvp_call* call, int32_t layer, kvp_error* err);

  /* The step has ended.
   * Thread: instance. Allocates: no. Synchronises: no. Owns: nothing. Since 0.1. */
  int32_t (*end_step)(kvp_cache* self, const kvp_call* call, kvp_error* err);
} kvp_offload_ext;

#ifdef __cplusplus
}
#endif

#endif /* KVPLUG_EXT_OFFLOAD_H */
