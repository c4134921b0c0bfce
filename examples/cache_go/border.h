/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What lies between C and Go: functions of entry.c that Go calls. The other way goes through the functions that cgo
 * exports.
 */
#ifndef EXAMPLE_BORDER_H
#define EXAMPLE_BORDER_H

#include <kvplug/abi.h>

/* Go cannot call function pointers: these call the host's. */
int32_t host_alloc(const kvp_mem* mem, void** out);
void host_free(const kvp_mem* mem, void* data);

/* Layer i of a wish, as a struct of today. */
void layer_at(const kvp_cache_create* create, size_t i, kvp_layer* out);

#endif
