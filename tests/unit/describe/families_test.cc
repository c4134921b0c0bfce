// SPDX-License-Identifier: Apache-2.0
// What a family adds to config.json's common part: windows and chunks, Gemma 2's and Llama 4's own keys.
#include <gtest/gtest.h>

#include <cmath>

#include "model_folder.h"

namespace kvplug::testing {
namespace {

using nlohmann::json;

// The Llama folder with `layers` layers, under another family's name.
void rename_to(ModelFolder& folder, const std::string& model_type, const std::string& architecture, int64_t layers) {
  folder.config["model_type"] = model_type;
  folder.config["architectures"] = {architecture};
  folder.config["num_hidden_layers"] = layers;
  const auto one = folder.tensors;
  for (const auto& [name, shape] : one) {
    const std::string first = "model.layers.0.";
    if (!name.starts_with(first)) continue;
    for (int64_t i = 1; i < layers; ++i) {
      folder.tensors["model.layers." + std::to_string(i) + "." + name.substr(first.size())] = shape;
    }
  }
}

struct Mistral : ModelFolder {
  explicit Mistral(int64_t layers = 1) { rename_to(*this, "mistral", "MistralForCausalLM", layers); }
};

struct Qwen2 : ModelFolder {
  Qwen2() {
    rename_to(*this, "qwen2", "Qwen2ForCausalLM", 3);
    for (int i = 0; i < 3; ++i) {
      const std::string attention = "model.layers." + std::to_string(i) + ".self_attn.";
      tensors[attention + "q_proj.bias"] = {8};
      tensors[attention + "k_proj.bias"] = tensors[attention + "v_proj.bias"] = {4};
    }
    config["use_sliding_window"] = true;
    config["sliding_window"] = 8;
    config["max_window_layers"] = 1;
  }
};

struct Gemma2 : ModelFolder {
  Gemma2() {
    rename_to(*this, "gemma2", "Gemma2ForCausalLM", 3);
    config["head_dim"] = 4;
    config["sliding_window"] = 8;
    for (int i = 0; i < 3; ++i) {
      const std::string layer = "model.layers." + std::to_string(i) + ".";
      tensors[layer + "pre_feedforward_layernorm.weight"] = tensors[layer + "post_feedforward_layernorm.weight"] = {8};
    }
    tensors.erase("lm_head.weight");  // tied where the key is absent
  }
};

// Layers 0 and 2 dense, 1 and 3 with experts; layer 3 without rope.
struct Llama4 : ModelFolder {
  Llama4() {
    config["head_dim"] = 4;
    config["intermediate_size_mlp"] = 16;
    config["num_local_experts"] = 3;
    config["num_experts_per_tok"] = 2;
    config["interleave_moe_layer_step"] = 2;
    config["attention_chunk_size"] = 8;
    rename_to(*this, "llama4_text", "Llama4ForCausalLM", 4);
    std::erase_if(tensors, [](const auto& one) { return one.first.find(".mlp.") != std::string::npos; });
    for (int i = 0; i < 4; ++i) {
      const std::string mlp = "model.layers." + std::to_string(i) + ".feed_forward.";
      const std::string dense = i % 2 == 0 ? mlp : mlp + "shared_expert.";
      const int64_t width = i % 2 == 0 ? 16 : 12;
      tensors[dense + "gate_proj.weight"] = tensors[dense + "up_proj.weight"] = {width, 8};
      tensors[dense + "down_proj.weight"] = {8, width};
      if (i % 2 == 0) continue;
      tensors[mlp + "router.weight"] = {3, 8};
      tensors[mlp + "experts.gate_up_proj"] = {3, 8, 24};
      tensors[mlp + "experts.down_proj"] = {3, 12, 8};
    }
  }
};

// One letter a layer: F full, S sliding, C chunked; all windows are 8.
std::string kinds(const ModelFolder& folder) {
  std::string out;
  for (const kvp_layer& layer : folder.describe().cache_layers()) {
    EXPECT_EQ(layer.window, layer.kind == KVP_LAYER_FULL ? 0 : 8);
    out += layer.kind == KVP_LAYER_FULL ? 'F' : layer.kind == KVP_LAYER_SLIDING ? 'S' : 'C';
  }
  return out;
}

// The folder with one more key.
template <class Folder>
std::string kinds_with(const char* key, const json& value) {
  Folder folder;
  folder.config[key] = value;
  return kinds(folder);
}

// The message of the error with one key changed, which must name that key.
template <class Folder>
std::string refused(const char* key, const json& value) {
  Folder folder;
  folder.config[key] = value;
  const Error e = folder.error();
  EXPECT_EQ(e.code(), Code::kModel) << key << " = " << value;
  EXPECT_NE(e.message().find(key), std::string::npos) << key << " = " << value << ": " << e.what();
  return e.what();
}

TEST(Families, MistralSlidesInEveryLayer) {
  EXPECT_EQ(kinds_with<Mistral>("sliding_window", 8), "S");
  EXPECT_EQ(kinds_with<Mistral>("sliding_window", nullptr), "F");
  EXPECT_EQ(kinds_with<Mistral>("sliding_window", 32), "F");  // as long as the positions: never felt
  Mistral absent;                                             // means 4096
  absent.config["max_position_embeddings"] = 8192;
  EXPECT_EQ(absent.describe().layers[0].cache.window, 4096);

  Mistral listed;  // Transformers' Mistral does not look at the list
  listed.config["sliding_window"] = 8;
  listed.config["layer_types"] = {"full_attention"};
  EXPECT_NE(std::string(listed.error().what()).find("layer_types"), std::string::npos);
}

TEST(Families, Qwen2SlidesFromMaxWindowLayersOn) {
  EXPECT_EQ(kinds(Qwen2()), "FSS");
  EXPECT_EQ(kinds_with<Qwen2>("max_window_layers", 3), "FFF");
  EXPECT_EQ(kinds_with<Qwen2>("max_window_layers", nullptr), "FFF");  // 28
  EXPECT_EQ(kinds_with<Qwen2>("sliding_window", nullptr), "FFF");
  EXPECT_EQ(kinds_with<Qwen2>("use_sliding_window", false), "FFF");
  EXPECT_EQ(kinds_with<Qwen2>("layer_types", {"sliding_attention", "full_attention", "full_attention"}), "SFF");
  Qwen2 off;
  off.config["use_sliding_window"] = false;
  off.config["layer_types"] = {"full_attention", "sliding_attention", "full_attention"};
  EXPECT_NE(off.error().message().find("contradicts use_sliding_window = false"), std::string::npos);
}

TEST(Families, Gemma2Alternates) {
  EXPECT_EQ(kinds(Gemma2()), "SFS");
  EXPECT_EQ(kinds_with<Gemma2>("layer_types", {"full_attention", "sliding_attention", "full_attention"}), "FSF");
  EXPECT_EQ(kinds_with<Gemma2>("sliding_window", 32), "FFF");
  refused<Gemma2>("sliding_window", nullptr);
}

TEST(Families, Gemma2Conventions) {
  Gemma2 folder;
  model::Description d = folder.describe();
  EXPECT_TRUE(d.norm_adds_one && d.tie_word_embeddings);
  EXPECT_EQ(d.hidden_act, "gelu_pytorch_tanh");
  EXPECT_EQ(d.embedding_scale, std::sqrt(8.0));
  EXPECT_EQ(d.attention_scale, 1 / 16.0);  // query_pre_attn_scalar absent: 256
  EXPECT_EQ(d.attention_softcap, 50);
  EXPECT_EQ(d.logit_softcap, 30);
  folder.config["query_pre_attn_scalar"] = 4;
  folder.config["attn_logit_softcapping"] = nullptr;
  folder.config["final_logit_softcapping"] = 12.5;
  folder.write_config();
  d = folder.describe();
  EXPECT_EQ(d.attention_scale, 0.5);
  EXPECT_EQ(d.attention_softcap, 0);
  EXPECT_EQ(d.logit_softcap, 12.5);
}

TEST(Families, Llama4ChunksWhereThereIsRope) {
  EXPECT_EQ(kinds(Llama4()), "CCCF");
  EXPECT_EQ(kinds_with<Llama4>("no_rope_layers", json::array()), "CCCF");  // as absent
  EXPECT_EQ(kinds_with<Llama4>("no_rope_layer_interval", 2), "CFCF");
  EXPECT_EQ(kinds_with<Llama4>("no_rope_layers", {0, 1, 0, 1}), "FCFC");
  EXPECT_EQ(kinds_with<Llama4>("attention_chunk_size", 32), "FFFF");
  // Rope follows its own list, whatever the layer sees.
  Llama4 folder;
  folder.config["layer_types"] = {"full_attention", "chunked_attention", "full_attention", "chunked_attention"};
  EXPECT_EQ(kinds(folder), "FCFC");
  const auto d = folder.describe();
  EXPECT_TRUE(d.layers[0].rope && d.layers[1].rope && d.layers[2].rope && !d.layers[3].rope);
}

TEST(Families, Llama4Conventions) {
  Llama4 folder;
  model::Description d = folder.describe();
  EXPECT_TRUE(d.rope_interleaved && d.qk_unit_norm);
  EXPECT_EQ(d.rope.theta, 500000);
  EXPECT_EQ(d.temperature_scale, 0.1);
  EXPECT_EQ(d.temperature_floor, 8192);
  EXPECT_EQ(d.experts, 3);
  EXPECT_EQ(d.experts_per_token, 2);
  EXPECT_EQ(d.expert_size, 12);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(d.layers[i].has_experts(), i % 2 == 1);
    EXPECT_EQ(d.layers[i].intermediate_size, i % 2 == 1 ? 12 : 16);
  }
  folder.config["moe_layers"] = {1, 3};
  folder.config["interleave_moe_layer_step"] = 1;  // the list counts
  folder.config["attn_temperature_tuning"] = false;
  folder.config["use_qk_norm"] = false;
  folder.write_config();
  d = folder.describe();
  EXPECT_TRUE(d.layers[1].has_experts() && !d.layers[2].has_experts());
  EXPECT_EQ(d.temperature_scale, 0);
  EXPECT_FALSE(d.qk_unit_norm);
}

TEST(Families, BadValuesNameTheKey) {
  for (const json& bad : {json(0), json(-8), json("8"), json(8.5), json(true)}) {
    refused<Mistral>("sliding_window", bad);
    refused<Qwen2>("sliding_window", bad);
    refused<Gemma2>("sliding_window", bad);
    refused<Llama4>("attention_chunk_size", bad);
  }
  const json three = {"full_attention", "full_attention", "full_attention"};
  EXPECT_NE(refused<ModelFolder>("layer_types", three).find("list of 1 words"), std::string::npos);
  EXPECT_NE(refused<Llama4>("layer_types", three).find("list of 4 words"), std::string::npos);
  refused<ModelFolder>("layer_types", {"sliding_attention"});
  refused<Gemma2>("layer_types", "sliding_attention");
  refused<Gemma2>("layer_types", {"sliding_attention", "full_attention", 3});
  const std::string unknown = refused<Gemma2>("layer_types", {"full_attention", "wide_attention", "full_attention"});
  EXPECT_NE(unknown.find("\"wide_attention\" (layer 1)"), std::string::npos) << unknown;
  EXPECT_NE(unknown.find("known: full_attention, sliding_attention"), std::string::npos) << unknown;
  refused<Gemma2>("layer_types", {"full_attention", "chunked_attention", "full_attention"});
  refused<Qwen2>("max_window_layers", -1);

  refused<Gemma2>("query_pre_attn_scalar", 0);
  refused<Gemma2>("attn_logit_softcapping", 0);
  refused<Gemma2>("final_logit_softcapping", -30);
  refused<Gemma2>("hidden_activation", "gelu");
  refused<Gemma2>("use_bidirectional_attention", true);

  refused<Llama4>("attention_chunk_size", nullptr);
  refused<Llama4>("num_local_experts", 0);
  refused<Llama4>("num_local_experts", -1);
  refused<Llama4>("num_experts_per_tok", 0);
  EXPECT_NE(refused<Llama4>("num_experts_per_tok", 4).find("from 1 to 3"), std::string::npos);
  refused<Llama4>("interleave_moe_layer_step", 0);
  refused<Llama4>("moe_layers", {1, 4});
  refused<Llama4>("moe_layers", {-1});
  refused<Llama4>("moe_layers", 1);
  refused<Llama4>("moe_layers", {18446744073709551615ull});
  refused<Llama4>("no_rope_layers", {1, 1, 1});
  refused<Llama4>("no_rope_layers", {1, 1, 1, 2});
  refused<Llama4>("no_rope_layers", {true, true, true, false});
  refused<Llama4>("no_rope_layer_interval", 0);
  refused<Llama4>("intermediate_size_mlp", 0);
  refused<Llama4>("floor_scale", 0);
  refused<Llama4>("attn_scale", -1);
  refused<Llama4>("attn_temperature_tuning", "yes");
}

TEST(Families, ExpertTensorsAreCheckedLikeAnyOther) {
  for (const char* name :
       {"router.weight", "experts.gate_up_proj", "experts.down_proj", "shared_expert.up_proj.weight"}) {
    const std::string tensor = std::string("model.layers.3.feed_forward.") + name;
    Llama4 missing;
    missing.tensors.erase(tensor);
    EXPECT_NE(missing.error().message().find(tensor), std::string::npos) << missing.error().what();
    Llama4 wrong;
    wrong.tensors[tensor].back() += 1;
    EXPECT_NE(wrong.error().message().find(tensor), std::string::npos) << wrong.error().what();
  }
  Gemma2 norm;
  norm.tensors.erase("model.layers.1.pre_feedforward_layernorm.weight");
  EXPECT_NE(norm.error().message().find("model.layers.1.pre_feedforward_layernorm.weight"), std::string::npos);
}

}  // namespace
}  // namespace kvplug::testing
