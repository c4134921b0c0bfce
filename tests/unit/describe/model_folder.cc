// SPDX-License-Identifier: Apache-2.0
#include "model_folder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

namespace kvplug::testing {
namespace fs = std::filesystem;

ModelFolder::ModelFolder() {
  std::string name = (fs::temp_directory_path() / "kvplug-describe-XXXXXX").string();
  path_ = mkdtemp(name.data());
  config = {{"architectures", {"LlamaForCausalLM"}},
            {"model_type", "llama"},
            {"vocab_size", 6},
            {"hidden_size", 8},
            {"intermediate_size", 12},
            {"num_attention_heads", 2},
            {"num_key_value_heads", 1},
            {"num_hidden_layers", 1},
            {"max_position_embeddings", 32},
            {"rms_norm_eps", 1e-5},
            {"torch_dtype", "float32"},
            {"eos_token_id", 2}};
  const std::string layer = "model.layers.0.";
  tensors = {{"model.embed_tokens.weight", {6, 8}},
             {layer + "input_layernorm.weight", {8}},
             {layer + "self_attn.q_proj.weight", {8, 8}},
             {layer + "self_attn.k_proj.weight", {4, 8}},
             {layer + "self_attn.v_proj.weight", {4, 8}},
             {layer + "self_attn.o_proj.weight", {8, 8}},
             {layer + "post_attention_layernorm.weight", {8}},
             {layer + "mlp.gate_proj.weight", {12, 8}},
             {layer + "mlp.up_proj.weight", {12, 8}},
             {layer + "mlp.down_proj.weight", {8, 12}},
             {"model.norm.weight", {8}},
             {"lm_head.weight", {6, 8}}};
}

ModelFolder::~ModelFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

void ModelFolder::write_config() const { write_raw("config.json", config.dump()); }

void ModelFolder::write_raw(const std::string& file, const std::string& bytes) const {
  std::ofstream out(path_ / file, std::ios::binary);
  out << bytes;
}

void ModelFolder::write_safetensors(const std::string& file, const std::string& header, const std::string& data) const {
  const uint64_t length = header.size();
  write_raw(file, std::string(reinterpret_cast<const char*>(&length), 8) + header + data);
}

void ModelFolder::write_shard(const std::string& file, const std::vector<std::string>& names) const {
  nlohmann::ordered_json header;
  size_t at = 0;
  for (const std::string& name : names) {
    size_t bytes = 4;
    for (const int64_t size : tensors.at(name)) bytes *= static_cast<size_t>(size);
    header[name] = {{"dtype", "F32"}, {"shape", tensors.at(name)}, {"data_offsets", {at, at + bytes}}};
    at += bytes;
  }
  write_safetensors(file, header.dump(), std::string(at, '\0'));
}

model::Description ModelFolder::describe() const {
  if (!fs::exists(path_ / "config.json")) write_config();
  bool any = false;
  for (const auto& entry : fs::directory_iterator(path_)) any = any || entry.path().filename() != "config.json";
  if (!any) {
    std::vector<std::string> names;
    for (const auto& [name, shape] : tensors) names.push_back(name);
    write_shard("model.safetensors", names);
  }
  return model::describe_model(path_);
}

Error ModelFolder::error() const {
  try {
    describe();
  } catch (const Error& e) {
    return e;
  }
  ADD_FAILURE() << "the folder was accepted";
  return Error(Code::kOk, "");
}

}  // namespace kvplug::testing
