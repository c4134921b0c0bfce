/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the cache holds.
 *
 * Each layer has one block of memory, K [batch, heads, capacity, key_dim] and behind it V likewise. The capacity is the
 * first of grow_tokens * 1, 2, 4, ... that holds the tokens: a function of their number alone, so that plan can tell
 * it. The rows' lengths are kept per layer, since the layers of one step are updated one after another.
 */
#ifndef EXAMPLE_STORAGE_H
#define EXAMPLE_STORAGE_H

#include "exact.h"

typedef struct row {
  int64_t seen; /* slots taken */
  int64_t pad;  /* of these, leading padding */
} row;

typedef struct block {
  kvp_mem mem; /* as given to mem_alloc; mem_free wants it back */
  void* data;
} block;

typedef struct layer {
  int64_t heads;
  int64_t dim[2]; /* of K, of V */
  int64_t capacity;
  block kv;
} layer;

struct kvp_cache {
  uint64_t owner;
  int64_t grow;
  kvp_dtype dtype;
  int64_t batch; /* 0 = none yet */
  block rows;    /* row [n_layers][batch] */
  uint64_t held;
  uint64_t peak;
  size_t n_layers;
  layer layers[]; /* [n_layers] */
};

/* Bytes of one element. */
size_t element(const kvp_cache* c);
/* The capacity that holds so many tokens; 0 for none. */
int64_t capacity_for(int64_t grow, int64_t tokens);
/* Bytes of one layer, or UINT64_MAX if that is beyond all memory. */
uint64_t layer_bytes(const layer* l, size_t element_bytes, int64_t batch, int64_t capacity);
/* The rows of a layer, [batch]; NULL without a batch. */
row* rows_of(const kvp_cache* c, int32_t layer_index);
/* Slots of the longest row. */
int64_t longest(const kvp_cache* c, int32_t layer_index);
/* Whether no layer holds a token. */
int is_empty(const kvp_cache* c);
/* Takes a block from the host, booked on the cache; gives it back. */
int32_t take(kvp_cache* c, int32_t purpose, uint64_t bytes, block* out, kvp_error* err);
void give(kvp_cache* c, block* b);
/* Takes a block of empty rows for all layers. */
int32_t take_rows(kvp_cache* c, int64_t batch, block* out, kvp_error* err);
/* Where K (part 0) or V (part 1) of one slot lies in a layer's block. */
char* at(const kvp_cache* c, const layer* l, void* data, int64_t batch, int64_t capacity, int part, int64_t b,
         int64_t h, int64_t slot);
/* Copies the first tokens of a row into another block of the same layer. */
void copy_row(const kvp_cache* c, const layer* l, const layer* from, int64_t from_batch, int64_t from_row, void* to,
              int64_t to_batch, int64_t to_capacity, int64_t to_row, int64_t tokens);
/* Zeroes slots begin .. end-1 of a row. */
void zero_slots(const kvp_cache* c, const layer* l, int64_t b, int64_t begin, int64_t end);
/* Copies tokens begin .. end-1 of row b of the call to the slots from `slot` on. */
void store(const kvp_cache* c, const layer* l, int part, const kvp_tensor* t, int64_t b, int64_t begin, int64_t end,
           int64_t slot);
/* Gives `to`, which has neither rows nor memory, n rows out of `from` (src_rows NULL: all). All or nothing. */
int32_t copy_rows(const kvp_cache* from, const int64_t* src_rows, int64_t n, kvp_cache* to, kvp_error* err);
/* A cache of the same make with nothing in it, or NULL. */
kvp_cache* empty_twin(const kvp_cache* c, uint64_t owner);

#endif
