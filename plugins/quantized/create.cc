// SPDX-License-Identifier: Apache-2.0
#include "create.h"

#include <kvplug/sdk/options.h>
#include <kvplug/sdk/paged_layer.h>
#include <kvplug/sdk/structs.h>
#include <kvplug/sdk/tensor.h>

#include "engine.h"

namespace kvplug::quantized {
namespace {

using sdk::fail;

constexpr int64_t kMost = sdk::PagedLayer::kMostTokens;

bool is_fp8(const kvp_qhandle& quantizer) {
  const int32_t format = spec_of(quantizer).format;
  return format == KVP_FORMAT_FP8_E4M3 || format == KVP_FORMAT_FP8_E5M2;
}

}  // namespace

const char* id_of(const kvp_qhandle& quantizer) { return quantizer.id == nullptr ? "(without a name)" : quantizer.id; }

kvp_qspec spec_of(const kvp_qhandle& quantizer) {
  kvp_qspec spec{};
  spec.struct_size = sizeof spec;
  Answer answer;
  const kvp_status status = quantizer.iface->describe(quantizer.self, &spec, &answer.err);
  if (status != KVP_OK) fail(status, "a quantizer refused to describe itself: ", answer.text);
  return spec;
}

Options read_options(const kvp_cache_create& create) {
  if (const std::string why = Engine::refusal(create.device_type); !why.empty()) fail(KVP_UNSUPPORTED, why);
  if (!sdk::is_plain_float(create.dtype)) {
    fail(KVP_UNSUPPORTED, "quantized takes float32, float16 or bfloat16; ", sdk::name_of(create.dtype),
         " was asked for");
  }
  const sdk::Options given(
      create.options, create.n_options,
      {"backend", "residual_length", "sink_tokens", "quantized_kv_start", "rotation", "hf_compat", "fused_attention"});
  given.text("backend", "");  // which quantizers these are is the host's affair
  const auto among = [&](const char* key, std::initializer_list<std::string_view> words) {
    const std::string_view text = given.text(key, *words.begin());
    int64_t i = 0;
    for (const std::string_view word : words) {
      if (text == word) return i;
      ++i;
    }
    std::string all;
    for (const std::string_view word : words) all += (all.empty() ? "\"" : ", \"") + std::string(word) + "\"";
    fail(KVP_INVALID_ARGUMENT, "option '", key, "' is \"", text, "\"; expected one of ", all);
  };
  Options options;
  options.sinks = given.integer("sink_tokens", 0, 0, kMost);
  options.start = given.integer("quantized_kv_start", 0, 0, kMost);
  options.hadamard = among("rotation", {"none", "hadamard"}) == 1;
  options.fused = static_cast<Fused>(among("fused_attention", {"auto", "required", "off"}));
  options.strict = among("hf_compat", {"fixed", "strict"}) == 1;
  if (options.strict && create.device_type != KVP_DEVICE_CPU) {
    fail(KVP_UNSUPPORTED, "hf_compat = \"strict\" computes on the CPU; device type ", create.device_type,
         " was asked for");
  }
  const kvp_qhandle* handles[2] = {create.quantizer_key, create.quantizer_value};
  for (const kvp_qhandle* handle : handles) {
    if (handle == nullptr || !KVP_HAS_FIELD(handle, self) || handle->iface == nullptr) {
      fail(KVP_INVALID_ARGUMENT, "quantized needs a quantizer for ", handle == handles[0] ? "keys" : "values",
           " from the host; none was given (backend)");
    }
  }
  const bool fp8 = is_fp8(*handles[0]) && is_fp8(*handles[1]);
  options.residual = given.integer("residual_length", fp8 ? 0 : 128, 0, kMost);
  if (create.n_layers == 0) fail(KVP_INVALID_ARGUMENT, "a cache without layers was asked for");
  return options;
}

kvp_layer read_layer(const kvp_cache_create& create, size_t i) {
  const kvp_layer layer = sdk::read_at(create.layers, create.layer_stride, i);
  const auto refuse = [&](kvp_status status, const auto&... why) { refuse_layer(status, i, layer, why...); };
  const bool windowed = layer.kind == KVP_LAYER_SLIDING || layer.kind == KVP_LAYER_CHUNKED;
  if (layer.kind == KVP_LAYER_CROSS) refuse(KVP_UNSUPPORTED, "cross attention is left to a cache of its own choice");
  if (layer.kind != KVP_LAYER_FULL && !windowed) {
    refuse(KVP_UNSUPPORTED, "quantized does not serve ", layer.kind == KVP_LAYER_STATE ? "state" : "such", " layers");
  }
  if ((layer.flags & KVP_LAYER_SHARED) != 0) refuse(KVP_UNSUPPORTED, "it shares another layer's storage");
  if (layer.index_dim != 0) refuse(KVP_UNSUPPORTED, "quantized does not keep indexer keys");
  if (windowed && (layer.window < 1 || layer.window > kMost)) {
    refuse(KVP_INVALID_ARGUMENT, "a window of ", layer.window, " tokens; expected 1 or more");
  }
  if (layer.kv_heads < 1 || layer.key_dim < 1 || layer.value_dim < 1 || layer.q_heads < 1 ||
      layer.q_heads % layer.kv_heads != 0) {
    refuse(KVP_INVALID_ARGUMENT, layer.q_heads, " query heads, ", layer.kv_heads, " K/V heads of dims ", layer.key_dim,
           " and ", layer.value_dim, "; expected positive numbers and query heads a multiple of K/V heads");
  }
  return layer;
}

}  // namespace kvplug::quantized
