// SPDX-License-Identifier: Apache-2.0
// Caches that take quantizers, through the program: run, plan, explain, check. The test plugin stores exactly, so that
// what the host does with its quantizers is all there is to see; `quantized` itself where the host attends for it.
#include "integration/run_file.h"

namespace kvplug::testing {
namespace {

std::string quantized_run(const std::string& options, const std::string& more = "") {
  return llama_run("generation.cache_implementation = \"test/quantized\"\ngeneration.cache_config = { " + options +
                   " }\nplugins.search_path = [\"" + KVPLUG_TEST_BUILD "/misbehaving/quantized\"]\n" + more);
}

json document(const std::string& command, const std::string& text) {
  const RunFile file(text);
  const Outcome got = kvplug_program({command, file.path(), "--json"});
  EXPECT_EQ(got.exit_code, 0) << got.err;
  return got.exit_code == 0 ? json::parse(got.out) : json();
}

TEST(Quantized, RunNamesTheQuantizers) {
  const json got = document("run", quantized_run("backend = \"Test/Q\", nbits_key = 2"));
  EXPECT_EQ(got["results"][0]["sequences"][0]["token_ids"], json(kAnswer));
  const json& stack = got["cache"]["stack"][0];
  EXPECT_EQ(stack["plugin"], "test/quantized");
  EXPECT_EQ(stack["quantizer_key"], "test/q");
  EXPECT_EQ(stack["quantizer_value"], "test/q");
  EXPECT_EQ(got["cache"]["counters"]["key_levels"], 4);
  EXPECT_EQ(got["cache"]["counters"]["value_levels"], 16);
}

TEST(Quantized, PlanTellsWhatTheCacheIsMadeWith) {
  const json got = document("plan", quantized_run("residual_length = 4, nbits_value = 8"));
  EXPECT_EQ(got["choices"][0]["backend"], "test/q");
  EXPECT_EQ(got["choices"][0]["key"]["nbits"], 4);
  EXPECT_EQ(got["choices"][0]["value"]["nbits"], 8);
  EXPECT_EQ(got["packed_tokens"], got["tokens"].get<int>() - 4);

  const RunFile file(quantized_run("residual_length = 4, nbits_value = 8"));
  const Outcome text = kvplug_program({"plan", file.path()});
  EXPECT_NE(text.out.find("test/quantized (test/q, K 4 bit, V 8 bit, residual 4)"), std::string::npos) << text.out;
}

TEST(Quantized, ExplainNamesThemAndAdvises) {
  const RunFile file(quantized_run("residual_length = 32"));
  const Outcome got = kvplug_program({"explain", file.path()});
  EXPECT_NE(got.out.find("test/quantized test/q"), std::string::npos) << got.out;
  EXPECT_NE(got.out.find("lower residual_length (now 32) first"), std::string::npos) << got.out;
}

TEST(Quantized, ExplainAndRunSayTheSameOfStrictAttention) {
  const std::string strict = llama_run(
      "generation.cache_implementation = \"quantized\"\n"
      "generation.cache_config = { hf_compat = \"strict\", q_group_size = 8 }\n");
  const json layer = document("explain", strict)["cache"]["layers"][0];
  const json run = document("run", strict)["cache"];
  EXPECT_EQ(layer["attend"], "view");
  EXPECT_EQ(layer["reason"], "\"quantized\" with this cache_config leaves attention to the host");
  EXPECT_EQ(run["stack"][0]["attend"], "view");
  EXPECT_EQ(run["counters"]["fused_attend_calls"], 0);
  const std::string fixed =
      llama_run("generation.cache_implementation = \"quantized\"\ngeneration.cache_config = { q_group_size = 8 }\n");
  EXPECT_EQ(document("explain", fixed)["cache"]["layers"][0]["attend"], "fused");

  const RunFile required(strict + "cache.negotiation.require = [\"fused_attention\"]\n");
  for (const char* command : {"plan", "explain", "run"}) {
    expect_error(kvplug_program({command, required.path()}), 6,
                 {"required capability fused_attention is not there", layer["reason"].get<std::string>()});
  }
}

TEST(Quantized, CheckRefusesWhatTheBackEndLacks) {
  const RunFile file(quantized_run("backend = \"test/q8\", nbits = 4"));
  const Outcome got = kvplug_program({"check", file.path()});
  EXPECT_EQ(got.exit_code, 2);
  EXPECT_NE(got.err.find("generation.cache_config.nbits: backend \"test/q8\" has no groups and takes no nbits"),
            std::string::npos)
      << got.err;
}

TEST(Quantized, FlagsReachTheQuantizers) {
  const RunFile file(quantized_run(""));
  const Outcome got =
      kvplug_program({"plan", file.path(), "--kv-bits", "2", "--kv-bits-value=8", "--residual-length", "7"});
  EXPECT_NE(got.out.find("(test/q, K 2 bit, V 8 bit, residual 7)"), std::string::npos) << got.out << got.err;
}

}  // namespace
}  // namespace kvplug::testing
