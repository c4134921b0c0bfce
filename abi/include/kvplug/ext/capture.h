/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extension "kvp.capture/1", a draft: decode steps recorded once into a graph and replayed.
 *
 * Needs STABLE_ADDRESS. While bound, calls carry KVP_CALL_CAPTURE, kernels read slots and lengths from row_seen in
 * device memory, and shapes are those of the full capacity. Drafts may change until two plugins use them.
 */
#ifndef KVPLUG_EXT_CAPTURE_H
#define KVPLUG_EXT_CAPTURE_H

#include <stddef.h>
#include <stdint.h>

#include "kvplug/cache.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVP_EXT_CAPTURE "kvp.capture/1"

typedef struct kvp_capture_ext {
  size_t struct_size;

  /* Prepares for recording steps of query_len tokens; row_seen: int32 [batch], on the device.
   * Thread: instance. Allocates: yes. Synchronises: no. Owns: row_seen stays the caller's and valid until unbind.
   * Since 0.1, draft. */
  int32_t (*bind)(kvp_cache* self, const kvp_call* call, int64_t query_len, const kvp_tensor* row_seen, kvp_error* err);

  /* Moves the host's counters on by n_tokens, once per replay.
   * Thread: instance. Allocates: no. Synchronises: no. Owns: nothing. Since 0.1, draft. */
  int32_t (*advance)(kvp_cache* self, int64_t n_tokens, kvp_error* err);

  /* Ends the binding.
   * Thread: instance. Allocates: no. Synchronises: no. Owns: row_seen is no longer used. Since 0.1, draft. */
  int32_t (*unbind)(kvp_cache* self, kvp_error* err);
} kvp_capture_ext;

#ifdef __cplusplus
}
#endif

#endif /* KVPLUG_EXT_CAPTURE_H */
