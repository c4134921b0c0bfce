// SPDX-License-Identifier: Apache-2.0
// A complete, slow, exact float32 cache to be spoilt: each plugin beside it includes this and breaks one rule.
// Rows are plain vectors, views are rebuilt at each update; one block a layer comes from the host's allocator so that
// accounting is seen. Built as it stands it is a good plugin without kvp.attend/1.
//
// Options: fail_layer / fail_status (update and attend of that layer fail with that status), refuse (a layer kind that
// probe refuses), refuse_together (probe refuses more than one layer).
#pragma once

#include <kvplug/abi.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace plain {

inline const kvp_host* g_host = nullptr;
inline uint64_t g_made = 0;  // instances of this library; every library must have a count of its own

inline kvp_status say(kvp_error* err, kvp_status status, const char* text) {
  if (err != nullptr) {
    err->code = status;
    if (err->buf != nullptr && err->cap > 0) std::snprintf(err->buf, err->cap, "%s", text);
    err->len = std::strlen(text);
  }
  return status;
}

struct Options {
  int64_t fail_layer = -1, fail_status = KVP_OUT_OF_MEMORY;
  std::string refuse;
  bool refuse_together = false;

  explicit Options(const kvp_cache_create* create) {
    for (size_t i = 0; i < create->n_options; ++i) {
      const kvp_option& option = create->options[i];
      const std::string key = option.key;
      if (key == "fail_layer") fail_layer = option.integer;
      if (key == "fail_status") fail_status = option.integer;
      if (key == "refuse") refuse = option.text;
      if (key == "refuse_together") refuse_together = option.integer != 0;
    }
  }
};

struct Row {
  std::vector<float> k, v;  // [tokens][kv_heads][dim]
  int64_t seen = 0, pad = 0;
};

struct Layer {
  kvp_layer spec;
  std::vector<Row> rows;
  std::vector<float> view_k, view_v;
};

struct Cache {
  Options options;
  kvp_mem mem{};
  void* block = nullptr;
  std::vector<Layer> layers;
  bool poisoned = false;
};

inline Cache* as(kvp_cache* self) { return reinterpret_cast<Cache*>(self); }

inline kvp_status take_block(Cache& cache, uint64_t owner, kvp_error* err) {
  cache.mem = {sizeof(kvp_mem), owner, cache.layers.size() * 1024, 0, KVP_TIER_HOST, KVP_PURPOSE_KV, KVP_DEVICE_CPU, 0,
               nullptr};
  return g_host->mem_alloc(g_host->ctx, &cache.mem, &cache.block, err);
}

inline int32_t probe(const kvp_cache_create* create, kvp_cache_info* out, kvp_error* err) {
  const Options options(create);
  if (options.refuse_together && create->n_layers > 1) return say(err, KVP_UNSUPPORTED, "one layer at a time");
  for (size_t i = 0; i < create->n_layers; ++i) {
    const kvp_layer* layer = KVP_AT(kvp_layer, create->layers, create->layer_stride, i);
    const bool state = layer->kind == KVP_LAYER_STATE;
    const bool sliding = layer->kind == KVP_LAYER_SLIDING && options.refuse == "sliding";
    if (state) return say(err, KVP_UNSUPPORTED, "keeps keys and values only");
    if (sliding) return say(err, KVP_UNSUPPORTED, "no windows here");
  }
  out->flags = KVP_CACHE_ROW_CROP;
  out->max_rollback = -1;
  out->token_block = 1;
  return KVP_OK;
}

inline int32_t plan(const kvp_cache_create* create, int64_t, int64_t, kvp_memory* out, kvp_error*) {
  out->reserved[KVP_TIER_HOST][KVP_PURPOSE_KV] = create->n_layers * 1024;
  out->peak[KVP_TIER_HOST] = create->n_layers * 1024;
  return KVP_OK;
}

inline int32_t create(const kvp_cache_create* create, kvp_cache** self, kvp_error* err) {
  auto* cache = new Cache{Options(create), {}, nullptr, {}, false};
  for (size_t i = 0; i < create->n_layers; ++i) {
    cache->layers.push_back({*KVP_AT(kvp_layer, create->layers, create->layer_stride, i), {}, {}, {}});
  }
  if (const kvp_status status = take_block(*cache, create->owner, err); status != KVP_OK) {
    delete cache;
    return status;
  }
  ++g_made;
  *self = reinterpret_cast<kvp_cache*>(cache);
  return KVP_OK;
}

inline void destroy(kvp_cache* self) {
  if (self == nullptr) return;
  g_host->mem_free(g_host->ctx, &as(self)->mem, as(self)->block);
  delete as(self);
}

inline int64_t longest(const Layer& layer) {
  int64_t seen = 0;
  for (const Row& row : layer.rows) seen = std::max(seen, row.seen);
  return seen;
}

inline int32_t lengths(kvp_cache* self, int32_t index, int64_t query_len, kvp_lengths* out, kvp_error*) {
  const Layer& layer = as(self)->layers[static_cast<size_t>(index)];
  out->seen = longest(layer);
  out->max = -1;
  out->kv_len = out->seen + query_len;
  out->kv_offset = 0;
  for (size_t b = 0; b < out->n_rows; ++b) {
    if (out->row_seen != nullptr) out->row_seen[b] = b < layer.rows.size() ? layer.rows[b].seen : 0;
    if (out->row_pad != nullptr) out->row_pad[b] = b < layer.rows.size() ? layer.rows[b].pad : 0;
  }
  return KVP_OK;
}

inline void append(std::vector<float>& to, const kvp_tensor& from, int64_t b, int64_t token) {
  const auto* data = static_cast<const float*>(from.data);
  for (int64_t h = 0; h < from.shape[1]; ++h) {
    for (int64_t d = 0; d < from.shape[3]; ++d) {
      to.push_back(data[b * from.strides[0] + h * from.strides[1] + token * from.strides[2] + d * from.strides[3]]);
    }
  }
}

inline kvp_tensor view(const Layer& layer, std::vector<float>& buffer, int64_t dim, bool keys) {
  const int64_t tokens = longest(layer), heads = layer.spec.kv_heads, batch = static_cast<int64_t>(layer.rows.size());
  buffer.assign(static_cast<size_t>(batch * heads * tokens * dim), 0.0F);
  for (int64_t b = 0; b < batch; ++b) {
    const Row& row = layer.rows[static_cast<size_t>(b)];
    const std::vector<float>& from = keys ? row.k : row.v;
    for (int64_t t = 0; t < row.seen; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t d = 0; d < dim; ++d) {
          buffer[static_cast<size_t>(((b * heads + h) * tokens + t) * dim + d)] =
              from[static_cast<size_t>((t * heads + h) * dim + d)];
        }
      }
    }
  }
  return {buffer.data(),
          KVP_DEVICE_CPU,
          0,
          4,
          KVP_DTYPE_FLOAT,
          32,
          1,
          KVP_TENSOR_READ_ONLY,
          0,
          {batch, heads, tokens, dim},
          {heads * tokens * dim, tokens * dim, dim, 1}};
}

inline int32_t update(kvp_cache* self, const kvp_call*, const kvp_update_args* args, kvp_tensor* out_k,
                      kvp_tensor* out_v, kvp_error* err) {
  Cache& cache = *as(self);
  if (cache.poisoned) return say(err, KVP_POISONED, "poisoned");
  Layer& layer = cache.layers[static_cast<size_t>(args->layer)];
  if (args->k != nullptr) {
    if (args->layer == cache.options.fail_layer && args->k->shape[2] != 0) {
      cache.options.fail_layer = -1;  // Once.
      cache.poisoned = KVP_IS_POISONING(cache.options.fail_status);
      return say(err, static_cast<kvp_status>(cache.options.fail_status), "failed as the options ask");
    }
    layer.rows.resize(static_cast<size_t>(args->k->shape[0]));
    for (size_t b = 0; b < layer.rows.size(); ++b) {
      Row& row = layer.rows[b];
      const int64_t count = args->count != nullptr ? args->count[b] : args->k->shape[2];
      if (args->pad != nullptr) row.pad += args->pad[b];
      for (int64_t t = 0; t < count; ++t) {
        append(row.k, *args->k, static_cast<int64_t>(b), t);
        append(row.v, *args->v, static_cast<int64_t>(b), t);
      }
      row.seen += count;
    }
  }
  if (out_k != nullptr) *out_k = view(layer, layer.view_k, layer.spec.key_dim, true);
  if (out_v != nullptr) *out_v = view(layer, layer.view_v, layer.spec.value_dim, false);
  return KVP_OK;
}

inline int32_t reset(kvp_cache* self, const kvp_call*, kvp_error*) {
  for (Layer& layer : as(self)->layers) layer.rows.clear();
  as(self)->poisoned = false;
  return KVP_OK;
}

inline int32_t gather(kvp_cache* self, const kvp_call* call, const int64_t* src, int64_t n, kvp_error*) {
  if ((call->flags & KVP_CALL_CHECK) != 0) return KVP_OK;
  for (Layer& layer : as(self)->layers) {
    std::vector<Row> rows;
    for (int64_t i = 0; i < n; ++i) rows.push_back(src[i] < 0 ? Row{} : layer.rows[static_cast<size_t>(src[i])]);
    layer.rows = std::move(rows);
  }
  return KVP_OK;
}

inline int32_t crop(kvp_cache* self, const kvp_call* call, const int64_t* n_remove, int64_t n, kvp_error*) {
  if ((call->flags & KVP_CALL_CHECK) != 0) return KVP_OK;
  for (Layer& layer : as(self)->layers) {
    for (size_t b = 0; b < layer.rows.size(); ++b) {
      Row& row = layer.rows[b];
      row.seen = std::max<int64_t>(0, row.seen - n_remove[n == 1 ? 0 : b]);
      row.pad = std::min(row.pad, row.seen);
      row.k.resize(static_cast<size_t>(row.seen * layer.spec.kv_heads * layer.spec.key_dim));
      row.v.resize(static_cast<size_t>(row.seen * layer.spec.kv_heads * layer.spec.value_dim));
    }
  }
  return KVP_OK;
}

inline int32_t clone(kvp_cache* self, const kvp_call*, uint64_t owner, kvp_cache** out, kvp_error* err) {
  auto* copy = new Cache(*as(self));
  if (const kvp_status status = take_block(*copy, owner, err); status != KVP_OK) {
    delete copy;
    return status;
  }
  *out = reinterpret_cast<kvp_cache*>(copy);
  return KVP_OK;
}

inline int32_t memory(kvp_cache* self, int32_t index, kvp_memory* out, kvp_error*) {
  const uint64_t layers = index < 0 ? as(self)->layers.size() : 1;
  out->reserved[KVP_TIER_HOST][KVP_PURPOSE_KV] = layers * 1024;
  out->peak[KVP_TIER_HOST] = layers * 1024;
  return KVP_OK;
}

inline int32_t counters(kvp_cache*, kvp_counter* out, size_t* n) {
  if (out != nullptr && *n > 0) out[0] = {"instances_made", g_made};
  *n = 1;
  return KVP_OK;
}

inline const void* no_extension(const char*) { return nullptr; }

inline kvp_cache_iface table() {
  return {sizeof(kvp_cache_iface),
          probe,
          plan,
          create,
          destroy,
          lengths,
          update,
          reset,
          gather,
          crop,
          nullptr,
          clone,
          nullptr,
          memory,
          counters,
          no_extension};
}

inline constexpr char kSchema[] =
    R"({"type": "object", "properties": {
  "fail_layer": {"type": "integer", "default": -1, "minimum": -1, "description": "layer whose next update fails"},
  "fail_status": {"type": "integer", "default": 20},
  "refuse": {"type": "string", "default": "", "enum": ["", "sliding"]},
  "refuse_together": {"type": "boolean", "default": false}}})";

}  // namespace plain

// The entry of a plugin `test.<name>` that provides `test/<name>`; `iface` is a kvp_cache_iface with static storage.
#define PLAIN_ENTRY(name, iface)                                                                                \
  static const kvp_descriptor g_descriptor = {sizeof(kvp_descriptor), "test/" name,  KVP_IFACE_CACHE, &(iface), \
                                              "a test plugin",        plain::kSchema};                          \
  static const kvp_plugin g_plugin = {sizeof(kvp_plugin),                                                       \
                                      KVP_ABI_MAJOR,                                                            \
                                      KVP_ABI_MINOR,                                                            \
                                      0,                                                                        \
                                      0,                                                                        \
                                      "test." name,                                                             \
                                      "1.0",                                                                    \
                                      "tests",                                                                  \
                                      1,                                                                        \
                                      0,                                                                        \
                                      [](uint32_t i) { return i == 0 ? &g_descriptor : nullptr; },              \
                                      nullptr};                                                                 \
  extern "C" int32_t kvp_plugin_entry_v0(const kvp_host* host, const kvp_plugin** out, kvp_error*) {            \
    plain::g_host = host;                                                                                       \
    *out = &g_plugin;                                                                                           \
    return KVP_OK;                                                                                              \
  }
