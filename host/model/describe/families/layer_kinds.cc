// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <string>

#include "model/describe/families/family.h"

namespace kvplug::model {
namespace {

constexpr std::string_view kFull = "full_attention", kSliding = "sliding_attention", kChunked = "chunked_attention";

struct Window {
  int64_t tokens = 0;  // 0 = none
  std::string absent;  // why there is none
};

Window read_window(const ConfigReader& config, const Family& family) {
  if (family.window_key == nullptr) return {};
  if (family.window_gate && !config.boolean_or("use_sliding_window", false)) return {0, "use_sliding_window = false"};
  const bool given = config.json().contains(family.window_key);
  return {config.integer_or(family.window_key, 1, INT32_MAX, given ? 0 : family.window),
          std::string(family.window_key) + " = null"};
}

std::string_view kind_by_rule(LayerRule rule, const Window& window, int64_t full_layers,
                              const LayerDescription& layer) {
  const int64_t index = layer.cache.model_layer;
  switch (rule) {
    case LayerRule::kFull: return kFull;
    case LayerRule::kSliding: return window.tokens != 0 ? kSliding : kFull;
    case LayerRule::kLastSliding: return window.tokens != 0 && index >= full_layers ? kSliding : kFull;
    case LayerRule::kAlternating: return index % 2 == 0 ? kSliding : kFull;
    case LayerRule::kChunked: return layer.rope ? kChunked : kFull;
  }
  return kFull;
}

// The word of layer_types for a layer, checked against what the family's code does.
std::string_view kind_by_word(const ConfigReader& config, LayerRule rule, const nlohmann::json& word, int64_t index,
                              std::string_view by_rule) {
  const std::string text =
      word.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + " (layer " + std::to_string(index) + ")";
  const std::string_view partial = rule == LayerRule::kFull ? kFull : rule == LayerRule::kChunked ? kChunked : kSliding;
  for (const std::string_view known : std::array{kFull, partial}) {
    if (!word.is_string() || word.get_ref<const std::string&>() != known) continue;
    // These families' code does not look at the list.
    if ((rule == LayerRule::kFull || rule == LayerRule::kSliding) && known != by_rule) {
      config.fail("layer_types",
                  text + " contradicts the family's rule, by which it is \"" + std::string(by_rule) + "\"",
                  "remove layer_types");
    }
    return known;
  }
  config.fail("layer_types", text + " is not supported for this family",
              "known: full_attention" + (partial == kFull ? std::string() : ", " + std::string(partial)));
}

}  // namespace

void set_layer_kinds(const ConfigReader& config, const Family& family, Description& out) {
  const Window window = read_window(config, family);
  const int64_t full_layers = family.rule == LayerRule::kLastSliding
                                  ? config.integer_or("max_window_layers", 0, INT32_MAX, family.full_layers)
                                  : 0;
  const auto* types = config.find("layer_types");
  if (types != nullptr && (!types->is_array() || types->size() != out.layers.size())) {
    config.fail("layer_types", "expected a list of " + std::to_string(out.layers.size()) + " words, one a layer");
  }
  for (LayerDescription& layer : out.layers) {
    const auto index = static_cast<size_t>(layer.cache.model_layer);
    std::string_view kind = kind_by_rule(family.rule, window, full_layers, layer);
    if (types != nullptr) kind = kind_by_word(config, family.rule, (*types)[index], layer.cache.model_layer, kind);
    if (kind == kFull) continue;
    if (window.tokens == 0) {
      config.fail(
          types != nullptr ? "layer_types" : family.window_key,
          "layer " + std::to_string(index) + " is \"" + std::string(kind) + "\", which contradicts " + window.absent,
          "give " + std::string(family.window_key));
    }
    if (window.tokens >= out.max_position_embeddings) continue;
    layer.cache.kind = kind == kSliding ? KVP_LAYER_SLIDING : KVP_LAYER_CHUNKED;
    layer.cache.window = window.tokens;
  }
}

}  // namespace kvplug::model
