/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a wish can be served, what it costs, making and ending instances, and what they use. */
#include <kvplug/sdk/plugin_c.h>
#include <kvplug/status.h>
#include <kvplug/version.h>
#include <stdlib.h>
#include <string.h>

#include "storage.h"

static int32_t check_create(const kvp_cache_create* create, kvp_error* err) {
  static const char* const known[] = {"grow_tokens", NULL};
  const kvp_option* unknown = kvp_unknown_option(create->options, create->n_options, known);
  const kvp_dtype d = create->dtype;
  size_t i;
  if (unknown != NULL) return kvp_fail(err, KVP_INVALID_ARGUMENT, "exact_c has no option `%s`", unknown->key);
  if (create->device_type != KVP_DEVICE_CPU) {
    return kvp_fail(err, KVP_UNSUPPORTED, "exact_c keeps K/V in host memory; device type %d is not the CPU",
                    (int)create->device_type);
  }
  if (!(d.lanes == 1 && ((d.code == KVP_DTYPE_FLOAT && (d.bits == 32 || d.bits == 16)) ||
                         (d.code == KVP_DTYPE_BFLOAT && d.bits == 16)))) {
    return kvp_fail(err, KVP_UNSUPPORTED, "exact_c stores float32, float16 and bfloat16; not type code %d of %d bits",
                    d.code, d.bits);
  }
  if (create->quantizer_key != NULL || create->quantizer_value != NULL) {
    return kvp_fail(err, KVP_UNSUPPORTED, "exact_c does not quantize; it takes no `backend`");
  }
  for (i = 0; i < create->n_layers; i++) {
    const kvp_layer* l = KVP_AT(kvp_layer, create->layers, create->layer_stride, i);
    if (l->kind != KVP_LAYER_FULL || (l->flags & KVP_LAYER_SHARED) != 0 || l->index_dim != 0) {
      return kvp_fail(err, KVP_UNSUPPORTED, "exact_c serves plain full attention; layer %d is something else (kind %d)",
                      (int)l->model_layer, (int)l->kind);
    }
    if (l->kv_heads < 1 || l->key_dim < 1 || l->value_dim < 1) {
      return kvp_fail(err, KVP_INVALID_ARGUMENT, "layer %d has %d heads of %d and %d", (int)l->model_layer,
                      (int)l->kv_heads, (int)l->key_dim, (int)l->value_dim);
    }
  }
  return KVP_OK;
}

static int64_t grow_option(const kvp_cache_create* create) {
  const kvp_option* o = kvp_find_option(create->options, create->n_options, "grow_tokens");
  return o != NULL && o->integer > 0 ? o->integer : 64;
}

static void set_layer(layer* l, const kvp_cache_create* create, size_t i) {
  const kvp_layer* given = KVP_AT(kvp_layer, create->layers, create->layer_stride, i);
  l->heads = given->kv_heads;
  l->dim[0] = given->key_dim;
  l->dim[1] = given->value_dim;
}

int32_t exact_probe(const kvp_cache_create* given, kvp_cache_info* out, kvp_error* err) {
  kvp_cache_create create;
  kvp_cache_info info;
  int32_t status;
  kvp_read_struct(&create, sizeof(create), given);
  status = check_create(&create, err);
  if (status != KVP_OK) return status;
  memset(&info, 0, sizeof(info));
  info.flags = KVP_CACHE_PER_LAYER_VIEWS;
  info.max_rollback = -1;
  info.token_block = 1;
  kvp_write_struct(out, &info, sizeof(info));
  return KVP_OK;
}

int32_t exact_plan(const kvp_cache_create* given, int64_t batch, int64_t tokens, kvp_memory* out, kvp_error* err) {
  kvp_cache_create create;
  kvp_memory m;
  int32_t status;
  size_t i;
  kvp_read_struct(&create, sizeof(create), given);
  status = check_create(&create, err);
  if (status != KVP_OK) return status;
  if (batch < 0 || tokens < 0 || tokens > INT64_MAX / 4) {
    return kvp_fail(err, KVP_INVALID_ARGUMENT, "plan for %lld rows of %lld tokens", (long long)batch,
                    (long long)tokens);
  }
  memset(&m, 0, sizeof(m));
  for (i = 0; i < create.n_layers; i++) {
    layer l;
    uint64_t bytes;
    set_layer(&l, &create, i);
    bytes = layer_bytes(&l, create.dtype.bits / 8u, batch, capacity_for(grow_option(&create), tokens));
    if (bytes > (UINT64_MAX >> 2) - m.reserved[KVP_TIER_HOST][KVP_PURPOSE_KV]) {
      return kvp_fail(err, KVP_INVALID_ARGUMENT, "%lld rows of %lld tokens are beyond all memory", (long long)batch,
                      (long long)tokens);
    }
    m.reserved[KVP_TIER_HOST][KVP_PURPOSE_KV] += bytes;
    m.used[KVP_TIER_HOST][KVP_PURPOSE_KV] += layer_bytes(&l, create.dtype.bits / 8u, batch, tokens);
  }
  if (tokens > 0) {
    m.reserved[KVP_TIER_HOST][KVP_PURPOSE_OTHER] = (uint64_t)batch * create.n_layers * sizeof(row);
    m.used[KVP_TIER_HOST][KVP_PURPOSE_OTHER] = m.reserved[KVP_TIER_HOST][KVP_PURPOSE_OTHER];
  }
  /* gather fills new blocks before it gives the old ones back */
  m.peak[KVP_TIER_HOST] =
      2 * (m.reserved[KVP_TIER_HOST][KVP_PURPOSE_KV] + m.reserved[KVP_TIER_HOST][KVP_PURPOSE_OTHER]);
  m.unquantized = m.used[KVP_TIER_HOST][KVP_PURPOSE_KV];
  kvp_write_struct(out, &m, sizeof(m));
  return KVP_OK;
}

int32_t exact_create(const kvp_cache_create* given, kvp_cache** self, kvp_error* err) {
  kvp_cache_create create;
  kvp_cache* c;
  int32_t status;
  size_t i;
  kvp_read_struct(&create, sizeof(create), given);
  status = check_create(&create, err);
  if (status != KVP_OK) return status;
  c = (kvp_cache*)calloc(1, sizeof(*c) + create.n_layers * sizeof(layer));
  if (c == NULL) return kvp_fail(err, KVP_OUT_OF_MEMORY, "no memory for a cache of %d layers", (int)create.n_layers);
  c->owner = create.owner;
  c->grow = grow_option(&create);
  c->dtype = create.dtype;
  c->n_layers = create.n_layers;
  for (i = 0; i < c->n_layers; i++) set_layer(&c->layers[i], &create, i);
  *self = c;
  return KVP_OK;
}

void exact_destroy(kvp_cache* self) {
  size_t i;
  if (self == NULL) return;
  for (i = 0; i < self->n_layers; i++) give(self, &self->layers[i].kv);
  give(self, &self->rows);
  free(self);
}

int32_t exact_memory(kvp_cache* self, int32_t layer_index, kvp_memory* out, kvp_error* err) {
  kvp_memory m;
  size_t i;
  int64_t b;
  if (layer_index < -1 || layer_index >= (int32_t)self->n_layers) {
    return kvp_fail(err, KVP_INVALID_ARGUMENT, "memory of layer %d of %d", (int)layer_index, (int)self->n_layers);
  }
  memset(&m, 0, sizeof(m));
  for (i = 0; i < self->n_layers; i++) {
    const uint64_t token = layer_bytes(&self->layers[i], element(self), 1, 1);
    if (layer_index >= 0 && i != (size_t)layer_index) continue;
    m.reserved[KVP_TIER_HOST][KVP_PURPOSE_KV] += self->layers[i].kv.mem.bytes;
    for (b = 0; b < self->batch; b++) {
      m.used[KVP_TIER_HOST][KVP_PURPOSE_KV] += token * (uint64_t)rows_of(self, (int32_t)i)[b].seen;
    }
    m.reserved[KVP_TIER_HOST][KVP_PURPOSE_OTHER] += (uint64_t)self->batch * sizeof(row);
  }
  m.used[KVP_TIER_HOST][KVP_PURPOSE_OTHER] = m.reserved[KVP_TIER_HOST][KVP_PURPOSE_OTHER];
  m.peak[KVP_TIER_HOST] =
      layer_index < 0 ? self->peak
                      : m.reserved[KVP_TIER_HOST][KVP_PURPOSE_KV] + m.reserved[KVP_TIER_HOST][KVP_PURPOSE_OTHER];
  m.unquantized = m.used[KVP_TIER_HOST][KVP_PURPOSE_KV];
  kvp_write_struct(out, &m, sizeof(m));
  return KVP_OK;
}

const void* exact_get_extension(const char* id) {
  (void)id;
  return NULL;
}
