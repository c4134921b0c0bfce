// SPDX-License-Identifier: Apache-2.0
// Gemma 2: norms before and after attention and MLP, capped scores and logits, scaled embeddings.
#include <cmath>

#include "model/describe/families/family.h"

namespace kvplug::model {

void read_gemma2(const ConfigReader& config, Description& out) {
  if (config.boolean_or("use_bidirectional_attention", false)) {
    config.fail("use_bidirectional_attention", "true is not supported: tokens are generated from what is before them");
  }
  out.norm_adds_one = true;
  out.embedding_scale = std::sqrt(static_cast<double>(out.hidden_size));
  out.attention_scale = 1.0 / std::sqrt(config.number_or("query_pre_attn_scalar", 1e-6, 1e9, 256.0));
  // null switches a cap off, an absent key does not.
  const auto cap = [&](const char* key, double fallback) {
    return config.number_or(key, 1e-3, 1e6, config.json().contains(key) ? 0.0 : fallback);
  };
  out.attention_softcap = cap("attn_logit_softcapping", 50.0);
  out.logit_softcap = cap("final_logit_softcapping", 30.0);
  for (LayerDescription& layer : out.layers) {
    LayerNames& names = layer.names;
    const std::string prefix = "model.layers." + std::to_string(layer.cache.model_layer) + ".";
    names.attention_out_norm = prefix + "post_attention_layernorm.weight";
    names.mlp_norm = prefix + "pre_feedforward_layernorm.weight";
    names.mlp_out_norm = prefix + "post_feedforward_layernorm.weight";
  }
}

}  // namespace kvplug::model
