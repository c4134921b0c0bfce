/* SPDX-License-Identifier: Apache-2.0 */
/* What the cache holds: blocks from the host, the places of tokens in them, the rows' lengths. */
#include "storage.h"

#include <kvplug/sdk/plugin_c.h>
#include <kvplug/status.h>
#include <stdlib.h>
#include <string.h>

const kvp_host* exact_host;

size_t element(const kvp_cache* c) { return c->dtype.bits / 8u; }

int64_t capacity_for(int64_t grow, int64_t tokens) {
  int64_t capacity = grow;
  if (tokens <= 0) return 0;
  while (capacity < tokens) capacity *= 2;
  return capacity;
}

uint64_t layer_bytes(const layer* l, size_t element_bytes, int64_t batch, int64_t capacity) {
  uint64_t bytes = (uint64_t)(l->dim[0] + l->dim[1]) * element_bytes;
  if (__builtin_mul_overflow(bytes, (uint64_t)l->heads, &bytes) ||
      __builtin_mul_overflow(bytes, (uint64_t)batch, &bytes) ||
      __builtin_mul_overflow(bytes, (uint64_t)capacity, &bytes)) {
    return UINT64_MAX;
  }
  return bytes;
}

row* rows_of(const kvp_cache* c, int32_t layer_index) {
  return c->rows.data == NULL ? NULL : (row*)c->rows.data + (int64_t)layer_index * c->batch;
}

int64_t longest(const kvp_cache* c, int32_t layer_index) {
  const row* rows = rows_of(c, layer_index);
  int64_t b, most = 0;
  for (b = 0; b < c->batch; b++) {
    if (rows[b].seen > most) most = rows[b].seen;
  }
  return most;
}

int is_empty(const kvp_cache* c) {
  size_t i;
  for (i = 0; i < c->n_layers; i++) {
    if (longest(c, (int32_t)i) > 0) return 0;
  }
  return 1;
}

int32_t take(kvp_cache* c, int32_t purpose, uint64_t bytes, block* out, kvp_error* err) {
  block b;
  int32_t status;
  memset(&b, 0, sizeof(b));
  b.mem.struct_size = sizeof(b.mem);
  b.mem.owner = c->owner;
  b.mem.bytes = bytes;
  b.mem.align = 64;
  b.mem.tier = KVP_TIER_HOST;
  b.mem.purpose = purpose;
  b.mem.device_type = KVP_DEVICE_CPU;
  status = exact_host->mem_alloc(exact_host->ctx, &b.mem, &b.data, err);
  if (status != KVP_OK) return status;
  c->held += bytes;
  if (c->held > c->peak) c->peak = c->held;
  *out = b;
  return KVP_OK;
}

void give(kvp_cache* c, block* b) {
  if (b->data != NULL) exact_host->mem_free(exact_host->ctx, &b->mem, b->data);
  c->held -= b->mem.bytes;
  memset(b, 0, sizeof(*b));
}

int32_t take_rows(kvp_cache* c, int64_t batch, block* out, kvp_error* err) {
  const int32_t status = take(c, KVP_PURPOSE_OTHER, (uint64_t)batch * c->n_layers * sizeof(row), out, err);
  if (status == KVP_OK) memset(out->data, 0, out->mem.bytes);
  return status;
}

char* at(const kvp_cache* c, const layer* l, void* data, int64_t batch, int64_t capacity, int part, int64_t b,
         int64_t h, int64_t slot) {
  const int64_t before = part == 0 ? 0 : batch * l->heads * capacity * l->dim[0];
  return (char*)data + (size_t)(before + ((b * l->heads + h) * capacity + slot) * l->dim[part]) * element(c);
}

void copy_row(const kvp_cache* c, const layer* l, const layer* from, int64_t from_batch, int64_t from_row, void* to,
              int64_t to_batch, int64_t to_capacity, int64_t to_row, int64_t tokens) {
  int part;
  int64_t h;
  for (part = 0; part < 2; part++) {
    for (h = 0; h < l->heads && tokens > 0; h++) {
      memcpy(at(c, l, to, to_batch, to_capacity, part, to_row, h, 0),
             at(c, l, from->kv.data, from_batch, from->capacity, part, from_row, h, 0),
             (size_t)(tokens * l->dim[part]) * element(c));
    }
  }
}

void zero_slots(const kvp_cache* c, const layer* l, int64_t b, int64_t begin, int64_t end) {
  int part;
  int64_t h;
  for (part = 0; part < 2; part++) {
    for (h = 0; h < l->heads && begin < end; h++) {
      memset(at(c, l, l->kv.data, c->batch, l->capacity, part, b, h, begin), 0,
             (size_t)((end - begin) * l->dim[part]) * element(c));
    }
  }
}

void store(const kvp_cache* c, const layer* l, int part, const kvp_tensor* t, int64_t b, int64_t begin, int64_t end,
           int64_t slot) {
  const size_t line = (size_t)l->dim[part] * element(c);
  int64_t h, i;
  for (h = 0; h < l->heads; h++) {
    for (i = begin; i < end; i++) {
      const int64_t offset = b * t->strides[0] + h * t->strides[1] + i * t->strides[2];
      memcpy(at(c, l, l->kv.data, c->batch, l->capacity, part, b, h, slot + i - begin),
             (const char*)t->data + offset * (int64_t)element(c), line);
    }
  }
}

int32_t copy_rows(const kvp_cache* from, const int64_t* src_rows, int64_t n, kvp_cache* to, kvp_error* err) {
  size_t i;
  int64_t b;
  int32_t status = take_rows(to, n, &to->rows, err);
  for (i = 0; status == KVP_OK && i < from->n_layers; i++) {
    to->layers[i].capacity = from->layers[i].capacity;
    status = take(to, KVP_PURPOSE_KV, layer_bytes(&to->layers[i], element(to), n, to->layers[i].capacity),
                  &to->layers[i].kv, err);
  }
  if (status != KVP_OK) {
    for (i = 0; i < to->n_layers; i++) give(to, &to->layers[i].kv);
    give(to, &to->rows);
    return status;
  }
  to->batch = n;
  for (i = 0; i < from->n_layers; i++) {
    for (b = 0; b < n; b++) {
      const int64_t src = src_rows == NULL ? b : src_rows[b];
      if (src < 0 || from->batch == 0) continue;
      rows_of(to, (int32_t)i)[b] = rows_of(from, (int32_t)i)[src];
      copy_row(to, &to->layers[i], &from->layers[i], from->batch, src, to->layers[i].kv.data, n, to->layers[i].capacity,
               b, rows_of(from, (int32_t)i)[src].seen);
    }
  }
  return KVP_OK;
}

kvp_cache* empty_twin(const kvp_cache* c, uint64_t owner) {
  kvp_cache* twin = (kvp_cache*)calloc(1, sizeof(*twin) + c->n_layers * sizeof(layer));
  size_t i;
  if (twin == NULL) return NULL;
  twin->owner = owner;
  twin->grow = c->grow;
  twin->dtype = c->dtype;
  twin->n_layers = c->n_layers;
  for (i = 0; i < c->n_layers; i++) {
    twin->layers[i].heads = c->layers[i].heads;
    twin->layers[i].dim[0] = c->layers[i].dim[0];
    twin->layers[i].dim[1] = c->layers[i].dim[1];
  }
  return twin;
}
