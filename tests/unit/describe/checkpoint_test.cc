// SPDX-License-Identifier: Apache-2.0
// Which files and tensors of a folder count, and what is refused by name.
#include "model/describe/checkpoint.h"

#include <gtest/gtest.h>

#include "model_folder.h"

namespace kvplug::testing {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> names_of(const ModelFolder& folder) {
  std::vector<std::string> names;
  for (const auto& [name, shape] : folder.tensors) names.push_back(name);
  return names;
}

// Three shards of four tensors and an index.
nlohmann::json write_shards(const ModelFolder& folder) {
  const auto names = names_of(folder);
  nlohmann::json map;
  for (int shard = 0; shard < 3; ++shard) {
    const std::string file = "model-0000" + std::to_string(shard + 1) + "-of-00003.safetensors";
    const std::vector<std::string> part(names.begin() + shard * 4, names.begin() + shard * 4 + 4);
    folder.write_shard(file, part);
    for (const std::string& name : part) map[name] = file;
  }
  folder.write_raw("model.safetensors.index.json", nlohmann::json{{"weight_map", map}}.dump());
  return map;
}

TEST(Checkpoint, OneFile) {
  const ModelFolder folder;
  const model::Description d = folder.describe();
  EXPECT_EQ(d.files.size(), 1u);
  EXPECT_EQ(d.tensors.size(), 12u);
  EXPECT_EQ(d.parameters, 48u + 8 + 64 + 32 + 32 + 64 + 8 + 96 * 3 + 8 + 48);
  EXPECT_TRUE(d.notices.empty());
  EXPECT_EQ(d.generation_config["eos_token_id"], 2);
}

TEST(Checkpoint, ShardsWithIndex) {
  const ModelFolder folder;
  write_shards(folder);
  const model::Description d = folder.describe();
  EXPECT_EQ(d.files.size(), 3u);
  EXPECT_EQ(d.tensors.size(), 12u);
}

TEST(Checkpoint, ShardsWithoutIndex) {
  const ModelFolder folder;
  write_shards(folder);
  fs::remove(folder.path() / "model.safetensors.index.json");
  EXPECT_EQ(folder.describe().tensors.size(), 12u);
  folder.write_shard("model-extra.safetensors", {"lm_head.weight"});
  const Error e = folder.error();
  EXPECT_EQ(e.code(), Code::kCorrupt);
  EXPECT_NE(e.message().find("no index says which one counts"), std::string::npos) << e.what();
}

TEST(Checkpoint, IndexDecidesBetweenCopies) {
  const ModelFolder folder;
  write_shards(folder);
  const auto names = names_of(folder);
  std::vector<std::string> more(names.begin() + 8, names.end());
  more.push_back(names[0]);
  folder.write_shard("model-00003-of-00003.safetensors", more);  // a stale copy of a tensor of shard 1
  const model::Description d = folder.describe();
  ASSERT_EQ(d.notices.size(), 1u);
  EXPECT_NE(d.notices[0].find("the index names another file"), std::string::npos);
}

TEST(Checkpoint, MissingShardAndMissingTensorAreNamed) {
  const ModelFolder folder;
  const nlohmann::json map = write_shards(folder);
  fs::remove(folder.path() / "model-00002-of-00003.safetensors");
  Error e = folder.error();
  EXPECT_EQ(e.code(), Code::kNotFound);
  EXPECT_NE(e.where().find("model-00002-of-00003"), std::string::npos);
  write_shards(folder);
  folder.write_shard("model-00003-of-00003.safetensors", {names_of(folder)[8]});
  e = folder.error();
  EXPECT_EQ(e.code(), Code::kCorrupt);
  EXPECT_NE(e.message().find(names_of(folder)[9]), std::string::npos) << e.what();
}

TEST(Checkpoint, ShardNamesStayInTheFolder) {
  for (const char* name : {"../x.safetensors", "/etc/passwd", "a/../../x", "", "..", "."}) {
    const ModelFolder folder;
    folder.write_raw("model.safetensors.index.json", nlohmann::json{{"weight_map", {{"t", name}}}}.dump());
    const Error e = folder.error();
    EXPECT_EQ(e.code(), Code::kCorrupt) << name << ": " << e.what();
    EXPECT_NE(e.message().find("not a plain file name"), std::string::npos) << name << ": " << e.what();
  }
  const ModelFolder folder;
  folder.write_raw("model.safetensors.index.json", R"({"weight_map":{"t":"a\u0000b"}})");
  EXPECT_EQ(folder.error().code(), Code::kCorrupt);
}

TEST(Checkpoint, LinksOutAreRefusedAndHubCachesWork) {
  const ModelFolder outside;
  outside.write_shard("stray.safetensors", names_of(outside));
  {
    const ModelFolder folder;
    folder.write_config();
    fs::create_symlink(outside.path() / "stray.safetensors", folder.path() / "model.safetensors");
    EXPECT_NE(folder.error().message().find("leaves the model folder"), std::string::npos);
  }
  const ModelFolder hub;  // models--x--y: blobs/ beside snapshots/<revision>/, all links
  fs::create_directories(hub.path() / "blobs");
  fs::create_directories(hub.path() / "snapshots/abc");
  fs::copy(outside.path() / "stray.safetensors", hub.path() / "blobs/1");
  hub.write_raw("blobs/2", hub.config.dump());
  fs::create_symlink("../../blobs/1", hub.path() / "snapshots/abc/model.safetensors");
  fs::create_symlink("../../blobs/2", hub.path() / "snapshots/abc/config.json");
  EXPECT_EQ(model::describe_model(hub.path() / "snapshots/abc").tensors.size(), 12u);
  try {
    model::describe_model(hub.path());
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_NE(e.hint().find("snapshots"), std::string::npos) << e.what();
  }
}

TEST(Checkpoint, OtherFormatsAreNamedWithTheWayOut) {
  for (const char* file : {"pytorch_model.bin", "model.gguf"}) {
    const ModelFolder folder;
    folder.write_raw(file, "x");
    const Error e = folder.error();
    EXPECT_EQ(e.code(), Code::kModel);
    EXPECT_NE(e.message().find(file), std::string::npos);
    EXPECT_NE(e.hint().find("safetensors"), std::string::npos);
  }
  const ModelFolder folder;
  folder.write_raw("model.gguf", "x");
  try {
    model::describe_model(folder.path() / "model.gguf");
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_NE(e.hint().find("GGUF"), std::string::npos);
  }
  try {
    model::describe_model("Qwen/Qwen3-0.6B");
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kModel);
    EXPECT_NE(e.what(), nullptr);
    EXPECT_NE(std::string(e.what()).find("hf download Qwen/Qwen3-0.6B"), std::string::npos);
  }
}

TEST(Checkpoint, TensorsMustFitTheConfig) {
  {
    ModelFolder folder;
    folder.tensors["model.norm.weight"] = {9};
    const Error e = folder.error();
    EXPECT_EQ(e.code(), Code::kModel);
    EXPECT_NE(e.message().find("\"model.norm.weight\" has shape [9], config.json asks for [8]"), std::string::npos)
        << e.what();
  }
  {
    ModelFolder folder;
    folder.tensors.erase("model.layers.0.mlp.up_proj.weight");
    folder.tensors.erase("lm_head.weight");
    const Error e = folder.error();
    EXPECT_NE(e.message().find("model.layers.0.mlp.up_proj.weight, lm_head.weight"), std::string::npos) << e.what();
  }
  {
    ModelFolder folder;
    folder.tensors["model.layers.0.self_attn.q_proj.bias"] = {8};
    const model::Description d = folder.describe();
    ASSERT_EQ(d.notices.size(), 1u);
    EXPECT_NE(d.notices[0].find("q_proj.bias"), std::string::npos);
  }
}

TEST(Checkpoint, TiedHead) {
  ModelFolder folder;
  folder.config["tie_word_embeddings"] = true;
  EXPECT_EQ(folder.describe().lm_head, "model.embed_tokens.weight");
  EXPECT_EQ(folder.describe().notices.size(), 1u);  // the extra lm_head.weight is ignored, and said
  ModelFolder without;
  without.config["tie_word_embeddings"] = true;
  without.tensors.erase("lm_head.weight");
  EXPECT_TRUE(without.describe().notices.empty());
  EXPECT_EQ(without.describe().parameters, folder.describe().parameters);
}

}  // namespace
}  // namespace kvplug::testing
