/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of the cache, one for each slot of kvp_cache_iface that it serves. What they must do is said there.
 */
#ifndef EXAMPLE_EXACT_H
#define EXAMPLE_EXACT_H

#include <kvplug/cache.h>
#include <kvplug/host.h>

extern const kvp_host* exact_host; /* set by the entry; memory comes from it */

int32_t exact_probe(const kvp_cache_create* create, kvp_cache_info* out, kvp_error* err);
int32_t exact_plan(const kvp_cache_create* create, int64_t batch, int64_t tokens, kvp_memory* out, kvp_error* err);
int32_t exact_create(const kvp_cache_create* create, kvp_cache** self, kvp_error* err);
void exact_destroy(kvp_cache* self);
int32_t exact_lengths(kvp_cache* self, int32_t layer, int64_t query_len, kvp_lengths* out, kvp_error* err);
int32_t exact_update(kvp_cache* self, const kvp_call* call, const kvp_update_args* args, kvp_tensor* out_k,
                     kvp_tensor* out_v, kvp_error* err);
int32_t exact_reset(kvp_cache* self, const kvp_call* call, kvp_error* err);
int32_t exact_gather(kvp_cache* self, const kvp_call* call, const int64_t* src_rows, int64_t n, kvp_error* err);
int32_t exact_crop(kvp_cache* self, const kvp_call* call, const int64_t* n_remove, int64_t n, kvp_error* err);
int32_t exact_set_rollback(kvp_cache* self, const kvp_call* call, int64_t max_tokens, kvp_error* err);
int32_t exact_clone(kvp_cache* self, const kvp_call* call, uint64_t owner, kvp_cache** out, kvp_error* err);
int32_t exact_memory(kvp_cache* self, int32_t layer, kvp_memory* out, kvp_error* err);
const void* exact_get_extension(const char* id);

#endif
