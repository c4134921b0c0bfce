// SPDX-License-Identifier: Apache-2.0
// What families.cc knows of a family, and the parts that it calls. Defaults are those of the family's configuration
// class in Transformers: what an absent key means.
#pragma once

#include <cstdint>
#include <string_view>

#include "model/describe/config_reader.h"
#include "model/describe/description.h"

namespace kvplug::model {

// Which layers see all tokens and which only some.
enum class LayerRule {
  kFull,         // all layers full
  kSliding,      // all layers slide
  kLastSliding,  // layers from max_window_layers on slide
  kAlternating,  // even layers slide
  kChunked,      // layers with rope are chunked
};

struct Family {
  std::string_view model_type, architecture;
  int64_t kv_heads = 0, head_dim = 0;  // 0: as many as query heads; hidden size over heads
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6, rope_theta = 10000.0;
  bool tie_word_embeddings = false;
  const char* act_key = "hidden_act";
  const char* act = "silu";
  bool qkv_bias = false;       // a bias on q, k, v without a flag in config.json
  bool bias_flag = false;      // attention_bias (q, k, v and o) is a key of this family
  bool mlp_bias_flag = false;  // so is mlp_bias
  bool qk_norm = false;
  LayerRule rule = LayerRule::kFull;
  const char* window_key = nullptr;
  int64_t window = 0;
  bool window_gate = false;  // use_sliding_window (default false) switches the window on
  int64_t full_layers = 0;   // max_window_layers
  void (*read_more)(const ConfigReader& config, Description& out) = nullptr;  // keys of this family alone
};

// Fills kind and window of every layer's cache, by layer_types or the family's rule; reads `rope` of the layers. A
// window that no position of the model can reach beyond is none.
void set_layer_kinds(const ConfigReader& config, const Family& family, Description& out);

// Called when dimensions, layers and their names stand as in Llama.
void read_gemma2(const ConfigReader& config, Description& out);
void read_llama4(const ConfigReader& config, Description& out);

}  // namespace kvplug::model
