// SPDX-License-Identifier: Apache-2.0
// A cache that takes quantizers and a quantizer for it, to be spoilt: each plugin beside it includes this and breaks
// one rule. The cache is the plain one; it stores as the plain one does and only looks at what it was given: it refuses
// to be made without the two handles, and counts as `quantizer_instances` the quantizers of its library that are alive.
// The quantizer knows its options and can do nothing else.
#pragma once

#include "plain_cache.h"

namespace plain {

struct Quantizer {
  int32_t role, head_dim;
  int64_t nbits = 0;
  bool strict = false;
};

inline int64_t g_quantizers = 0;  // alive

inline Quantizer* as(kvp_quantizer* self) { return reinterpret_cast<Quantizer*>(self); }

inline int32_t create_quantizer(const kvp_qcreate* create, kvp_quantizer** self, kvp_error* err) {
  if (create->head_dim == 5) return say(err, KVP_UNSUPPORTED, "no heads of 5");
  auto* made = new Quantizer{create->role, create->head_dim};
  for (size_t i = 0; i < create->n_options; ++i) {
    const kvp_option& option = create->options[i];
    if (std::string(option.key) == "nbits") made->nbits = option.integer;
    if (std::string(option.key) == "hf_compat") made->strict = std::string(option.text) == "strict";
  }
  ++g_quantizers;
  *self = reinterpret_cast<kvp_quantizer*>(made);
  return KVP_OK;
}

inline void destroy_quantizer(kvp_quantizer* self) {
  if (self == nullptr) return;
  --g_quantizers;
  delete as(self);
}

// What the options came to: n_levels tells nbits, group_size the head width, flags the mode.
inline int32_t describe(kvp_quantizer* self, kvp_qspec* out, kvp_error*) {
  out->n_levels = 1U << as(self)->nbits;
  out->group_size = as(self)->head_dim;
  out->flags = as(self)->strict ? KVP_Q_STRICT : 0;
  return KVP_OK;
}

inline kvp_quantizer_iface quantizer_table() {
  kvp_quantizer_iface iface{};
  iface.struct_size = sizeof iface;
  iface.spec_count = []() -> uint32_t { return 0; };
  iface.spec_range = [](uint32_t, kvp_qspec*, kvp_qspec*, kvp_error* err) -> int32_t {
    return say(err, KVP_INVALID_ARGUMENT, "there is no range");
  };
  iface.create = create_quantizer;
  iface.destroy = destroy_quantizer;
  iface.describe = describe;
  iface.plan = [](kvp_quantizer*, int64_t, int64_t, int64_t, int64_t, kvp_qplan*, kvp_error* err) -> int32_t {
    return say(err, KVP_UNSUPPORTED, "a quantizer for tests of the host");
  };
  iface.quantize = [](kvp_quantizer*, const kvp_call*, const kvp_tensor*, uint32_t, const kvp_qpart*, uint32_t, void*,
                      kvp_error* err) -> int32_t {
    return say(err, KVP_UNSUPPORTED, "a quantizer for tests of the host");
  };
  iface.dequantize = [](kvp_quantizer*, const kvp_call*, const kvp_qpart*, uint32_t, kvp_tensor*,
                        kvp_error* err) -> int32_t { return say(err, KVP_UNSUPPORTED, "a quantizer for tests"); };
  iface.error_bound = [](kvp_quantizer*, double* out, kvp_error*) -> int32_t {
    *out = 0.5;
    return KVP_OK;
  };
  return iface;
}

// What the newest instance saw, for its counters.
struct Seen {
  kvp_qspec key{}, value{};
  int64_t residual = -1;
};
inline Seen g_seen;

inline int32_t see(const kvp_cache_create* create, kvp_error* err) {
  if (create->quantizer_key == nullptr || create->quantizer_value == nullptr) {
    return say(err, KVP_UNSUPPORTED, "no quantizers");
  }
  const kvp_qhandle &key = *create->quantizer_key, &value = *create->quantizer_value;
  if (std::string(key.id) != value.id) return say(err, KVP_UNSUPPORTED, "two back ends");
  g_seen.key.struct_size = g_seen.value.struct_size = sizeof(kvp_qspec);
  key.iface->describe(key.self, &g_seen.key, nullptr);
  value.iface->describe(value.self, &g_seen.value, nullptr);
  for (size_t i = 0; i < create->n_layers; ++i) {
    const kvp_layer* layer = KVP_AT(kvp_layer, create->layers, create->layer_stride, i);
    if (layer->key_dim != g_seen.key.group_size || layer->value_dim != g_seen.value.group_size) {
      return say(err, KVP_UNSUPPORTED, "a layer of another width than its quantizers");
    }
  }
  for (size_t i = 0; i < create->n_options; ++i) {
    if (std::string(create->options[i].key) == "residual_length") g_seen.residual = create->options[i].integer;
  }
  return KVP_OK;
}

inline kvp_cache_iface quantized_table() {
  kvp_cache_iface iface = table();
  iface.probe = [](const kvp_cache_create* args, kvp_cache_info* out, kvp_error* err) -> int32_t {
    const kvp_status status = see(args, err);
    return status == KVP_OK ? probe(args, out, err) : status;
  };
  iface.create = [](const kvp_cache_create* args, kvp_cache** self, kvp_error* err) -> int32_t {
    const kvp_status status = see(args, err);
    return status == KVP_OK ? create(args, self, err) : status;
  };
  iface.counters = [](kvp_cache*, kvp_counter* out, size_t* n) -> int32_t {
    const kvp_counter all[] = {{"instances_made", g_made},
                               {"quantizer_instances", static_cast<uint64_t>(g_quantizers)},
                               {"key_levels", g_seen.key.n_levels},
                               {"value_levels", g_seen.value.n_levels},
                               {"strict", g_seen.key.flags + g_seen.value.flags},
                               {"residual", static_cast<uint64_t>(g_seen.residual)}};
    const size_t count = sizeof all / sizeof all[0];
    if (out != nullptr) std::copy_n(all, std::min(*n, count), out);
    *n = count;
    return KVP_OK;
  };
  return iface;
}

inline constexpr char kQuantizedSchema[] = R"({"type": "object", "properties": {
  "backend": {"type": "string", "default": "test/q"},
  "residual_length": {"type": "integer", "default": 128, "minimum": 0},
  "hf_compat": {"type": "string", "default": "fixed", "enum": ["fixed", "strict"]}}})";
inline constexpr char kQuantizerSchema[] = R"({"type": "object", "properties": {
  "nbits": {"type": "integer", "default": 4, "minimum": 1, "maximum": 8},
  "hf_compat": {"type": "string", "default": "fixed", "enum": ["fixed", "strict"]}}})";
inline constexpr char kGrouplessSchema[] = R"({"type": "object", "properties": {
  "fp8_format": {"type": "string", "default": "e4m3", "enum": ["e4m3", "e5m2"]}}})";

}  // namespace plain

// The entry of a plugin `test.<name>` that provides the cache `test/<name>`, the quantizer `test/q` over `q_iface` and
// the quantizer `test/q8`, which has no groups.
#define PLAIN_QUANTIZER_ENTRY(name, q_iface)                                                                          \
  static const kvp_cache_iface g_cache_iface = plain::quantized_table();                                              \
  static const kvp_descriptor g_descriptors[] = {{sizeof(kvp_descriptor), "test/" name, KVP_IFACE_CACHE,              \
                                                  &g_cache_iface, "a test cache", plain::kQuantizedSchema},           \
                                                 {sizeof(kvp_descriptor), "test/q", KVP_IFACE_QUANTIZER, &(q_iface),  \
                                                  "a test quantizer", plain::kQuantizerSchema},                       \
                                                 {sizeof(kvp_descriptor), "test/q8", KVP_IFACE_QUANTIZER, &(q_iface), \
                                                  "a test quantizer", plain::kGrouplessSchema}};                      \
  static const kvp_plugin g_plugin = {sizeof(kvp_plugin),                                                             \
                                      KVP_ABI_MAJOR,                                                                  \
                                      KVP_ABI_MINOR,                                                                  \
                                      0,                                                                              \
                                      0,                                                                              \
                                      "test." name,                                                                   \
                                      "1.0",                                                                          \
                                      "tests",                                                                        \
                                      3,                                                                              \
                                      0,                                                                              \
                                      [](uint32_t i) { return i < 3 ? &g_descriptors[i] : nullptr; },                 \
                                      nullptr};                                                                       \
  extern "C" int32_t kvp_plugin_entry_v0(const kvp_host* host, const kvp_plugin** out, kvp_error*) {                  \
    plain::g_host = host;                                                                                             \
    *out = &g_plugin;                                                                                                 \
    return KVP_OK;                                                                                                    \
  }
