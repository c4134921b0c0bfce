/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extension "kvp.index/1", a draft: indexer keys beside K and V, for layers with index_dim.
 *
 * One more tensor [batch, tokens, index_dim] with a length of its own. Every operation of the cache treats it as it
 * treats K. Drafts may change until two plugins use them.
 */
#ifndef KVPLUG_EXT_INDEX_H
#define KVPLUG_EXT_INDEX_H

#include <stddef.h>
#include <stdint.h>

#include "kvplug/cache.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVP_EXT_INDEX "kvp.index/1"

typedef struct kvp_index_ext {
  size_t struct_size;

  /* Appends x [batch, tokens, index_dim] and gives a view of all [batch, length, index_dim]. count: [batch], NULL =
   * all. Thread: instance. Allocates: yes, unless PREPARED or CAPTURE. Synchronises: no. Owns: x is the caller's; the
   * view is borrowed until the next mutating call. Since 0.1, draft. */
  int32_t (*append)(kvp_cache* self, const kvp_call* call, int32_t layer, const kvp_tensor* x, const int64_t* count,
                    kvp_tensor* view, kvp_error* err);
} kvp_index_ext;

#ifdef __cplusplus
}
#endif

#endif /* KVPLUG_EXT_INDEX_H */
