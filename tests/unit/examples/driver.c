/* SPDX-License-Identifier: Apache-2.0 */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void check(int ok, const char* what, const char* file, int line) {
  if (ok) return;
  fprintf(stderr, "%s:%d: %s; last error text: %s\n", file, line, what, text);
  exit(1);
}

/* ---- the host: every block carries the kvp_mem it was taken with, and a mark behind its end ---- */

test_host host = {{0}, 0, 0, -1, 0};
static const unsigned char mark[8] = {1, 9, 2, 8, 3, 7, 4, 6};

uint64_t host_live(void) {
  uint64_t sum = 0;
  int i;
  for (i = 0; i < KVP_N_PURPOSES; i++) sum += host.live[i];
  return sum;
}

static int32_t mem_alloc(void* ctx, const kvp_mem* mem, void** out, kvp_error* err) {
  unsigned char* raw;
  CHECK(ctx == &host && mem->struct_size == sizeof(kvp_mem));
  CHECK(mem->owner == host.owner && mem->tier == KVP_TIER_HOST && mem->purpose >= 0 && mem->purpose < KVP_N_PURPOSES);
  if (host.fail_in == 0) {
    host.fail_in = -1;
    if (err != NULL) err->code = KVP_OUT_OF_MEMORY;
    return KVP_OUT_OF_MEMORY;
  }
  if (host.fail_in > 0) host.fail_in--;
  if (mem->bytes == 0) {
    *out = NULL;
    return KVP_OK;
  }
  if (mem->bytes > (uint64_t)1 << 32) return KVP_OUT_OF_MEMORY;
  raw = (unsigned char*)malloc(128 + mem->bytes + sizeof(mark));
  CHECK(raw != NULL);
  memset(raw + 128, 0xA5, mem->bytes);
  memcpy(raw, mem, sizeof(*mem));
  memcpy(raw + 128 + mem->bytes, mark, sizeof(mark));
  host.live[mem->purpose] += mem->bytes;
  host.blocks++;
  if (host_live() > host.peak) host.peak = host_live();
  *out = raw + 128;
  return KVP_OK;
}

static void mem_free(void* ctx, const kvp_mem* mem, void* ptr) {
  unsigned char* raw = (unsigned char*)ptr - 128;
  CHECK(ctx == &host);
  if (ptr == NULL) return;
  CHECK(memcmp(raw, mem, sizeof(*mem)) == 0);
  CHECK(memcmp(raw + 128 + mem->bytes, mark, sizeof(mark)) == 0);
  host.live[mem->purpose] -= mem->bytes;
  host.blocks--;
  free(raw);
}

static void log_line(void* ctx, int32_t level, const char* area, const char* line, size_t len) {
  (void)ctx;
  fprintf(stderr, "[%d %s] %.*s\n", (int)level, area, (int)len, line);
}

static const void* no_extension(void* ctx, const char* id) {
  (void)ctx;
  (void)id;
  return NULL;
}

const kvp_host host_table = {sizeof(kvp_host), KVP_ABI_MAJOR, KVP_ABI_MINOR, &host,       "driver", "1",
                             log_line,         mem_alloc,     mem_free,      no_extension};

/* ---- what is tested ---- */

#define LAYER(heads, kd, vd, i) \
  {sizeof(kvp_layer), KVP_LAYER_FULL, 0, 4, heads, kd, vd, 0, NULL, 0, sizeof(kvp_state_slot), 0, i, 0, 0}
const kvp_layer layers[N_LAYERS] = {LAYER(2, 3, 5, 0), LAYER(1, 8, 4, 1)};
const kvp_cache_iface* iface;
kvp_dtype dtype = {KVP_DTYPE_FLOAT, 32, 1};
char text[256];
kvp_error last_error = {sizeof(kvp_error), 0, 0, text, sizeof(text), 0};
const kvp_call plain_call = {sizeof(kvp_call), KVP_DEVICE_CPU, 0, NULL, 0, 0};
const kvp_call check_call = {sizeof(kvp_call), KVP_DEVICE_CPU, 0, NULL, KVP_CALL_CHECK, 0};
const kvp_call prepared_call = {sizeof(kvp_call), KVP_DEVICE_CPU, 0, NULL, KVP_CALL_PREPARED, 0};

kvp_cache_create a_wish(void) {
  kvp_cache_create w;
  memset(&w, 0, sizeof(w));
  w.struct_size = sizeof(w);
  w.layers = layers;
  w.n_layers = N_LAYERS;
  w.layer_stride = sizeof(kvp_layer);
  w.batch = w.tokens = w.rollback = -1;
  w.device_type = KVP_DEVICE_CPU;
  w.dtype = dtype;
  w.owner = host.owner;
  return w;
}

/* ---- the oracle ---- */

/* The element that number `serial` stands for, in the low bits. */
static uint32_t element_of(int32_t serial, int part, int64_t h, int64_t d) {
  uint32_t x = (uint32_t)serial;
  if (serial == 0) return 0;
  x = x * 2654435761u + (uint32_t)part * 97u + (uint32_t)h * 1009u + (uint32_t)d * 31u;
  x ^= x >> 15;
  return x * 2246822519u;
}

static int64_t dim_of(int layer, int part) { return part == 0 ? layers[layer].key_dim : layers[layer].value_dim; }

int64_t oracle_longest(const oracle* o, int layer) {
  int64_t most = 0, b;
  for (b = 0; b < o->batch; b++) {
    if (o->row[layer][b].seen > most) most = o->row[layer][b].seen;
  }
  return most;
}

static void compare_view(const oracle* o, int layer, int part, int64_t kv_len, const kvp_tensor* t) {
  const size_t bytes = dtype.bits / 8u;
  int64_t b, h, s, d;
  CHECK(t->ndim == 4 && t->shape[0] == o->batch && t->shape[1] == layers[layer].kv_heads && t->shape[2] == kv_len);
  CHECK(t->shape[3] == dim_of(layer, part) && t->strides[3] == 1 && t->device_type == KVP_DEVICE_CPU);
  CHECK(t->dtype_code == dtype.code && t->dtype_bits == dtype.bits && t->dtype_lanes == 1);
  for (b = 0; b < o->batch; b++) {
    const oracle_row* row = &o->row[layer][b];
    for (h = 0; h < t->shape[1]; h++) {
      for (s = 0; s < kv_len; s++) {
        for (d = 0; d < t->shape[3]; d++) {
          const uint32_t want = element_of(s < row->seen ? row->slot[s] : 0, part, h, d);
          const int64_t offset = b * t->strides[0] + h * t->strides[1] + s * t->strides[2] + d;
          CHECK(memcmp((const char*)t->data + offset * (int64_t)bytes, &want, bytes) == 0);
        }
      }
    }
  }
}

/* New K or V as a model leaves them: in memory [batch, tokens, heads, dim], seen as [batch, heads, tokens, dim]. */
static kvp_tensor new_tensor(int layer, int part, int64_t batch, int64_t tokens, int32_t first_serial) {
  const int64_t heads = layers[layer].kv_heads, dim = dim_of(layer, part);
  const size_t bytes = dtype.bits / 8u;
  kvp_tensor t;
  int64_t b, s, h, d;
  memset(&t, 0, sizeof(t));
  t.device_type = KVP_DEVICE_CPU;
  t.ndim = 4;
  t.dtype_code = dtype.code;
  t.dtype_bits = dtype.bits;
  t.dtype_lanes = 1;
  t.shape[0] = batch, t.shape[1] = heads, t.shape[2] = tokens, t.shape[3] = dim;
  t.strides[0] = tokens * heads * dim, t.strides[1] = dim, t.strides[2] = heads * dim, t.strides[3] = 1;
  t.data = malloc((size_t)(batch * tokens * heads * dim) * bytes + 1);
  CHECK(t.data != NULL);
  for (b = 0; b < batch; b++) {
    for (s = 0; s < tokens; s++) {
      for (h = 0; h < heads; h++) {
        for (d = 0; d < dim; d++) {
          const uint32_t x = element_of(first_serial + (int32_t)(b * tokens + s), part, h, d);
          memcpy((char*)t.data + (size_t)(((b * tokens + s) * heads + h) * dim + d) * bytes, &x, bytes);
        }
      }
    }
  }
  return t;
}

void update_both(kvp_cache* c, oracle* o, int layer, int64_t batch, int64_t tokens, const int64_t* pad,
                 const int64_t* count, int32_t fail) {
  static int32_t next_serial = 1;
  kvp_tensor k = new_tensor(layer, 0, batch, tokens, next_serial);
  kvp_tensor v = new_tensor(layer, 1, batch, tokens, next_serial);
  kvp_tensor out_k, out_v, untouched;
  kvp_lengths before = {sizeof(kvp_lengths), 0, 0, 0, 0, NULL, NULL, 0};
  kvp_update_args a = {sizeof(kvp_update_args), layer, 0, &k, &v, pad, count, NULL};
  int64_t b, i;
  int32_t status;
  memset(&untouched, 0x55, sizeof(untouched));
  out_k = out_v = untouched;
  CHECK(iface->lengths(c, layer, tokens, &before, &last_error) == KVP_OK);
  status = iface->update(c, &plain_call, &a, &out_k, &out_v, &last_error);
  CHECK(status == fail);
  if (fail != KVP_OK) {
    CHECK(memcmp(&out_k, &untouched, sizeof(out_k)) == 0 && memcmp(&out_v, &untouched, sizeof(out_v)) == 0);
  } else {
    CHECK(before.kv_len == oracle_longest(o, layer) + tokens && before.kv_offset == 0 && before.max == -1);
    if (tokens > 0) o->batch = batch;
    for (b = 0; b < batch && tokens > 0; b++) {
      oracle_row* row = &o->row[layer][b];
      const int64_t taken = count == NULL ? tokens : count[b];
      const int64_t hidden = pad == NULL ? 0 : pad[b];
      for (i = 0; i < taken; i++) {
        row->slot[row->seen + i] = i < hidden ? 0 : next_serial + (int32_t)(b * tokens + i);
      }
      row->seen += taken;
      row->pad += hidden;
    }
    compare_view(o, layer, 0, before.kv_len, &out_k);
    compare_view(o, layer, 1, before.kv_len, &out_v);
  }
  next_serial += (int32_t)(batch * tokens);
  free(k.data);
  free(v.data);
}

void compare(kvp_cache* c, const oracle* o) {
  kvp_memory all = {sizeof(kvp_memory), {{0}}, {{0}}, {0}, 0};
  int layer, p;
  int64_t b;
  for (layer = 0; layer < N_LAYERS; layer++) {
    int64_t seen[MAX_ROWS], pad[MAX_ROWS];
    kvp_lengths now = {sizeof(kvp_lengths), 0, 0, 0, 0, NULL, NULL, 0};
    kvp_update_args none = {sizeof(kvp_update_args), layer, 0, NULL, NULL, NULL, NULL, NULL};
    kvp_tensor k, v;
    now.row_seen = seen;
    now.row_pad = pad;
    now.n_rows = (size_t)o->batch;
    CHECK(iface->lengths(c, layer, 0, &now, &last_error) == KVP_OK);
    CHECK(now.seen == oracle_longest(o, layer) && now.kv_len == now.seen && now.struct_size == sizeof(now));
    for (b = 0; b < o->batch; b++) CHECK(seen[b] == o->row[layer][b].seen && pad[b] == o->row[layer][b].pad);
    CHECK(iface->update(c, &plain_call, &none, &k, &v, &last_error) == KVP_OK);
    if (now.kv_len > 0) {
      compare_view(o, layer, 0, now.kv_len, &k);
      compare_view(o, layer, 1, now.kv_len, &v);
    }
  }
  CHECK(iface->memory(c, -1, &all, &last_error) == KVP_OK);
  for (p = 0; p < KVP_N_PURPOSES; p++) {
    kvp_memory one = {sizeof(kvp_memory), {{0}}, {{0}}, {0}, 0};
    uint64_t sum = 0;
    for (layer = 0; layer < N_LAYERS; layer++) {
      CHECK(iface->memory(c, layer, &one, &last_error) == KVP_OK);
      sum += one.reserved[KVP_TIER_HOST][p];
    }
    CHECK(sum == all.reserved[KVP_TIER_HOST][p]);
    CHECK(all.reserved[KVP_TIER_HOST][p] == host.live[p]);
    CHECK(all.used[KVP_TIER_HOST][p] <= all.reserved[KVP_TIER_HOST][p]);
  }
  CHECK(all.peak[KVP_TIER_HOST] == host.peak);
}

void crop_oracle(oracle* o, int64_t n) {
  int64_t b;
  int layer;
  for (b = 0; b < o->batch; b++) {
    int64_t seen = 0;
    for (layer = 0; layer < N_LAYERS; layer++) {
      if (o->row[layer][b].seen > seen) seen = o->row[layer][b].seen;
    }
    seen = seen > n ? seen - n : 0;
    for (layer = 0; layer < N_LAYERS; layer++) {
      oracle_row* row = &o->row[layer][b];
      if (row->seen > seen) row->seen = seen;
      if (row->pad > row->seen) row->pad = row->seen;
    }
  }
}

void gather_oracle(oracle* o, const int64_t* src, int64_t n) {
  oracle* old = (oracle*)malloc(sizeof(*old));
  int64_t b;
  int layer;
  CHECK(old != NULL);
  memcpy(old, o, sizeof(*old));
  memset(o, 0, sizeof(*o));
  o->batch = n;
  for (layer = 0; layer < N_LAYERS; layer++) {
    for (b = 0; b < n; b++) {
      if (src[b] >= 0 && old->batch > 0) o->row[layer][b] = old->row[layer][src[b]];
    }
  }
  free(old);
}
