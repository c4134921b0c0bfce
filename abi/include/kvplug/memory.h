/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Accounting: where bytes lie (tier) and what they are for (purpose), and counters of what really ran.
 *
 * With the CPU as the device, keys and values are counted under HOST; DEVICE is an accelerator's memory.
 */
#ifndef KVPLUG_MEMORY_H
#define KVPLUG_MEMORY_H

#include <stddef.h>
#include <stdint.h>

#define KVP_TIER_DEVICE 0 /* an accelerator's own memory */
#define KVP_TIER_PINNED 1 /* host memory that a device can reach */
#define KVP_TIER_HOST 2   /* plain host memory */
#define KVP_TIER_FILE 3   /* files of the plugin, under the folder its options name */
#define KVP_N_TIERS 4

#define KVP_PURPOSE_KV 0       /* plain keys and values */
#define KVP_PURPOSE_PACKED 1   /* quantized data */
#define KVP_PURPOSE_RESIDUAL 2 /* tokens waiting in full precision, first exact tokens too */
#define KVP_PURPOSE_SCALES 3   /* scales and zeros */
#define KVP_PURPOSE_STATE 4    /* convolution and recurrent state */
#define KVP_PURPOSE_ROLLBACK 5 /* records and checkpoints for crop */
#define KVP_PURPOSE_SCRATCH 6  /* working memory, views that had to be made included */
#define KVP_PURPOSE_OTHER 7
#define KVP_N_PURPOSES 8

/* Answer of plan and memory; bytes, indexed [tier][purpose]. What is below 64 KiB an instance need not be counted. */
typedef struct kvp_memory {
  size_t struct_size;
  uint64_t used[KVP_N_TIERS][KVP_N_PURPOSES];     /* bytes that hold something now */
  uint64_t reserved[KVP_N_TIERS][KVP_N_PURPOSES]; /* bytes taken from the allocator */
  uint64_t peak[KVP_N_TIERS];                     /* the most held at once, over all purposes */
  uint64_t unquantized;                           /* what plain storage of the same tokens would use */
} kvp_memory;

/* One counter. The name is static text of the plugin, spelt as in the run's JSON report. Frozen. */
typedef struct kvp_counter {
  const char* name;
  uint64_t value;
} kvp_counter;

#endif /* KVPLUG_MEMORY_H */
