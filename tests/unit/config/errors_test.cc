// SPDX-License-Identifier: Apache-2.0
// Messages word by word: they are what the user sees of this room.
#include <gtest/gtest.h>

#include "config_testing.h"

namespace kvplug::config {
namespace {

// The sample of docs/run-file.md.
TEST(Errors, MisspeltCacheOption) {
  const KindTable kinds = table_of_kinds();
  const std::string text =
      "[model]\npath = \"m\"\n\n[[prompts]]\ntext = \"a\"\n\n[generation]\nmax_new_tokens = 4\n"
      "cache_implementation = \"quantized\"\n\n[generation.cache_config]\nnbits = 4\nq_groupsize = 64\n";
  EXPECT_EQ(toml_error(text, &kinds),
            "run.toml:14: generation.cache_config.q_groupsize: unknown key\n"
            "  did you mean `q_group_size`? (keys of \"quantized\": backend, nbits, nbits_key, ...)");
}

TEST(Errors, KeyOfAnotherKind) {
  const KindTable kinds = table_of_kinds();
  EXPECT_EQ(toml_error("[generation.cache_config]\nnbits = 4\n", &kinds),
            "run.toml:3: generation.cache_config.nbits: a key of \"quantized\", not of \"dynamic\"\n"
            "  remove the key, or use cache_implementation = \"quantized\" (keys of \"dynamic\": none)");
}

TEST(Errors, WrongOptionValues) {
  const KindTable kinds = table_of_kinds();
  const std::string head = "generation.cache_implementation = \"quantized\"\ngeneration.cache_config.";
  EXPECT_NE(toml_error(head + "nbits = \"4\"\n", &kinds).find("run.toml:3:25: generation.cache_config.nbits: "),
            std::string::npos);
  EXPECT_NE(toml_error(head + "nbits = 9\n", &kinds).find("9 is above the maximum of 8"), std::string::npos);
  EXPECT_EQ(toml_error(head + "backend = \"foo\"\n", &kinds),
            "run.toml:3:25: generation.cache_config.backend: quantizer \"foo\" not found\n"
            "  known quantizers: fp8, hqq, quanto\n  searched: /plugins");
  EXPECT_NE(toml_error(head + "nbits = [4]\n", &kinds).find("expected a number, string, true or false, got a list"),
            std::string::npos);
  EXPECT_EQ(from_toml(head + "backend = \"HQQ\"\n").resolve(&kinds).generation.cache_config["backend"], "hqq");
}

// HF's rule, and the sample of docs/run-file.md.
TEST(Errors, BackEndsWithoutGroups) {
  const KindTable kinds = table_of_kinds();
  for (const char* key :
       {"nbits", "axis_key", "axis_value", "q_group_size", "residual_length", "nbits_key", "nbits_value"}) {
    const std::string text =
        std::string("[generation]\ncache_implementation = \"quantized\"\n[generation.cache_config]\n") + key +
        " = 0\nbackend = \"FP8\"\n";
    EXPECT_EQ(toml_error(text, &kinds), std::string("run.toml:5: generation.cache_config.") + key +
                                            ": backend \"fp8\" has no groups and takes no " + key +
                                            "\n  remove the key, or use backend = \"quanto\" or \"hqq\"");
  }
  EXPECT_EQ(toml_error("generation = { cache_implementation = \"quantized\", cache_config = { backend = \"fp8\", "
                       "sink_tokens = 4, fp8_format_key = \"e5m2\", hf_compat = \"strict\" } }\n",
                       &kinds),
            "no error");
}

TEST(Errors, KeyOfAnotherBackEnd) {
  const KindTable kinds = table_of_kinds();
  EXPECT_EQ(
      toml_error("generation.cache_implementation = \"quantized\"\ngeneration.cache_config.fp8_format = \"e4m3\"\n",
                 &kinds),
      "run.toml:3:25: generation.cache_config.fp8_format: a key of backend \"fp8\", not of \"quanto\"\n"
      "  remove the key, or use backend = \"fp8\" (keys of \"quantized\" with \"quanto\": backend, nbits, nbits_key, "
      "nbits_value, axis, axis_key, axis_value, q_group_size, q_group_size_key, q_group_size_value, residual_length, "
      "sink_tokens, hf_compat)");
}

TEST(Errors, UnknownKinds) {
  const KindTable kinds = table_of_kinds();
  const auto message = [&](const std::string& word) {
    return toml_error("generation.cache_implementation = \"" + word + "\"\n", &kinds);
  };
  for (const char* word : {"paged", "foo", "Static", "", "static", "sliding_window", "acme/kivi2"})
    EXPECT_TRUE(message(word).starts_with("run.toml:2:12: generation.cache_implementation: ")) << message(word);
  EXPECT_NE(message("quantised").find("did you mean \"quantized\"?"), std::string::npos);
  EXPECT_NE(message("static").find("is not part of this release"), std::string::npos);
  EXPECT_NE(message("acme/kivi2").find("searched: /plugins"), std::string::npos);
  EXPECT_NE(message("paged").find("refused"), std::string::npos);
}

TEST(Errors, UnknownKeysPointElsewhere) {
  EXPECT_EQ(toml_error("[run]\ntop_p = 0.9\n"),
            "run.toml:3: run.top_p: unknown key\n"
            "  did you mean `generation.top_p`? (keys of [run]: task, name, seed, deterministic, threads, log_level, "
            "on_prompt_error)");
  EXPECT_NE(toml_error("cache_implementation = \"static\"\n").find("did you mean `generation.cache_implementation`?"),
            std::string::npos);
  EXPECT_NE(toml_error("[generaton]\n").find("run.toml:2:2: generaton: unknown key\n  did you mean `generation`?"),
            std::string::npos);
  EXPECT_NE(toml_error("\"generation.top_p\" = 0.9\n").find("unknown key"), std::string::npos);
  EXPECT_NE(toml_error("[[prompts]]\ntxt = \"a\"\n")
                .find("prompts[0].txt: unknown key\n  did you mean `text`? (keys of [[prompts]]:"),
            std::string::npos);
  // Several keys in one line: the column tells which.
  EXPECT_TRUE(toml_error("generation = { max_new_tokens = 64, cache_implmentation = \"x\" }\n")
                  .starts_with("run.toml:2:37: generation.cache_implmentation: unknown key"));
}

TEST(Errors, WordsAndTypes) {
  EXPECT_EQ(toml_error("model.dtype = \"float61\"\n"),
            "run.toml:2:7: model.dtype: \"float61\" is not one of the allowed words\n"
            "  did you mean `float16`? (allowed: auto, float32, bfloat16, float16)");
  EXPECT_EQ(toml_error("generation.top_k = 5.0\n"),
            "run.toml:2:12: generation.top_k: expected an integer, got the number 5.0");
  EXPECT_EQ(toml_error("generation.top_p = true\n"), "run.toml:2:12: generation.top_p: expected a number, got true");
  EXPECT_EQ(toml_error("generation.top_p = 1.5\n"),
            "run.toml:2:12: generation.top_p: 1.5 is out of range; expected 0.0 to 1.0");
  EXPECT_EQ(toml_error("generation.top_p = nan\n"),
            "run.toml:2:12: generation.top_p: expected a finite number, got nan");
  EXPECT_EQ(toml_error("generation.max_new_tokens = 0\n"),
            "run.toml:2:12: generation.max_new_tokens: 0 is out of range; expected 1 to 2147483647");
  EXPECT_EQ(toml_error("generation.repetition_penalty = 0\n"),
            "run.toml:2:12: generation.repetition_penalty: 0 is out of range; expected more than 0.0");
  EXPECT_EQ(toml_error("generation = 3\n"), "run.toml:2: generation: expected a table, got the integer 3");
  EXPECT_EQ(toml_error("prompts = [\"a\"]\n"),
            "run.toml:2: prompts: expected a list of tables ([[prompts]]), got a list");
  EXPECT_NE(toml_error("model.device = \"cuda:first\"\n").find("names no device"), std::string::npos);
  EXPECT_NE(toml_error("[[prompts]]\ntext = \"a\"\ngeneration = { cache_implementation = \"dynamic\" }\n")
                .find("prompts[0].generation.cache_implementation: one cache serves all prompts"),
            std::string::npos);
}

TEST(Errors, BadSyntaxHasItsPlace) {
  EXPECT_TRUE(toml_error("a = = 1\n").starts_with("run.toml:2:5: not valid TOML: ")) << toml_error("a = = 1\n");
  EXPECT_TRUE(toml_error("run.seed = 1\nrun.seed = 2\n").starts_with("run.toml:3:"));
  const auto json = [](std::string_view text) {
    return message_of([&] { Config().merge_json(text, "run.json", "/base"); });
  };
  EXPECT_TRUE(json("{\n \"config_version\": 1,\n \"run\": }").starts_with("run.json:3:"))
      << json("{\n \"config_version\": 1,\n \"run\": }");
  EXPECT_TRUE(json("{\"config_version\": 1,\n\"generation\": {\n  \"top_p\": \"x\"}}")
                  .starts_with("run.json:3:3: generation.top_p: expected a number"));
  EXPECT_TRUE(
      json("{\"config_version\": 1,\n\"run\": {\"seed\": 1,\n\"seed\": 2}}").starts_with("run.json:3: run.seed: "));
}

TEST(Errors, TheVersionIsRequired) {
  EXPECT_EQ(message_of([] { Config().merge_toml("run.seed = 1", "run.toml", "/b"); }),
            "run.toml: config_version is missing\n  the first line of a run file is: config_version = 1");
  EXPECT_EQ(message_of([] { Config().merge_toml("config_version = 2", "run.toml", "/b"); }),
            "run.toml:1: config_version: 2 is out of range; expected 1");
}

TEST(Errors, AFailedMergeChangesNothing) {
  Config config = from_toml("generation.top_p = 0.5\n");
  const std::string before = config.effective_toml();
  EXPECT_THROW(config.merge_toml("config_version = 1\nrun.seed = 4\nrun.sed = 4\n", "b.toml", "/b"), Error);
  EXPECT_THROW(config.set("generation.top_p", "2"), Error);
  EXPECT_EQ(config.effective_toml(), before);
}

}  // namespace
}  // namespace kvplug::config
