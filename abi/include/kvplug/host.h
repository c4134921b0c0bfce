/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the host offers a plugin: log, memory, extensions (threads).
 *
 * The table is handed to the entry function, is valid for the life of the process, and may be used from the entry call
 * on, from any thread. The host holds no lock while it calls a plugin, so calling back is always safe.
 */
#ifndef KVPLUG_HOST_H
#define KVPLUG_HOST_H

#include <stddef.h>
#include <stdint.h>

#include "kvplug/error.h"

#ifdef __cplusplus
extern "C" {
#endif

#define KVP_LOG_ERROR 0
#define KVP_LOG_WARNING 1
#define KVP_LOG_INFO 2
#define KVP_LOG_DEBUG 3

/* A wish for memory, and later the proof of it: mem_free gets the same kvp_mem that mem_alloc got. */
typedef struct kvp_mem {
  size_t struct_size;
  uint64_t owner; /* the token of the instance, from create or clone; valid until the last block under it is freed */
  uint64_t bytes;
  uint64_t align;      /* a power of two; 0 = 64 */
  int32_t tier;        /* KVP_TIER_DEVICE, _PINNED or _HOST */
  int32_t purpose;     /* KVP_PURPOSE_… */
  int32_t device_type; /* the device of DEVICE and PINNED memory; CPU and 0 for HOST */
  int32_t device_id;
  void* stream; /* the stream on which the memory is used first, or last used when freed; NULL on a CPU */
} kvp_mem;

typedef struct kvp_host {
  size_t struct_size;
  uint32_t abi_major;
  uint32_t abi_minor;
  void* ctx;        /* first argument of the functions below */
  const char* name; /* of the host, for messages */
  const char* version;

  /* Sends one line to the host's log. `area` names the part of the plugin; `text` has `len` bytes of UTF-8 and need not
   * end in NUL.
   * Thread: any. Allocates: no. Synchronises: no. Owns: area and text stay the plugin's. Since 0.1. */
  void (*log)(void* ctx, int32_t level, const char* area, const char* text, size_t len);

  /* Takes memory, uninitialised, and books it on the owner, tier and purpose. Zero bytes: NULL and OK. Everything above
   * 64 KiB an instance comes from here. OUT_OF_MEMORY leaves *out untouched.
   * Thread: any. Allocates: yes. Synchronises: no. Owns: the block is the plugin's until mem_free. Since 0.1. */
  int32_t (*mem_alloc)(void* ctx, const kvp_mem* mem, void** out, kvp_error* err);

  /* Gives memory back; `mem` equals that of the allocation (stream: the one of the last use). NULL is ignored.
   * Thread: any. Allocates: no. Synchronises: no. Owns: the block is the host's again. Since 0.1. */
  void (*mem_free)(void* ctx, const kvp_mem* mem, void* ptr);

  /* Returns the static table of a host extension (KVP_EXT_HOST_…), or NULL if the host has none of that name.
   * Thread: any. Allocates: no. Synchronises: no. Owns: the table is the host's and never goes away. Since 0.1. */
  const void* (*get_extension)(void* ctx, const char* id);
} kvp_host;

/* Threads: the engine's own pool. Plugins start no computing threads of their own. */
#define KVP_EXT_HOST_PARALLEL "kvp.host.parallel/1"

/* Does the work of items begin .. end-1. `worker` is unique among those running at once and below workers(). Must not
 * unwind; a failure is left in `arg`. What is summed with what must follow from shapes and positions alone, never from
 * begin, end or workers(): one thread and sixteen give the same bits. */
typedef void (*kvp_parallel_fn)(void* arg, int64_t begin, int64_t end, int32_t worker);

typedef struct kvp_host_parallel {
  size_t struct_size;
  void* ctx;

  /* Returns the number of workers, at least 1; never changes.
   * Thread: any. Allocates: no. Synchronises: no. Owns: nothing. Since 0.1. */
  int32_t (*workers)(void* ctx);

  /* Covers 0 .. n-1 with disjoint calls of fn, each but the last a multiple of `grain` long, and returns when all have
   * returned. A call made inside fn runs inline.
   * Thread: any. Allocates: no. Synchronises: no. Owns: arg stays the caller's. Since 0.1. */
  int32_t (*parallel_for)(void* ctx, int64_t n, int64_t grain, kvp_parallel_fn fn, void* arg);
} kvp_host_parallel;

/* Names kept for later, without a table yet: "kvp.host.events/1" (record and wait across streams), "kvp.host.trace/1",
 * "kvp.host.quantizers/1". */

#ifdef __cplusplus
}
#endif

#endif /* KVPLUG_HOST_H */
