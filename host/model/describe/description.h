// SPDX-License-Identifier: Apache-2.0
// A model as data: what config.json and the safetensors headers say, with a family's conventions resolved. One decoder
// block in model/exec reads this; a new decoder family is one more entry of families.cc, its own keys in families/.
#pragma once

#include <kvplug/abi.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace kvplug::model {

struct Rope {
  std::string type = "default";  // default | linear | llama3
  double theta = 10000.0;
  double factor = 1.0;                                   // linear, llama3
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
  int64_t original_max_position_embeddings = 0;          // llama3
};

// Weight names of one layer, full names in the checkpoint; empty = the family has none.
struct LayerNames {
  std::string input_norm, mlp_norm;                   // of what attention and the MLP read
  std::string attention_out_norm, mlp_out_norm;       // of what they add to the residual (Gemma 2)
  std::string q, k, v, o;                             // prefixes: ".weight", ".bias" are appended
  std::string q_norm, k_norm;                         // per-head RMS norm weights (Qwen3), full tensor names
  std::string gate, up, down;                         // prefixes; with experts, the one every token takes
  std::string router, experts_gate_up, experts_down;  // a prefix, and stacks [experts, in, out] of all experts' weights
};

struct LayerDescription {
  LayerNames names;
  bool rope = true;
  int64_t intermediate_size = 0;  // of gate, up and down
  kvp_layer cache{};              // kind, q_heads, kv_heads, key_dim, value_dim, window, model_layer

  bool has_experts() const { return !names.router.empty(); }
};

// One tensor of the checkpoint, from a checked safetensors header.
struct TensorInfo {
  std::string name;
  kvp_dtype dtype{};
  std::vector<int64_t> shape;
  uint32_t file = 0;               // index in Description::files
  uint64_t offset = 0, bytes = 0;  // from the start of the file
};

struct Description {
  std::filesystem::path folder;
  std::string model_type;        // "llama", ...
  std::string architecture;      // "LlamaForCausalLM"
  kvp_dtype checkpoint_dtype{};  // config's dtype / torch_dtype, or that of the embedding
  int64_t vocab_size = 0, hidden_size = 0;
  int64_t q_heads = 0, kv_heads = 0, head_dim = 0;
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  bool norm_adds_one = false;       // norms multiply by 1 + weight and round once, at the end
  std::string hidden_act = "silu";  // silu | gelu_pytorch_tanh
  double embedding_scale = 1.0;     // looked-up rows are multiplied by it, rounded to the type
  double attention_scale = 0.0;     // of q.k
  double attention_softcap = 0.0;   // scores and logits become cap * tanh(x / cap); 0 = none
  double logit_softcap = 0.0;
  bool qkv_bias = false, o_bias = false, mlp_bias = false, qk_norm = false;
  bool tie_word_embeddings = false;
  Rope rope;
  // What q and k go through in layers with rope, and q in those without (Llama 4).
  bool rope_interleaved = false;   // pairs are neighbours, rotated in float32; else first half against second
  bool qk_unit_norm = false;       // after rope: an RMS norm per head without weights
  double temperature_scale = 0.0;  // without rope: q *= 1 + scale * log1p(floor((slot + 1) / floor)); 0 = none
  double temperature_floor = 1.0;
  // Of layers with experts: how many, how many a token takes, and their width.
  int64_t experts = 0, experts_per_token = 0, expert_size = 0;
  std::string embed_tokens, final_norm, lm_head;  // full tensor names; lm_head = embed_tokens when tied
  std::vector<LayerDescription> layers;

  std::vector<std::filesystem::path> files;   // safetensors files
  std::map<std::string, TensorInfo> tensors;  // what the model needs, checked for shape and dtype
  uint64_t parameters = 0;                    // tied weights once
  nlohmann::json generation_config =
      nlohmann::json::object();      // generation_config.json, or what old files keep in config.json
  std::vector<std::string> notices;  // stale shard copies, unused tensors, ...

  std::vector<kvp_layer> cache_layers() const;  // one per layer, in order
};

// Reads the folder without touching weights. Errors: kModel with the part that is unsupported and the way out
// (quantization_config, auto_map, only .bin or .gguf files, a hub id instead of a folder), kNotFound, kIo, kCorrupt.
Description describe_model(const std::filesystem::path& folder);

// Bytes of weights once loaded with `dtype` (tied weights once).
uint64_t weight_bytes(const Description& description, kvp_dtype dtype);

}  // namespace kvplug::model
