// SPDX-License-Identifier: Apache-2.0
// Llama 4's text model: layers with rotary positions and without, dense layers and layers with experts.
#include <algorithm>

#include "model/describe/families/family.h"

namespace kvplug::model {
namespace {

// A list of whole numbers; empty where the key is absent or null.
std::vector<int64_t> integers(const ConfigReader& config, const char* key, int64_t min, int64_t max) {
  std::vector<int64_t> out;
  const auto* list = config.find(key);
  if (list == nullptr) return out;
  if (!list->is_array()) config.fail(key, "expected a list of whole numbers");
  for (const auto& value : *list) {
    if (!value.is_number_integer() || value < min || value > max) {
      config.fail(key, "expected whole numbers from " + std::to_string(min) + " to " + std::to_string(max) +
                           ", found " + value.dump());
    }
    out.push_back(value.get<int64_t>());
  }
  return out;
}

void read_positions(const ConfigReader& config, Description& out) {
  const size_t count = out.layers.size();
  const std::vector<int64_t> rope = integers(config, "no_rope_layers", 0, 1);
  const int64_t interval = config.integer_or("no_rope_layer_interval", 1, INT32_MAX, 4);
  if (!rope.empty() && rope.size() < count) {
    config.fail("no_rope_layers", "has " + std::to_string(rope.size()) + " numbers, expected one for each of " +
                                      std::to_string(count) + " layers");
  }
  for (size_t i = 0; i < count; ++i) {
    out.layers[i].rope = rope.empty() ? (static_cast<int64_t>(i) + 1) % interval != 0 : rope[i] != 0;
  }
  out.rope_interleaved = true;
  out.qk_unit_norm = config.boolean_or("use_qk_norm", true);
  if (!config.boolean_or("attn_temperature_tuning", true)) return;
  out.temperature_scale = config.number_or("attn_scale", 0.0, 1e6, 0.1);
  out.temperature_floor = config.number_or("floor_scale", 1.0, 1e12, 8192.0);
}

void read_experts(const ConfigReader& config, Description& out) {
  const auto count = static_cast<int64_t>(out.layers.size());
  std::vector<int64_t> with_experts = integers(config, "moe_layers", 0, count - 1);
  const int64_t step = config.integer_or("interleave_moe_layer_step", 1, INT32_MAX, 1);
  if (!config.has("moe_layers")) {
    for (int64_t i = step - 1; i < count; i += step) with_experts.push_back(i);
  }
  const int64_t dense_size = config.integer_or("intermediate_size_mlp", 1, 1 << 20, 16384);
  out.expert_size = out.layers.front().intermediate_size;
  out.experts = config.integer_or("num_local_experts", 1, 1 << 16, 16);
  out.experts_per_token = config.integer_or("num_experts_per_tok", 1, out.experts, 1);
  for (LayerDescription& layer : out.layers) {
    const std::string mlp = "model.layers." + std::to_string(layer.cache.model_layer) + ".feed_forward.";
    LayerNames& names = layer.names;
    std::string dense = mlp;
    if (std::find(with_experts.begin(), with_experts.end(), layer.cache.model_layer) != with_experts.end()) {
      names.router = mlp + "router";
      names.experts_gate_up = mlp + "experts.gate_up_proj";
      names.experts_down = mlp + "experts.down_proj";
      dense = mlp + "shared_expert.";
    } else {
      layer.intermediate_size = dense_size;
    }
    names.gate = dense + "gate_proj";
    names.up = dense + "up_proj";
    names.down = dense + "down_proj";
  }
}

}  // namespace

void read_llama4(const ConfigReader& config, Description& out) {
  read_positions(config, out);
  read_experts(config, out);
}

}  // namespace kvplug::model
