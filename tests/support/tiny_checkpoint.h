// SPDX-License-Identifier: Apache-2.0
// Checkpoints that tests write: a folder with config.json and model.safetensors, made of named float32 tensors.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace kvplug::testing {

// A folder of its own that goes with the object.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "kvplug-test-XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("cannot make " + name);
    path_ = name;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

inline void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  if (!out.flush()) throw std::runtime_error("cannot write " + path.string());
}

struct NamedTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
};

inline void write_safetensors(const std::filesystem::path& path, const std::map<std::string, NamedTensor>& tensors) {
  nlohmann::json header;
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(tensor.values.data()), tensor.values.size() * sizeof(float));
    header[name] = {{"dtype", "F32"}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  write_text(path, std::string(reinterpret_cast<const char*>(&length), sizeof length) + text + data);
}

// A one-layer Llama whose next-token logits after any token are exactly `logits`. Attention and MLP give zero, so the
// embedding passes through; it is 8 in place 0 and 0 elsewhere, which the final norm turns into exactly 1: mean square
// 1, weight 1 / 8. Column 0 of lm_head is then what comes out. NaN and infinities come through too.
inline void write_constant_model(const std::filesystem::path& folder, std::span<const float> logits) {
  constexpr int64_t kWidth = 64, kHidden = 16;
  const auto vocab = static_cast<int64_t>(logits.size());
  const auto filled = [](std::vector<int64_t> shape, float value) {
    size_t n = 1;
    for (const int64_t d : shape) n *= static_cast<size_t>(d);
    return NamedTensor{std::move(shape), std::vector<float>(n, value)};
  };
  std::map<std::string, NamedTensor> t;
  t["model.embed_tokens.weight"] = filled({vocab, kWidth}, 0);
  t["lm_head.weight"] = filled({vocab, kWidth}, 0);
  for (size_t id = 0; id < logits.size(); ++id) {
    t["model.embed_tokens.weight"].values[id * kWidth] = 8;
    t["lm_head.weight"].values[id * kWidth] = logits[id];
  }
  t["model.norm.weight"] = filled({kWidth}, 0.125f);
  const std::string layer = "model.layers.0.";
  for (const char* name : {"input_layernorm", "post_attention_layernorm"}) {
    t[layer + name + ".weight"] = filled({kWidth}, 1);
  }
  for (const char* name : {"q_proj", "k_proj", "v_proj", "o_proj"}) {
    t[layer + "self_attn." + name + ".weight"] = filled({kWidth, kWidth}, 0);
  }
  t[layer + "mlp.gate_proj.weight"] = filled({kHidden, kWidth}, 0);
  t[layer + "mlp.up_proj.weight"] = filled({kHidden, kWidth}, 0);
  t[layer + "mlp.down_proj.weight"] = filled({kWidth, kHidden}, 0);
  write_safetensors(folder / "model.safetensors", t);
  write_text(folder / "config.json", nlohmann::json{{"architectures", {"LlamaForCausalLM"}},
                                                    {"model_type", "llama"},
                                                    {"vocab_size", vocab},
                                                    {"hidden_size", kWidth},
                                                    {"intermediate_size", kHidden},
                                                    {"num_hidden_layers", 1},
                                                    {"num_attention_heads", 2},
                                                    {"num_key_value_heads", 2},
                                                    {"hidden_act", "silu"},
                                                    {"max_position_embeddings", 64},
                                                    {"rms_norm_eps", 1e-12},
                                                    {"rope_theta", 10000.0},
                                                    {"tie_word_embeddings", false},
                                                    {"torch_dtype", "float32"}}
                                         .dump());
}

}  // namespace kvplug::testing
