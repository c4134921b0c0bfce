// SPDX-License-Identifier: Apache-2.0
// generation_config.json: strict about what is used, tolerant about the rest.
#include <gtest/gtest.h>

#include <algorithm>

#include "config_testing.h"

namespace kvplug::config {
namespace {

Config with_checkpoint(std::string_view text) {
  Config config;
  config.set_checkpoint(text);
  return config;
}

std::vector<std::string> codes(const Run& run) {
  std::vector<std::string> result;
  for (const Notice& notice : run.notices) result.push_back(notice.code);
  return result;
}

TEST(Checkpoint, AsHuggingFaceWritesThem) {
  const auto run = with_checkpoint(R"({
    "_from_model_config": true,
    "bos_token_id": 1,
    "eos_token_id": [2, 7],
    "pad_token_id": 0,
    "do_sample": true,
    "temperature": 0.6,
    "top_k": 20,
    "repetition_penalty": 1.05,
    "top_p": null,
    "num_beams": 1,
    "num_assistant_tokens_schedule": "heuristic",
    "a_key_of_the_future": {"x": [1, 2, null]},
    "transformers_version": "5.23.0"
  })")
                       .resolve();
  EXPECT_EQ(run.generation.eos_token_id, (std::vector<int64_t>{2, 7}));
  EXPECT_EQ(run.generation.bos_token_id, 1);
  EXPECT_EQ(run.generation.pad_token_id, 0);
  EXPECT_TRUE(run.generation.do_sample);
  EXPECT_EQ(run.generation.top_k, 20);
  EXPECT_EQ(run.generation.top_p, 1.0);
  EXPECT_EQ(run.generation.repetition_penalty, 1.05);
  EXPECT_TRUE(run.notices.empty());
  EXPECT_EQ(run.without_effect,
            (std::vector<std::string>{"generation._from_model_config", "generation.a_key_of_the_future",
                                      "generation.transformers_version"}));
}

TEST(Checkpoint, CallerAboveFilePerField) {
  Config config = with_checkpoint(R"({"do_sample": true, "temperature": 0.6, "top_k": 20, "eos_token_id": [2, 7]})");
  config.set("generation.temperature", "0.9");
  Generation g = config.resolve().generation;
  EXPECT_EQ(g.temperature, 0.9);
  EXPECT_EQ(g.top_k, 20);
  EXPECT_TRUE(g.do_sample);
  config.set("generation.do_sample", "false");
  config.set("generation.eos_token_id", "[]");
  const auto run = config.resolve();
  EXPECT_FALSE(run.generation.do_sample);
  EXPECT_TRUE(run.generation.eos_token_id.empty());
  EXPECT_TRUE(run.generation.eos_token_id_given);
  EXPECT_EQ(codes(run), std::vector<std::string>{"sampling_off"});
  EXPECT_NE(run.notices[0].text.find("temperature, top_k"), std::string::npos);
}

TEST(Checkpoint, KeysThatWouldChangeTheResultAreTold) {
  const auto run = with_checkpoint("{\n\"num_beams\": 4, \"guidance_scale\": 1.0}").resolve();
  ASSERT_EQ(codes(run), std::vector<std::string>{"not_built"});
  EXPECT_EQ(
      run.notices[0].text,
      "generation_config.json:2: num_beams: the integer 4 is not part of this release; the run goes on without it");
}

TEST(Checkpoint, RetiredKindsAreMapped) {
  const KindTable kinds = table_of_kinds();
  const auto run = with_checkpoint(R"({"cache_implementation": "hybrid"})").resolve(&kinds);
  EXPECT_EQ(run.generation.cache_implementation, "dynamic");
  EXPECT_EQ(run.generation.cache_source, Source::kCheckpoint);
  EXPECT_EQ(codes(run), std::vector<std::string>{"kind_mapped"});
  const std::pair<const char*, const char*> retired[] = {{"sliding_window", "static"},
                                                         {"hybrid_chunked", "static"},
                                                         {"offloaded_hybrid", "offloaded_static"},
                                                         {"offloaded_hybrid_chunked", "offloaded_static"}};
  for (const auto& [word, now] : retired)
    EXPECT_EQ(with_checkpoint("{\"cache_implementation\": \"" + std::string(word) + "\"}")
                  .resolve()
                  .generation.cache_implementation,
              now);
  for (const char* word : {"dynamic", "static", "mamba"})
    EXPECT_EQ(with_checkpoint("{\"cache_implementation\": \"" + std::string(word) + "\"}")
                  .resolve()
                  .generation.cache_implementation,
              word);
}

TEST(Checkpoint, WrongTypesAreErrorsWithAWayOut) {
  const auto error = [](std::string_view text) { return message_of([&] { with_checkpoint(text); }); };
  EXPECT_EQ(error("{\n  \"top_k\": \"20\"}"),
            "generation_config.json:2:3: generation.top_k: expected an integer, got the string \"20\"\n"
            "  correct the file, or set model.use_generation_config = false");
  EXPECT_NE(error("[]").find("expected a table"), std::string::npos);
  EXPECT_NE(error("").find("not valid JSON"), std::string::npos);
  EXPECT_NE(error(R"({"temperature": -1})").find("out of range"), std::string::npos);
  EXPECT_NE(error(R"({"eos_token_id": [1, null]})").find("expected an integer, got null"), std::string::npos);
  EXPECT_EQ(with_checkpoint(R"({"top_k": 1, "top_k": 2})").resolve().generation.top_k, 2);
}

}  // namespace
}  // namespace kvplug::config
