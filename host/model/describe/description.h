// SPDX-License-Identifier: Apache-2.0
// A model as data: what config.json and the safetensors headers say, with a family's conventions resolved. One decoder
// block in model/exec reads this; a new decoder family is one more function that fills it (families/*.cc).
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
  std::string input_norm, post_attention_norm;
  std::string q, k, v, o;      // prefixes: ".weight", ".bias" are appended
  std::string q_norm, k_norm;  // per-head RMS norm weights (Qwen3), full tensor names
  std::string gate, up, down;  // prefixes
};

struct LayerDescription {
  LayerNames names;
  bool rope = true;
  kvp_layer cache{};  // kind, q_heads, kv_heads, key_dim, value_dim, window, model_layer
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
  int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0;
  int64_t q_heads = 0, kv_heads = 0, head_dim = 0;
  int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  std::string hidden_act = "silu";
  bool qkv_bias = false, o_bias = false, mlp_bias = false, qk_norm = false;
  bool tie_word_embeddings = false;
  Rope rope;
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
