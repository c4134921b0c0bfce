// SPDX-License-Identifier: Apache-2.0
#include "model/exec/explain.h"

#include <kvplug/sdk/attention.h>

#include <string>

#include "model/exec/kernels.h"
#include "model/exec/linear.h"
#include "model/exec/packed_model.h"
#include "model/exec/parallel.h"

namespace kvplug::model {
namespace {

std::string attention_of(const kvp_layer& layer) {
  if (layer.kind == KVP_LAYER_SLIDING) return "sliding window of " + std::to_string(layer.window);
  if (layer.kind == KVP_LAYER_CHUNKED) return "chunks of " + std::to_string(layer.window);
  return "full";
}

}  // namespace

nlohmann::json explain_model(const Description& d, const LoadOptions& options) {
  const Type type = type_of(options.dtype);
  const int64_t decode = options.deterministic ? kFixedRows : 1, prefill = options.deterministic ? kFixedRows : 128;
  const int64_t q = d.q_heads * d.head_dim, kv = d.kv_heads * d.head_dim;
  nlohmann::json linear = nlohmann::json::array(), layers = nlohmann::json::array();
  const auto add = [&](const std::string& name, size_t count, const LinearShape& shape) {
    for (auto& known : linear) {
      if (known["name"] != name || known["shape"] != nlohmann::json{shape.in, shape.out}) continue;
      known["count"] = known["count"].get<size_t>() + count;
      return;
    }
    const auto kind = make_linear(shape, {.fixed_rows = options.deterministic ? kFixedRows : 0});
    linear.push_back({{"name", name},
                      {"count", count},
                      {"shape", {shape.in, shape.out}},
                      {"backend", kind->backend()},
                      {"layout", kind->layout()},
                      {"implementation", kind->implementation(decode)},
                      {"prefill_implementation", kind->implementation(prefill)}});
  };
  for (const LayerDescription& layer : d.layers) {
    const int64_t width = layer.intermediate_size;
    add("qkv_proj", 1, {d.hidden_size, q + 2 * kv, d.qkv_bias, type});
    add("o_proj", 1, {q, d.hidden_size, d.o_bias, type});
    add("gate_up_proj", 1, {d.hidden_size, 2 * width, d.mlp_bias, type});
    add("down_proj", 1, {width, d.hidden_size, d.mlp_bias, type});
    layers.push_back({{"attention", attention_of(layer.cache)}, {"rope", layer.rope}, {"mlp", width}});
    if (!layer.has_experts()) continue;
    const auto experts = static_cast<size_t>(d.experts);
    add("router", 1, {d.hidden_size, d.experts, false, type});
    add("experts.gate_up_proj", experts, {d.hidden_size, 2 * d.expert_size, false, type});
    add("experts.down_proj", experts, {d.expert_size, d.hidden_size, false, type});
    layers.back()["experts"] = {{"count", d.experts}, {"per_token", d.experts_per_token}, {"mlp", d.expert_size}};
  }
  add("lm_head", 1, {d.hidden_size, d.vocab_size, false, type});
  return {{"linear", linear},
          {"layers", layers},
          {"elementwise", kernel_level()},
          {"embedding", options.mmap ? "looked up in the mapped checkpoint" : "held in memory"},
          {"deterministic", options.deterministic},
          {"dtype", name_of(type)},
          {"threads", use_threads(options.threads)},
          {"attention", sdk::attend_level()}};
}

nlohmann::json explain_device(const LoadOptions& options) {
  return {
      {"device", options.device},   {"dtype", name_of(type_of(options.dtype))}, {"deterministic", false},
      {"threads", options.threads}, {"linear", nlohmann::json::array()},        {"attention", "the cache plugin's"}};
}

}  // namespace kvplug::model
