// SPDX-License-Identifier: Apache-2.0
// Who wins: flag, environment, file (a prompt above the run), checkpoint, default. Per key, never per table.
#include "config/layers.h"

#include <gtest/gtest.h>

#include "config/schema.h"
#include "config_testing.h"

namespace kvplug::config {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

Config merged(const char* checkpoint, const char* file, const Pairs& environment, const Pairs& flags) {
  Config config = from_toml(file);
  if (*checkpoint != '\0') config.set_checkpoint(checkpoint);
  config.merge_environment(environment);
  for (const auto& [key, value] : flags) config.set(key, value);
  return config;
}

TEST(Layers, StrongestWinsPerKey) {
  const Config config =
      merged(R"({"temperature": 0.1, "top_p": 0.1, "top_k": 1, "min_p": 0.1, "do_sample": true})",
             "[generation]\ntop_p = 0.2\ntop_k = 2\nmin_p = 0.2\n",
             {{"KVPLUG_GENERATION__TOP_K", "3"}, {"KVPLUG_GENERATION__MIN_P", "0.3"}}, {{"generation.min_p", "0.4"}});
  const Generation g = config.resolve().generation;
  EXPECT_EQ(g.temperature, 0.1);
  EXPECT_EQ(g.top_p, 0.2);
  EXPECT_EQ(g.top_k, 3);
  EXPECT_EQ(g.min_p, 0.4);
  EXPECT_EQ(g.typical_p, 1.0);
  EXPECT_EQ(config.get("generation.temperature")["origin"], "generation_config.json:1:2");
  EXPECT_EQ(config.get("generation.top_p")["origin"], "run.toml:3:1");
  EXPECT_EQ(config.get("generation.top_k")["origin"], "KVPLUG_GENERATION__TOP_K");
  EXPECT_EQ(config.get("generation.min_p")["origin"], "--set");
  EXPECT_EQ(config.get("generation.typical_p"), (nlohmann::json{{"value", 1.0}, {"origin", "default"}}));
  EXPECT_EQ(config.where("generation.top_p"), "run.toml:3: generation.top_p");
}

// Each pair of neighbours, for each number of [generation].
TEST(Layers, OrderHoldsForEveryKey) {
  int tried = 0;
  for (const Key& key : keys()) {
    if (!key.path.starts_with("generation.") || (key.type != Type::kInteger && key.type != Type::kNumber)) continue;
    const bool integer = key.type == Type::kInteger;
    const std::string path(key.path), name = path.substr(11);
    const std::vector<std::string> values = integer ? std::vector<std::string>{"5", "6", "7", "8"}
                                                    : std::vector<std::string>{"0.5", "0.25", "0.125", "0.0625"};
    std::string variable = "KVPLUG_GENERATION__" + name;
    for (char& c : variable) c = c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c;
    const auto check = [&](const Config& config, const std::string& value) {
      EXPECT_EQ(config.get(path)["value"], nlohmann::json::parse(value)) << path;
    };
    Config config;
    config.set_checkpoint("{\"" + name + "\": " + values[0] + "}");
    check(config, values[0]);
    config.merge_toml(std::string(kHead) + path + " = " + values[1], "run.toml", "/b");
    check(config, values[1]);
    const Pairs environment = {{variable, values[2]}};
    config.merge_environment(environment);
    check(config, values[2]);
    config.set(path, values[3]);
    check(config, values[3]);
    // The order of the calls does not matter.
    config.merge_environment(environment);
    config.set_checkpoint("{\"" + name + "\": " + values[0] + "}");
    check(config, values[3]);
    ++tried;
  }
  EXPECT_GT(tried, 15);
}

TEST(Layers, PromptAboveItsRunBelowTheFlags) {
  const char* file =
      "generation = { top_k = 5, top_p = 0.5, do_sample = true }\n"
      "prompts = [ { text = \"a\", generation = { top_k = 6, top_p = 0.6, max_new_tokens = 8 } }, { text = \"b\" } ]\n";
  const auto run = merged("", file, {}, {{"generation.top_p", "0.9"}}).resolve();
  EXPECT_EQ(run.generation.top_k, 5);
  EXPECT_EQ(run.prompts[0].generation.top_k, 6);
  EXPECT_EQ(run.prompts[0].generation.top_p, 0.9);
  EXPECT_EQ(run.prompts[0].generation.max_new_tokens, 8);
  EXPECT_EQ(run.prompts[1].generation, run.generation);
}

TEST(Layers, ListsOfTablesAreReplacedAsAWhole) {
  Config config = from_toml("prompts = [ { text = \"a\", seed = 1 }, { text = \"b\" } ]\n");
  config.set("prompts", "[ { text = \"c\" } ]", "--prompt");
  auto run = config.resolve();
  ASSERT_EQ(run.prompts.size(), 1u);
  EXPECT_EQ(run.prompts[0].text, "c");
  EXPECT_EQ(run.prompts[0].seed, std::nullopt);
  config = from_toml("prompts = [ { text = \"a\", seed = 1 }, { text = \"b\" } ]\n");
  config.merge_toml("config_version = 1\nprompts = [ { text = \"d\" } ]", "b.toml", "/b");
  run = config.resolve();
  ASSERT_EQ(run.prompts.size(), 1u);
  EXPECT_EQ(run.prompts[0].seed, std::nullopt);
}

TEST(Layers, CacheOptionsMergePerKey) {
  const KindTable kinds = table_of_kinds();
  Config config =
      merged(R"({"cache_implementation": "quantized", "cache_config": {"nbits": 2, "q_group_size": 32}})",
             "generation.cache_config.nbits = 8\n", {{"KVPLUG_GENERATION__CACHE_CONFIG__BACKEND", "hqq"}}, {});
  Generation g = config.resolve(&kinds).generation;
  EXPECT_EQ(g.cache_config, (nlohmann::json{{"backend", "hqq"}, {"nbits", 8}, {"q_group_size", 32}}));
  EXPECT_EQ(g.cache_source, Source::kCheckpoint);
  // Once the user names a kind, the checkpoint's options go with the checkpoint's kind.
  config.set("generation.cache_implementation", "quantized");
  g = config.resolve(&kinds).generation;
  EXPECT_EQ(g.cache_config, (nlohmann::json{{"backend", "hqq"}, {"nbits", 8}}));
  EXPECT_EQ(g.cache_source, Source::kFlag);
}

TEST(Layers, UnsetGivesHuggingFacesNone) {
  Config config = merged(R"({"top_k": 20, "eos_token_id": [1, 2], "temperature": 0.5})",
                         "[generation]\nunset = [\"top_k\", \"eos_token_id\"]\n", {}, {});
  Generation g = config.resolve().generation;
  EXPECT_EQ(g.top_k, 0);
  EXPECT_TRUE(g.eos_token_id.empty());
  EXPECT_TRUE(g.eos_token_id_given);
  EXPECT_EQ(g.temperature, 0.5);
  config.set("generation.top_k", "7");
  EXPECT_EQ(config.resolve().generation.top_k, 7);
  EXPECT_EQ(
      toml_error("[generation]\ntop_k = 4\nunset = [\"top_k\"]\n"),
      "run.toml:3: generation.top_k: the key is set here and also named in generation.unset\n  keep one of the two");
  EXPECT_NE(toml_error("generation.unset = [\"topk\"]\n").find("did you mean `top_k`?"), std::string::npos);
}

TEST(Layers, EnvironmentNamesKeys) {
  const auto error = [](const Pairs& pairs) { return message_of([&] { Config().merge_environment(pairs); }); };
  EXPECT_EQ(error({{"KVPLUG_PLUGIN_PATH", "/a:/b"}, {"PATH", "x"}, {"KVPLUG", "y"}}), "no error");
  EXPECT_TRUE(error({{"KVPLUG_GENERATION__TOPP", "1"}})
                  .starts_with("KVPLUG_GENERATION__TOPP: generation.topp: unknown key\n  did you mean `top_p`?"));
  EXPECT_TRUE(
      error({{"KVPLUG_GENERATION__TOP_P", "high"}}).starts_with("KVPLUG_GENERATION__TOP_P: generation.top_p: "));
  EXPECT_NE(error({{"KVPLUG___", "1"}}), "no error");
  EXPECT_NE(error({{"KVPLUG_GENERATION__NUM_BEAMS", "4"}}).find("not part of this release"), std::string::npos);
  Config config;
  const Pairs good = {{"KVPLUG_RUN__SEED", "7"}, {"KVPLUG_RUN__NAME", "7"}, {"KVPLUG_MEMORY__MAX_HOST_BYTES", "2GiB"}};
  config.merge_environment(good);
  const auto run = config.resolve();
  EXPECT_EQ(run.run.seed, 7u);
  EXPECT_EQ(run.run.name, "7");
  EXPECT_EQ(run.memory.max_host_bytes, uint64_t{2} << 30);
}

TEST(Layers, SetTakesTomlOrBareText) {
  Config config;
  config.set("model.dtype", "bfloat16");
  config.set("run.log_level", "\"info\"");
  config.set("model.path", "some/folder");
  config.set("generation.stop_strings", R"(["a", "b"])");
  config.set("generation.eos_token_id", "3");
  config.set("tokenizer.chat_template_kwargs.enable_thinking", "false");
  config.set("generation", "{ top_p = 0.5 }");
  const auto run = config.resolve();
  EXPECT_EQ(run.model.dtype, "bfloat16");
  EXPECT_EQ(run.run.log_level, "info");
  EXPECT_EQ(run.model.path, (std::filesystem::current_path() / "some/folder").string());
  EXPECT_EQ(run.model.path_given, "some/folder");
  EXPECT_EQ(run.tokenizer.path, run.model.path);
  EXPECT_EQ(run.generation.stop_strings, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(run.generation.eos_token_id, std::vector<int64_t>{3});
  EXPECT_EQ(run.tokenizer.chat_template_kwargs["enable_thinking"], false);
  EXPECT_EQ(run.generation.top_p, 0.5);
  const auto error = [](std::string_view key, std::string_view value) {
    return message_of([&] { Config().set(key, value); });
  };
  EXPECT_TRUE(
      error("generation.top_p", "1\nrun.seed = 3").starts_with("--set: generation.top_p: expected one TOML value"));
  EXPECT_TRUE(error("generation.top_p", "").starts_with("--set: generation.top_p: not valid TOML"));
  EXPECT_TRUE(
      error("generation.topp", "1").starts_with("--set: generation.topp: unknown key\n  did you mean `top_p`?"));
  EXPECT_TRUE(error("topp", "1").starts_with("--set: topp: unknown key"));
  for (const char* key : {"", ".", "a..b", "prompts[0].text", "run.", ".run", "a.b.c.d.e.f.g.h.i.j.k", "\xff"})
    EXPECT_NE(error(key, "1"), "no error") << key;
  EXPECT_NE(error("run.name", "\xff"), "no error");
}

}  // namespace
}  // namespace kvplug::config
