// SPDX-License-Identifier: Apache-2.0
// Forward passes of tiny checkpoints, without a cache, against logits and tokens of Hugging Face Transformers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "core/error.h"
#include "model/exec/explain.h"
#include "support/safetensors.h"
#include "tiny_model.h"

namespace kvplug::model {
namespace {

using nlohmann::json;
using testing::all_logits;
using testing::find_case;
using testing::golden;
using testing::load;

class GoldenForward : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenForward, LogitsOfEveryPosition) {
  const std::string name = GetParam();
  const json file = golden(name);
  const json& one = find_case(file, name + "/forward/single");
  const auto tensors =
      testing::read_safetensors(testing::data("golden/generate/" + file.at("tensors").get<std::string>()));
  const auto expected = tensors.at(one.at("logits")).floats();
  const auto logits = all_logits(load(name), one.at("input_ids").at(0), 1);
  ASSERT_EQ(logits.size(), expected.size());
  float worst = 0;
  for (size_t i = 0; i < logits.size(); ++i) worst = std::max(worst, std::abs(logits[i] - expected[i]));
  EXPECT_LE(worst, one.at("atol").get<float>());
  RecordProperty("worst", std::to_string(worst));
}

// Left-padded rows and a growing sequence, whole at every step.
TEST_P(GoldenForward, GreedyTokensWithoutACache) {
  const std::string name = GetParam();
  const json file = golden(name);
  const auto model = load(name);
  int checked = 0;
  for (const json& one : file.at("cases")) {
    const std::string id = one.at("id");
    const bool wanted = id.ends_with("/dynamic/single/greedy") || id.ends_with("/dynamic/batch3/greedy");
    if (!wanted || !one.at("token_exact").get<bool>()) continue;
    ++checked;
    const std::vector<std::vector<int32_t>> mask = one.at("attention_mask"), expected = one.at("sequences");
    std::vector<std::vector<int32_t>> rows = one.at("input_ids");
    const auto batch = static_cast<int64_t>(rows.size());
    std::vector<int64_t> pad;
    for (const auto& row : mask) pad.push_back(std::count(row.begin(), row.end(), 0));
    const auto last = static_cast<int64_t>(expected[0].size());
    StepRunner runner(model, {.max_batch = batch, .max_query = last, .use_cache = false}, nullptr);
    const auto vocab = static_cast<size_t>(model->description.vocab_size);
    std::vector<float> logits(static_cast<size_t>(batch) * vocab);
    while (static_cast<int64_t>(rows[0].size()) < last) {
      std::vector<int32_t> ids;
      for (const auto& row : rows) ids.insert(ids.end(), row.begin(), row.end());
      const ForwardInput input{
          .ids = ids.data(), .batch = batch, .tokens = static_cast<int64_t>(rows[0].size()), .pad = pad.data()};
      runner.forward(input, nullptr, logits.data());
      for (size_t b = 0; b < rows.size(); ++b) {
        const float* row = logits.data() + b * vocab;
        rows[b].push_back(static_cast<int32_t>(std::max_element(row, row + vocab) - row));
      }
    }
    EXPECT_EQ(rows, expected) << id;
  }
  if (model->type == Type::kFloat32) {
    EXPECT_GE(checked, 1);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenForward,
                         ::testing::Values("llama", "llama_rope3", "llama_sharded", "llama_bf16", "llama_fp16", "qwen2",
                                           "qwen3", "mistral", "gemma2", "llama4_text"),
                         [](const auto& one) { return std::string(one.param); });

TEST(Forward, LastLogitsEqualThoseOfThatPosition) {
  const auto model = load("llama", true);
  const std::vector<int32_t> ids = {1, 5, 9, 200, 33, 7, 8, 60, 61, 62};
  const auto vocab = static_cast<size_t>(model->description.vocab_size);
  const auto all = all_logits(model, ids, 2);
  StepRunner runner(model, {.max_batch = 2, .max_query = 5, .use_cache = false}, nullptr);
  const std::vector<int64_t> count = {3, 5};
  const ForwardInput input{.ids = ids.data(), .batch = 2, .tokens = 5, .count = count.data()};
  std::vector<float> last(2 * vocab);
  runner.forward(input, nullptr, last.data());
  EXPECT_TRUE(std::equal(last.begin(), last.begin() + static_cast<int64_t>(vocab),
                         all.begin() + 2 * static_cast<int64_t>(vocab)));
  EXPECT_TRUE(std::equal(last.begin() + static_cast<int64_t>(vocab), last.end(),
                         all.begin() + 9 * static_cast<int64_t>(vocab)));
}

class Deterministic : public ::testing::TestWithParam<const char*> {};

// The same tokens alone, in a batch, and as the beginning of a longer prompt.
TEST_P(Deterministic, ARowDoesNotDependOnOtherRows) {
  const auto model = load(GetParam(), true);
  std::vector<int32_t> ids(3 * 21);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * 37 % 250);
  const auto vocab = static_cast<size_t>(model->description.vocab_size);
  const auto together = all_logits(model, ids, 3);
  for (size_t row = 0; row < 3; ++row) {
    for (const size_t tokens : {size_t{21}, size_t{10}, size_t{1}}) {
      const auto begin = ids.begin() + static_cast<int64_t>(row * 21);
      const auto alone = all_logits(model, {begin, begin + static_cast<int64_t>(tokens)}, 1);
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + static_cast<int64_t>(row * 21 * vocab)))
          << row << " " << tokens;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Deterministic,
                         ::testing::Values("llama", "llama_bf16", "llama_fp16", "qwen2", "mistral", "gemma2",
                                           "llama4_text"),
                         [](const auto& one) { return std::string(one.param); });

TEST(Forward, ReadingInsteadOfMappingGivesTheSameBits) {
  const std::vector<int32_t> ids = {3, 1, 4, 1, 5, 9, 2, 6};
  for (const char* name : {"llama_sharded", "llama4_text"}) {
    EXPECT_EQ(all_logits(load(name), ids, 1), all_logits(load(name, false, false), ids, 1)) << name;
  }
}

TEST(Forward, AStepLargerThanPreparedIsRefused) {
  const auto model = load("llama");
  StepRunner runner(model, {.max_batch = 1, .max_query = 4, .use_cache = false}, nullptr);
  const std::vector<int32_t> ids(5, 1);
  std::vector<float> logits(static_cast<size_t>(model->description.vocab_size));
  const ForwardInput input{.ids = ids.data(), .batch = 1, .tokens = 5};
  try {
    runner.forward(input, nullptr, logits.data());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kInvalidArgument);
    EXPECT_EQ(error.message(), "a step of 1 x 5 tokens, prepared for at most 1 x 4");
  }
}

TEST(Forward, LoadingCanBeCancelled) {
  const Description description = describe_model(testing::data("models/llama"));
  int calls = 0;
  const Progress progress = [&](uint64_t, uint64_t) { return ++calls < 3; };
  try {
    PackedModel model(description, {.dtype = description.checkpoint_dtype}, progress);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kCancelled);
  }
  EXPECT_EQ(calls, 3);
}

TEST(Forward, ExplainNamesWhatComputes) {
  const auto model = load("llama");
  const json explained = explain_model(model->description, model->options);
  ASSERT_EQ(explained.at("linear").size(), 5u);
  // What is told from shapes is what was chosen for the weights.
  const Linear* const chosen[] = {&model->layers[0].qkv, &model->layers[0].o, &model->layers[0].gate_up,
                                  &model->layers[0].down, &model->lm_head};
  for (size_t i = 0; i < 5; ++i) {
    const json& linear = explained["linear"][i];
    const LinearKind& kind = model->kind_at(*chosen[i]);
    EXPECT_EQ(linear.at("shape"), json({kind.shape().in, kind.shape().out})) << linear;
    EXPECT_EQ(linear.at("backend"), kind.backend()) << linear;
    EXPECT_EQ(linear.at("implementation"), kind.implementation(1)) << linear;
    EXPECT_NE(linear.at("implementation").get<std::string>().substr(0, 3), "ref") << linear;
  }
}

TEST(Forward, ExplainSaysWhatEachLayerIs) {
  const auto layers = [](const char* name) {
    const Description description = describe_model(testing::data(std::string("models/") + name));
    return explain_model(description, {.dtype = description.checkpoint_dtype}).at("layers");
  };
  EXPECT_EQ(layers("llama")[1], json({{"attention", "full"}, {"rope", true}, {"mlp", 96}}));
  EXPECT_EQ(layers("gemma2")[0]["attention"], "sliding window of 8");
  EXPECT_EQ(layers("gemma2")[1]["attention"], "full");
  const json llama4 = layers("llama4_text");
  EXPECT_EQ(llama4[0], json({{"attention", "chunks of 8"}, {"rope", true}, {"mlp", 48}}));
  const json experts = {{"count", 4}, {"per_token", 1}, {"mlp", 24}};
  EXPECT_EQ(llama4[3], json({{"attention", "full"}, {"rope", false}, {"mlp", 24}, {"experts", experts}}));
}

TEST(Forward, ExplainCountsExperts) {
  const Description description = describe_model(testing::data("models/llama4_text"));
  const json linears = explain_model(description, {.dtype = description.checkpoint_dtype}).at("linear");
  std::map<std::pair<std::string, int64_t>, size_t> counts;  // by name and inputs
  for (const json& one : linears) counts[{one["name"], one["shape"][0]}] += one["count"].get<size_t>();
  EXPECT_EQ((counts[{"qkv_proj", 32}]), 4u);
  EXPECT_EQ((counts[{"down_proj", 48}]), 2u);  // dense
  EXPECT_EQ((counts[{"down_proj", 24}]), 2u);  // shared
  EXPECT_EQ((counts[{"router", 32}]), 2u);
  EXPECT_EQ((counts[{"experts.gate_up_proj", 32}]), 8u);
  EXPECT_EQ((counts[{"experts.down_proj", 24}]), 8u);
}

}  // namespace
}  // namespace kvplug::model
