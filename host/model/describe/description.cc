// SPDX-License-Identifier: Apache-2.0
#include "model/describe/description.h"

#include <algorithm>
#include <regex>

#include "core/error.h"
#include "model/describe/checkpoint.h"
#include "model/describe/config_reader.h"
#include "model/describe/families.h"
#include "model/describe/json_file.h"
#include "model/describe/safetensors.h"

namespace kvplug::model {
namespace fs = std::filesystem;
namespace {

void check_folder(const fs::path& folder) {
  const std::string where = folder.string();
  if (!fs::exists(folder)) {
    static const std::regex hub_id("[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*");
    if (std::regex_match(where, hub_id)) {
      throw Error(Code::kModel,
                  "no such folder; it reads like the id of a model on a hub, and nothing is downloaded here",
                  "download it first (`hf download " + where + "`) and give the folder", where);
    }
    throw Error(Code::kNotFound, "no such model folder",
                "give a folder with config.json, *.safetensors and tokenizer.json", where);
  }
  if (!fs::is_directory(folder)) {
    throw Error(Code::kModel, "is a file; a model is a folder",
                folder.extension() == ".gguf"
                    ? "GGUF files are not read: use the model's Hugging Face folder (safetensors)"
                    : "give the folder that holds config.json",
                where);
  }
  if (!fs::exists(folder / "config.json")) {
    throw Error(Code::kModel, "holds no config.json",
                fs::exists(folder / "snapshots") ? "this is the root of a hub cache: give a folder under snapshots/"
                                                 : "give the folder of a Hugging Face model",
                where);
  }
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string out = "[";
  for (size_t i = 0; i < shape.size(); ++i) out += (i ? ", " : "") + std::to_string(shape[i]);
  return out + "]";
}

// Moves the tensors the model needs out of the checkpoint, checking shape and element type.
class TensorPicker {
 public:
  TensorPicker(Checkpoint& from, Description& to) : from_(from), to_(to) {}

  void take(const std::string& name, std::vector<int64_t> shape) {
    const auto at = from_.tensors.find(name);
    if (at == from_.tensors.end()) {
      if (!to_.tensors.contains(name)) missing_.push_back(name);
      return;
    }
    const TensorInfo& tensor = at->second;
    const std::string where = to_.files[tensor.file].string();
    if (tensor.shape != shape) {
      throw Error(Code::kModel,
                  "tensor \"" + name + "\" has shape " + shape_text(tensor.shape) + ", config.json asks for " +
                      shape_text(shape),
                  "the weights and config.json belong to different models", where);
    }
    if (tensor.dtype.bits == 0) {
      throw Error(Code::kModel, "tensor \"" + name + "\" is not float32, bfloat16 or float16",
                  "convert the checkpoint to one of these", where);
    }
    uint64_t elements = 1;
    for (const int64_t size : shape) elements *= static_cast<uint64_t>(size);
    to_.parameters += elements;
    to_.tensors.emplace(name, tensor);
    from_.tensors.erase(at);
  }

  void finish() const {
    if (missing_.empty()) return;
    std::string list;
    for (size_t i = 0; i < std::min<size_t>(missing_.size(), 6); ++i) list += (i ? ", " : "") + missing_[i];
    if (missing_.size() > 6) list += " and " + std::to_string(missing_.size() - 6) + " more";
    throw Error(Code::kModel, "tensors are missing: " + list,
                "the folder is incomplete, or config.json belongs to another model", to_.folder.string());
  }

 private:
  Checkpoint& from_;
  Description& to_;
  std::vector<std::string> missing_;
};

void pick_tensors(Checkpoint& checkpoint, Description& d) {
  TensorPicker picker(checkpoint, d);
  const int64_t q = d.q_heads * d.head_dim, kv = d.kv_heads * d.head_dim;
  const auto linear = [&](const std::string& prefix, int64_t rows, int64_t columns, bool bias) {
    picker.take(prefix + ".weight", {rows, columns});
    if (bias) picker.take(prefix + ".bias", {rows});
  };
  picker.take(d.embed_tokens, {d.vocab_size, d.hidden_size});
  for (const LayerDescription& layer : d.layers) {
    const LayerNames& n = layer.names;
    for (const std::string* norm : {&n.input_norm, &n.attention_out_norm, &n.mlp_norm, &n.mlp_out_norm}) {
      if (!norm->empty()) picker.take(*norm, {d.hidden_size});
    }
    linear(n.q, q, d.hidden_size, d.qkv_bias);
    linear(n.k, kv, d.hidden_size, d.qkv_bias);
    linear(n.v, kv, d.hidden_size, d.qkv_bias);
    linear(n.o, d.hidden_size, q, d.o_bias);
    if (d.qk_norm) {
      picker.take(n.q_norm, {d.head_dim});
      picker.take(n.k_norm, {d.head_dim});
    }
    linear(n.gate, layer.intermediate_size, d.hidden_size, d.mlp_bias);
    linear(n.up, layer.intermediate_size, d.hidden_size, d.mlp_bias);
    linear(n.down, d.hidden_size, layer.intermediate_size, d.mlp_bias);
    if (layer.has_experts()) {
      linear(n.router, d.experts, d.hidden_size, false);
      picker.take(n.experts_gate_up, {d.experts, d.hidden_size, 2 * d.expert_size});
      picker.take(n.experts_down, {d.experts, d.expert_size, d.hidden_size});
    }
  }
  picker.take(d.final_norm, {d.hidden_size});
  if (!d.tie_word_embeddings) picker.take(d.lm_head, {d.vocab_size, d.hidden_size});
  picker.finish();

  std::vector<std::string> unused;
  for (const auto& [name, tensor] : checkpoint.tensors) {
    // Buffers that old checkpoints carry and the model computes itself.
    if (name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".attn.masked_bias")) continue;
    if (d.tie_word_embeddings && name == "lm_head.weight") {
      d.notices.push_back("tensor \"lm_head.weight\" is ignored: tie_word_embeddings is true");
      continue;
    }
    unused.push_back(name);
  }
  if (!unused.empty()) {
    std::string list;
    for (size_t i = 0; i < std::min<size_t>(unused.size(), 4); ++i) list += (i ? ", " : "") + unused[i];
    if (unused.size() > 4) list += " and " + std::to_string(unused.size() - 4) + " more";
    d.notices.push_back("tensors that no part of the model uses: " + list);
  }
}

kvp_dtype dtype_from_word(const ConfigReader& config, const Description& d) {
  const char* key = config.has("dtype") ? "dtype" : "torch_dtype";
  std::string word = config.string_or(key, "");
  if (word.starts_with("torch.")) word = word.substr(6);
  if (word == "float32") return {KVP_DTYPE_FLOAT, 32, 1};
  if (word == "bfloat16") return {KVP_DTYPE_BFLOAT, 16, 1};
  if (word == "float16") return {KVP_DTYPE_FLOAT, 16, 1};
  if (!word.empty()) config.fail(key, "\"" + word + "\" is not supported", "known: float32, bfloat16, float16");
  return d.tensors.at(d.embed_tokens).dtype;
}

// Old checkpoints keep generation settings in config.json; a file of its own replaces them wholly, as in Transformers.
nlohmann::json read_generation_config(const fs::path& folder, const nlohmann::json& config) {
  if (const fs::path file = folder / "generation_config.json"; fs::exists(file)) {
    nlohmann::json out = read_json(file);
    if (!out.is_object()) throw Error(Code::kCorrupt, "expected an object", "", file.string());
    return out;
  }
  static constexpr const char* kKeys[] = {"bos_token_id",
                                          "eos_token_id",
                                          "pad_token_id",
                                          "do_sample",
                                          "temperature",
                                          "top_k",
                                          "top_p",
                                          "typical_p",
                                          "repetition_penalty",
                                          "max_length",
                                          "min_length",
                                          "no_repeat_ngram_size",
                                          "bad_words_ids",
                                          "forced_bos_token_id",
                                          "forced_eos_token_id",
                                          "remove_invalid_values",
                                          "suppress_tokens",
                                          "begin_suppress_tokens",
                                          "num_beams",
                                          "cache_implementation"};
  nlohmann::json out = nlohmann::json::object();
  for (const char* key : kKeys) {
    if (config.contains(key) && !config[key].is_null()) out[key] = config[key];
  }
  return out;
}

}  // namespace

std::vector<kvp_layer> Description::cache_layers() const {
  std::vector<kvp_layer> out;
  out.reserve(layers.size());
  for (const LayerDescription& layer : layers) out.push_back(layer.cache);
  return out;
}

Description describe_model(const fs::path& folder) {
  check_folder(folder);
  const nlohmann::json json = read_json(folder / "config.json", 16u << 20);
  const ConfigReader config(json, folder / "config.json");
  if (!json.is_object()) config.fail("config.json", "expected an object");
  Description out;
  out.folder = folder;
  apply_family(config, out);
  Checkpoint checkpoint = read_checkpoint(folder);
  out.files = checkpoint.files;
  out.notices = checkpoint.notices;
  pick_tensors(checkpoint, out);
  out.checkpoint_dtype = dtype_from_word(config, out);
  out.generation_config = read_generation_config(folder, json);
  return out;
}

uint64_t weight_bytes(const Description& description, kvp_dtype dtype) {
  return description.parameters * (dtype.bits / 8u);
}

}  // namespace kvplug::model
