// SPDX-License-Identifier: Apache-2.0
// What only the whole can tell: contradictions, notices, prompts, paths, sizes.
#include <gtest/gtest.h>

#include "config_testing.h"

namespace kvplug::config {
namespace {

std::string codes(const Run& run) {
  std::string result;
  for (const Notice& notice : run.notices) result += (result.empty() ? "" : " ") + notice.code;
  return result;
}

std::string notices_of(std::string_view text) { return codes(from_toml(text).resolve()); }

TEST(Resolve, ShortestFile) {
  const auto run = from_toml(
                       "model = { path = \"./Qwen3-0.6B\" }\n"
                       "prompts = [ { text = \"My favourite condiment is\" } ]\n"
                       "generation = { max_new_tokens = 64, cache_implementation = \"quantized\" }\n")
                       .resolve();
  EXPECT_EQ(run.model.path, "/base/Qwen3-0.6B");
  EXPECT_EQ(run.model.path_given, "./Qwen3-0.6B");
  EXPECT_EQ(run.tokenizer.path, "/base/Qwen3-0.6B");
  EXPECT_EQ(run.run.task, "generate");
  EXPECT_EQ(run.run.seed, std::nullopt);
  ASSERT_EQ(run.prompts.size(), 1u);
  EXPECT_EQ(run.prompts[0].id, "0");
  EXPECT_EQ(run.prompts[0].text, "My favourite condiment is");
  EXPECT_EQ(run.generation.max_new_tokens, 64);
  EXPECT_FALSE(run.generation.max_length_given);
  EXPECT_EQ(run.generation.cache_implementation, "quantized");
  EXPECT_EQ(run.generation.cache_source, Source::kFile);
  EXPECT_EQ(run.generation.top_k, 50);
  EXPECT_EQ(run.output.format, "text");
  EXPECT_EQ(run.output.path, "-");
  EXPECT_EQ(run.output.include, std::vector<std::string>{"text"});
  EXPECT_EQ(run.memory.plan, "check");
  EXPECT_EQ(run.digest.size(), 7u + 64u);
  EXPECT_TRUE(run.notices.empty());
  EXPECT_NO_THROW(check_complete(run));
}

TEST(Resolve, OptionsNamedPathStartFromTheFolderOfTheFile) {
  const auto run =
      from_toml(
          "generation = { cache_implementation = \"offloaded\", cache_config = { disk_path = \"kv\" } }\n"
          "cache.oom_fallback = { cache_implementation = \"offloaded\", cache_config = { disk_path = \"/kv\" } }\n")
          .resolve();
  EXPECT_EQ(run.generation.cache_config["disk_path"].get<std::string>(), "/base/kv");
  EXPECT_EQ(run.cache.oom_fallback->cache_config["disk_path"].get<std::string>(), "/kv");
  const auto empty = from_toml("generation.cache_config.disk_path = \"\"\n").resolve();
  EXPECT_EQ(empty.generation.cache_config["disk_path"].get<std::string>(), "");
}

TEST(Resolve, Warnings) {
  EXPECT_EQ(notices_of("generation = { max_length = 40, max_new_tokens = 8 }\n"), "max_length_overridden");
  EXPECT_EQ(notices_of("generation = { temperature = 0.5 }\n"), "sampling_off");
  EXPECT_EQ(notices_of("generation = { temperature = 0.5, do_sample = true }\n"), "");
  EXPECT_EQ(notices_of("generation = { temperature = 0.0 }\n"), "sampling_off");
  EXPECT_EQ(notices_of("generation = { top_k = 50, unset = [\"top_p\"] }\n"), "");
  EXPECT_EQ(notices_of("generation = { use_cache = false }\n"), "");
  EXPECT_EQ(notices_of("generation = { use_cache = false, cache_implementation = \"dynamic\" }\n"), "cache_off");
  // A checkpoint names a kind with a capacity, the user the capacity alone.
  Config capacity = from_toml("generation = { use_cache = false, max_cache_len = 64 }\n");
  capacity.set_checkpoint(R"({"cache_implementation": "static"})");
  EXPECT_EQ(codes(capacity.resolve()), "cache_off");
  EXPECT_EQ(notices_of("generation = { min_new_tokens = 9, max_new_tokens = 8 }\n"), "length_unreachable");
  EXPECT_EQ(notices_of("generation = { cache_implementation = \"hybrid\" }\n"), "kind_mapped");
  EXPECT_EQ(notices_of("prompts = [ { text = \"a\" }, { text = \"b\" } ]\ngeneration.top_k = 3\n"), "sampling_off");
}

TEST(Resolve, Contradictions) {
  EXPECT_EQ(toml_error("generation = { temperature = 0, do_sample = true }\n"),
            "run.toml:2:16: generation.temperature: 0 is out of range; expected more than 0 with do_sample = true\n"
            "  set generation.do_sample = false for the most probable token at every step");
  EXPECT_NE(
      toml_error("prompts = [ { text = \"a\", generation = { do_sample = true } } ]\ngeneration.temperature = 0.0\n")
          .find("run.toml:3:12: generation.temperature: 0 is out of range"),
      std::string::npos);
  EXPECT_NE(toml_error("generation = { use_cache = false, prefill_chunk_size = 8 }\n").find("into a cache"),
            std::string::npos);
  EXPECT_NE(toml_error("generation.bad_words_ids = [[]]\n").find("empty sequence"), std::string::npos);
  EXPECT_NE(toml_error("generation.stop_strings = \"\"\n").find("empty stop string"), std::string::npos);
  EXPECT_NE(toml_error("cache.negotiation.fallback = [\"dynamic\"]\n").find("never tried"), std::string::npos);
  EXPECT_NE(toml_error("cache.negotiation.on_unsupported = \"fallback\"\n").find("no kind to fall back to"),
            std::string::npos);
  EXPECT_NE(toml_error("tokenizer = { continue_final_message = true, add_generation_prompt = true }\n")
                .find("cannot be continued"),
            std::string::npos);
  const auto run = from_toml("tokenizer.continue_final_message = true\n").resolve();
  EXPECT_FALSE(run.tokenizer.add_generation_prompt);
}

TEST(Resolve, CapacityBelongsToTheKindsThatHaveOne) {
  const std::string of_static = "generation = { max_cache_len = 64, cache_implementation = \"static\" }\n";
  EXPECT_EQ(from_toml(of_static).resolve().generation.max_cache_len, 64);
  EXPECT_EQ(from_toml(of_static).resolve().max_cache_len_where, "run.toml:2:16: generation.max_cache_len");
  EXPECT_EQ(from_toml("generation = { max_cache_len = 64, cache_implementation = \"acme/ring\" }\n")
                .resolve()
                .generation.max_cache_len,
            64);
  EXPECT_EQ(toml_error("generation.max_cache_len = 64\n"),
            "run.toml:2:12: generation.max_cache_len: \"dynamic\" has no capacity: it takes what the run needs\n"
            "  remove the key, or use cache_implementation = \"static\"");
  EXPECT_NE(toml_error("generation.max_cache_len = 0\n").find("0 is out of range; expected 1 to"), std::string::npos);
  // A checkpoint may say it for whichever kind is used.
  Config config = from_toml("");
  config.set_checkpoint("{\"max_cache_len\": 64}");
  EXPECT_EQ(config.resolve().generation.max_cache_len, std::nullopt);
  EXPECT_EQ(codes(config.resolve()), "max_cache_len_ignored");
  config.set("generation.cache_implementation", "\"static\"");
  EXPECT_EQ(config.resolve().generation.max_cache_len, 64);
  EXPECT_EQ(codes(config.resolve()), "");
}

TEST(Resolve, KindToRetryWith) {
  EXPECT_EQ(from_toml("").resolve().cache.oom_fallback, std::nullopt);
  const KindTable kinds = table_of_kinds();
  const std::string quantized = "[cache.oom_fallback]\ncache_implementation = \"quantized\"\n";
  const auto run = from_toml(quantized + "cache_config = { nbits = 2, backend = \"HQQ\" }\n").resolve(&kinds);
  ASSERT_TRUE(run.cache.oom_fallback.has_value());
  EXPECT_EQ(run.cache.oom_fallback->cache_implementation, "quantized");
  EXPECT_EQ(run.cache.oom_fallback->cache_config, (nlohmann::json{{"nbits", 2}, {"backend", "hqq"}}));
  EXPECT_EQ(run.generation.cache_implementation, "dynamic");
  EXPECT_NE(toml_error(quantized + "cache_config = { nbitz = 2 }\n", &kinds).find("did you mean `nbits`?"),
            std::string::npos);
  EXPECT_NE(toml_error("[cache.oom_fallback]\ncache_implementation = \"quantised\"\n", &kinds)
                .find("run.toml:3: cache.oom_fallback.cache_implementation: cache \"quantised\" not found"),
            std::string::npos);
  EXPECT_NE(toml_error("[cache.oom_fallback]\ncache_config = { nbits = 2 }\n").find("a kind that is not named"),
            std::string::npos);
  const std::string same = toml_error("[cache.oom_fallback]\ncache_implementation = \"dynamic\"\n", &kinds);
  EXPECT_NE(same.find("run.toml:3: cache.oom_fallback.cache_implementation: \"dynamic\" with the same options"),
            std::string::npos)
      << same;
}

TEST(Resolve, Prompts) {
  EXPECT_NE(toml_error("[[prompts]]\nid = \"a\"\n").find("run.toml:2: prompts[0]: a prompt without a content"),
            std::string::npos);
  EXPECT_NE(toml_error("prompts = [ { text = \"a\", input_ids = [1] } ]\n").find("more than one content"),
            std::string::npos);
  EXPECT_NE(toml_error("prompts = [ { text = \"a\", id = \"1\" }, { text = \"b\" } ]\n")
                .find("two prompts have the id \"1\""),
            std::string::npos);
  EXPECT_NE(toml_error("prompts = [ { messages = [] } ]\n").find("empty list of messages"), std::string::npos);
  EXPECT_NE(toml_error("prompts = [ { messages = [ { content = \"a\" } ] } ]\n").find("without `role`"),
            std::string::npos);
  EXPECT_NE(toml_error("prompts = [ { messages = [ { role = \"user\" } ] } ]\n").find("without `content`"),
            std::string::npos);
  EXPECT_NE(toml_error("prompts = [ { input_ids = [-1] } ]\n").find("-1 is out of range"), std::string::npos);
  const auto run =
      from_toml(
          "prompts = [ { input_ids = [] }, { messages = [ { role = \"user\", content = \"Hi\", name = \"x\" } ] },"
          " { file = \"p.txt\", seed = 42, id = \"last\" } ]\n")
          .resolve();
  EXPECT_TRUE(run.prompts[0].input_ids->empty());
  EXPECT_EQ((*run.prompts[1].messages)[0]["name"], "x");
  EXPECT_EQ(run.prompts[2].file, "/base/p.txt");
  EXPECT_EQ(run.prompts[2].seed, 42u);
  EXPECT_EQ(run.prompts[2].id, "last");
}

TEST(Resolve, Sizes) {
  const auto bytes = [](const std::string& text) {
    return from_toml("memory.max_host_bytes = " + text + "\n").resolve().memory.max_host_bytes;
  };
  EXPECT_EQ(bytes("\"auto\""), std::nullopt);
  EXPECT_EQ(bytes("1000"), 1000u);
  EXPECT_EQ(bytes("\"1000\""), 1000u);
  EXPECT_EQ(bytes("\"512MiB\""), 512u << 20);
  EXPECT_EQ(bytes("\"1.5GiB\""), uint64_t{3} << 29);
  EXPECT_EQ(bytes("\"2 GB\""), 2000000000u);
  EXPECT_EQ(bytes("\"7kB\""), 7000u);
  for (const char* bad :
       {"\"\"", "\"MiB\"", "\"-1MiB\"", "\"1XB\"", "\"1e400\"", "\"9999999999TiB\"", "0", "-1", "1.5", "\"nanMiB\""})
    EXPECT_NE(toml_error("memory.max_host_bytes = " + std::string(bad) + "\n"), "no error") << bad;
}

TEST(Resolve, ALimitOfDeviceMemoryNeedsADevice) {
  const std::string limit = "memory.max_device_bytes = \"2GiB\"\n";
  EXPECT_EQ(from_toml("model.device = \"cuda:1\"\n" + limit).resolve().memory.max_device_bytes, uint64_t{2} << 30);
  EXPECT_EQ(from_toml("memory.max_device_bytes = \"auto\"\n").resolve().memory.max_device_bytes, std::nullopt);
  for (const char* device : {"", "model.device = \"cpu\"\n"}) {
    const std::string message = toml_error(limit + device);
    EXPECT_TRUE(message.starts_with("run.toml:2:8: memory.max_device_bytes: a limit of device memory, and "))
        << message;
    EXPECT_NE(message.find("memory.max_host_bytes"), std::string::npos) << message;
  }
}

TEST(Resolve, PathsStartFromTheFile) {
  const auto run = from_toml(
                       "model.path = \"../m\"\ntokenizer.path = \"/abs/t\"\ninput.jsonl = \"in/p.jsonl\"\n"
                       "output = { path = \"out.json\", logits_path = \"l.safetensors\" }\n"
                       "plugins = { search_path = [\"p\", \"/q\"], load = [ { path = \"x.so\" } ] }\n")
                       .resolve();
  EXPECT_EQ(run.model.path, "/m");
  EXPECT_EQ(run.tokenizer.path, "/abs/t");
  EXPECT_EQ(run.input.jsonl, "/base/in/p.jsonl");
  EXPECT_EQ(run.tokenizer.chat_template, "auto");
  EXPECT_EQ(from_toml("tokenizer.chat_template = \"c.jinja\"\n").resolve().tokenizer.chat_template, "/base/c.jinja");
  EXPECT_EQ(run.output.path, "/base/out.json");
  EXPECT_EQ(run.output.logits_path, "/base/l.safetensors");
  EXPECT_EQ(run.plugins.search_path, (std::vector<std::string>{"/base/p", "/q"}));
  ASSERT_EQ(run.plugins.load.size(), 1u);
  EXPECT_EQ(run.plugins.load[0].path, "/base/x.so");
}

TEST(Resolve, PluginLoads) {
  EXPECT_NE(toml_error("[[plugins.load]]\nname = \"a/b\"\n").find("`path` is missing"), std::string::npos);
  EXPECT_NE(toml_error("[[plugins.load]]\npath = \"a\"\nsha256 = \"12\"\n").find("expected 64 hex digits"),
            std::string::npos);
}

TEST(Resolve, KeysWithoutEffectAreListed) {
  const auto run = from_toml("[generation]\ntransformers_version = \"5.0\"\nlow_memory = true\n").resolve();
  EXPECT_EQ(run.without_effect, (std::vector<std::string>{"generation.low_memory", "generation.transformers_version"}));
}

TEST(Resolve, CompleteRuns) {
  EXPECT_NE(message_of([] { check_complete(Config().resolve()); }).find("model.path: no model is named"),
            std::string::npos);
  const auto check = [](std::string_view text) {
    return message_of([&] { check_complete(from_toml(text).resolve()); });
  };
  EXPECT_NE(check("model.path = \"m\"\n").find("nothing to generate from"), std::string::npos);
  EXPECT_EQ(check("model.path = \"m\"\nrun.task = \"plan\"\n"), "no error");
  EXPECT_EQ(check("model.path = \"m\"\ninput.jsonl = \"x\"\n"), "no error");
}

}  // namespace
}  // namespace kvplug::config
