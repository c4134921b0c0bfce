/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole program of the cache level: the engine owns the model, the library keeps its keys and values. A full layer
 * and one with a sliding window get six tokens, the prefix is cloned, three tokens are taken back, and the next step is
 * asked for. set_rollback comes first: a window has let go of its past otherwise. Nothing but <kvplug/kvplug.h> is
 * used, and no LibTorch is loaded.
 *
 *   embed_cache [PLUGIN_FOLDER]
 */
#include <kvplug/kvplug.h>
#include <stdio.h>

enum { BATCH = 1, Q_HEADS = 4, KV_HEADS = 2, TOKENS = 6, DIM = 8 };

/* A row-major float32 tensor [b, h, s, d] over memory of the caller. */
static kvp_tensor f32_4d(float* data, int64_t b, int64_t h, int64_t s, int64_t d) {
  kvp_tensor t = {0};
  t.data = data;
  t.device_type = KVP_DEVICE_CPU;
  t.ndim = 4;
  t.dtype_code = KVP_DTYPE_FLOAT;
  t.dtype_bits = 32;
  t.dtype_lanes = 1;
  t.shape[0] = b;
  t.shape[1] = h;
  t.shape[2] = s;
  t.shape[3] = d;
  t.strides[0] = h * s * d;
  t.strides[1] = s * d;
  t.strides[2] = d;
  t.strides[3] = 1;
  return t;
}

/* What the next update of one token will present. */
static kvplug_status print_lengths(kvplug_cache* cache, const char* name, kvp_error* err) {
  kvplug_status st = KVP_OK;
  for (int32_t layer = 0; st == KVP_OK && layer < 2; ++layer) {
    kvp_lengths len = {.struct_size = sizeof len};
    st = kvplug_cache_lengths(cache, layer, 1, &len, err);
    if (st == KVP_OK) {
      printf("%s, layer %d: seen %lld, next step sees %lld keys from position %lld\n", name, (int)layer,
             (long long)len.seen, (long long)len.kv_len, (long long)len.kv_offset);
    }
  }
  return st;
}

int main(int argc, char** argv) {
  char text[1024] = "";
  kvp_error err = {.struct_size = sizeof err, .buf = text, .cap = sizeof text};
  kvplug_host* host = NULL;
  kvplug_config* choice = NULL;
  kvplug_cache *cache = NULL, *prefix = NULL;

  const kvp_layer full = {.struct_size = sizeof full,
                          .kind = KVP_LAYER_FULL,
                          .q_heads = Q_HEADS,
                          .kv_heads = KV_HEADS,
                          .key_dim = DIM,
                          .value_dim = DIM};
  kvp_layer layers[2] = {full, full};
  layers[1].kind = KVP_LAYER_SLIDING;
  layers[1].window = 2;
  const kvplug_cache_params params = {.struct_size = sizeof params,
                                      .batch = BATCH,
                                      .tokens = -1,
                                      .device_type = KVP_DEVICE_CPU,
                                      .dtype_code = KVP_DTYPE_FLOAT,
                                      .dtype_bits = 32};
  const kvp_call call = {.struct_size = sizeof call, .device_type = KVP_DEVICE_CPU};

  kvplug_status st = kvplug_host_create(NULL, &host, &err);
  if (st == KVP_OK && argc > 1) st = kvplug_host_add_plugin_path(host, argv[1], KVPLUG_NTS, &err);
  if (st == KVP_OK) st = kvplug_config_create(host, &choice, &err);
  if (st == KVP_OK) st = kvplug_config_set(choice, "generation.cache_implementation", "dynamic", &err);
  if (st == KVP_OK) st = kvplug_cache_create(host, layers, 2, sizeof layers[0], choice, &params, &cache, &err);
  if (st == KVP_OK) st = kvplug_cache_set_rollback(cache, 3, &err);

  float k[BATCH * KV_HEADS * TOKENS * DIM] = {0}, v[BATCH * KV_HEADS * TOKENS * DIM] = {0};
  const kvp_tensor tk = f32_4d(k, BATCH, KV_HEADS, TOKENS, DIM), tv = f32_4d(v, BATCH, KV_HEADS, TOKENS, DIM);
  for (int32_t layer = 0; st == KVP_OK && layer < 2; ++layer) {
    const kvp_update_args add = {.struct_size = sizeof add, .layer = layer, .k = &tk, .v = &tv};
    kvp_tensor all_k, all_v; /* borrowed: [1, 2, 6, 8] each */
    st = kvplug_cache_update(cache, &call, &add, &all_k, &all_v, &err);
    if (st == KVP_OK) printf("layer %d holds %lld tokens\n", (int)layer, (long long)all_k.shape[2]);
  }

  const int64_t n_remove = 3;
  if (st == KVP_OK) st = kvplug_cache_clone(cache, &call, &prefix, &err);
  if (st == KVP_OK) st = kvplug_cache_crop(cache, &call, &n_remove, 1, &err);
  if (st == KVP_OK) st = print_lengths(cache, "cropped", &err);
  if (st == KVP_OK) st = print_lengths(prefix, "kept", &err);

  if (st != KVP_OK) fprintf(stderr, "%s: %s\n", kvplug_status_word(st), text);
  kvplug_cache_release(prefix);
  kvplug_cache_release(cache);
  kvplug_config_release(choice);
  kvplug_host_release(host);
  return st == KVP_OK ? 0 : 1;
}
