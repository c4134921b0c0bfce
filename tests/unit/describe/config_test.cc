// SPDX-License-Identifier: Apache-2.0
// config.json: dialects that mean the same, and values that must not reach a division or an allocation.
#include <gtest/gtest.h>

#include "model_folder.h"

namespace kvplug::testing {
namespace {

using nlohmann::json;

TEST(ModelConfig, BadValuesNameTheKey) {
  const std::vector<std::pair<const char*, json>> bad = {
      {"num_attention_heads", 0},
      {"num_attention_heads", 7},
      {"num_attention_heads", -1},
      {"num_attention_heads", 2147483648},
      {"num_attention_heads", 3.5},
      {"num_attention_heads", "8"},
      {"num_attention_heads", true},
      {"num_key_value_heads", 0},
      {"num_hidden_layers", 0},
      {"num_hidden_layers", 1431655766},
      {"vocab_size", 1099511627776},
      {"max_position_embeddings", 4611686018427387904},
      {"hidden_size", 0},
      {"hidden_size", json::array()},
      {"intermediate_size", -3},
      {"rms_norm_eps", "small"},
      {"tie_word_embeddings", 1},
      {"head_dim", 3},
      {"hidden_act", "gelu"},
      {"torch_dtype", "int8"},
      {"rope_theta", -1},
      {"vocab_size", 18446744073709551615ull},
  };
  for (const auto& [key, value] : bad) {
    ModelFolder folder;
    folder.config[key] = value;
    const Error e = folder.error();
    EXPECT_EQ(e.code(), Code::kModel) << key << " = " << value;
    EXPECT_NE(e.where().find("config.json"), std::string::npos);
    const bool heads = std::string(key) == "num_attention_heads" && value == 7;  // then the width does not divide
    EXPECT_TRUE(e.message().find(key) != std::string::npos || heads) << e.what();
  }
}

TEST(ModelConfig, MissingKeysAreNamed) {
  for (const char* key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_hidden_layers", "model_type"}) {
    ModelFolder folder;
    folder.config.erase(key);
    EXPECT_NE(folder.error().message().find(key), std::string::npos) << folder.error().what();
  }
}

TEST(ModelConfig, HeadCounts) {
  for (const auto& [heads, kv, good] :
       {std::tuple{7, 2, false}, {33, 2, false}, {3, 2, false}, {2, 2, true}, {2, 1, true}}) {
    ModelFolder folder;
    folder.config["num_attention_heads"] = heads;
    folder.config["num_key_value_heads"] = kv;
    folder.config["head_dim"] = 4;
    folder.tensors["model.layers.0.self_attn.k_proj.weight"] = {4 * kv, 8};
    folder.tensors["model.layers.0.self_attn.v_proj.weight"] = {4 * kv, 8};
    if (good) {
      EXPECT_EQ(folder.describe().kv_heads, kv);
    } else {
      EXPECT_NE(folder.error().message().find("cannot share"), std::string::npos) << heads << ":" << kv;
    }
  }
  ModelFolder folder;  // the key missing or null: as many as query heads
  folder.config["num_key_value_heads"] = nullptr;
  folder.tensors["model.layers.0.self_attn.k_proj.weight"] = {8, 8};
  folder.tensors["model.layers.0.self_attn.v_proj.weight"] = {8, 8};
  EXPECT_EQ(folder.describe().kv_heads, 2);
}

TEST(ModelConfig, HeadDimNeedNotDivideTheWidth) {
  ModelFolder folder;
  folder.config["head_dim"] = 16;
  folder.tensors["model.layers.0.self_attn.q_proj.weight"] = {32, 8};
  folder.tensors["model.layers.0.self_attn.k_proj.weight"] = {16, 8};
  folder.tensors["model.layers.0.self_attn.v_proj.weight"] = {16, 8};
  folder.tensors["model.layers.0.self_attn.o_proj.weight"] = {8, 32};
  EXPECT_EQ(folder.describe().head_dim, 16);
  ModelFolder missing;
  missing.config["head_dim"] = nullptr;
  EXPECT_EQ(missing.describe().head_dim, 4);
}

TEST(ModelConfig, UnsupportedPartsAreNamedWithTheWayOut) {
  const std::vector<std::pair<const char*, json>> parts = {{"quantization_config", {{"quant_method", "gptq"}}},
                                                           {"auto_map", {{"AutoModel", "x.Y"}}},
                                                           {"partial_rotary_factor", 0.5}};
  for (const auto& [key, value] : parts) {
    ModelFolder folder;
    folder.config[key] = value;
    const Error e = folder.error();
    EXPECT_EQ(e.code(), Code::kModel);
    EXPECT_NE(e.message().find(key), std::string::npos) << e.what();
  }
  ModelFolder folder;
  folder.config["architectures"] = {"GPT2LMHeadModel"};
  folder.config["model_type"] = "gpt2";
  EXPECT_NE(folder.error().message().find("GPT2LMHeadModel"), std::string::npos);
  EXPECT_NE(folder.error().hint().find("Qwen3ForCausalLM"), std::string::npos);
}

TEST(ModelConfig, HostileJson) {
  for (const std::string& text : {std::string(100000, '['), std::string("{"), std::string(), std::string("[]"),
                                  std::string("\xff\xfe"), std::string(R"({"vocab_size": 1, "vocab_size": 2})")}) {
    ModelFolder folder;
    folder.write_raw("config.json", text);
    const Error e = folder.error();
    EXPECT_TRUE(e.code() == Code::kCorrupt || e.code() == Code::kModel) << e.what();
  }
}

TEST(ModelConfig, GenerationSettings) {
  ModelFolder folder;
  folder.config["temperature"] = 0.5;  // what old files keep in config.json
  EXPECT_EQ(folder.describe().generation_config["temperature"], 0.5);
  folder.write_raw("generation_config.json", R"({"eos_token_id": [3, 4]})");
  const model::Description d = folder.describe();
  EXPECT_EQ(d.generation_config["eos_token_id"], json({3, 4}));
  EXPECT_FALSE(d.generation_config.contains("temperature"));
}

}  // namespace
}  // namespace kvplug::testing
