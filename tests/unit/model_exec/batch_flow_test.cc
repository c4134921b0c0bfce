// SPDX-License-Identifier: Apache-2.0
// The golden flow/batch cases: a prompt and one token, then the rows are reordered, repeated or selected, and one more
// token a row is computed. Under every lossless kind it must be what a run without a cache gives.
#include <gtest/gtest.h>

#include <cmath>

#include "core/registry.h"
#include "model/exec/parallel.h"
#include "support/safetensors.h"
#include "tiny_model.h"

namespace kvplug::model {
namespace {

using testing::golden;
using testing::load;
using Rows = std::vector<std::vector<int32_t>>;

Registry& registry() {
  static Registry* const all = [] {
    auto* host = new HostServices();
    host->set_parallel(torch_parallel());
    auto* made = new Registry(*host);
    made->add_search_path(std::filesystem::path(KVPLUG_TEST_BUILD) / "plugins");
    return made;
  }();
  return *all;
}

std::unique_ptr<CacheStack> make_stack(const PackedModel& model, const std::string& kind) {
  CacheChoice choice;
  choice.kind = kind;
  StackParams params;
  params.dtype = model.options.dtype;
  if (kind.ends_with("static")) params.tokens = 64;
  if (kind.starts_with("offloaded")) {
    choice.options = {{"disk_path", std::filesystem::temp_directory_path().string()},
                      {"offload_only_non_sliding", false}};
  }
  return CacheStack::create(registry(), model.description.cache_layers(), choice, params);
}

std::vector<float> feed(StepRunner& runner, CacheStack& stack, const Rows& rows, int64_t vocab) {
  std::vector<int32_t> ids;
  for (const auto& row : rows) ids.insert(ids.end(), row.begin(), row.end());
  std::vector<float> logits(rows.size() * static_cast<size_t>(vocab));
  const ForwardInput input{
      .ids = ids.data(), .batch = static_cast<int64_t>(rows.size()), .tokens = static_cast<int64_t>(rows[0].size())};
  runner.forward(input, &stack, logits.data());
  return logits;
}

std::vector<int64_t> source_rows(const nlohmann::json& c) {
  if (c["arg"].is_array()) return c["arg"];
  std::vector<int64_t> rows;  // batch_repeat_interleave
  for (size_t b = 0; b < c["input_ids"].size(); ++b)
    rows.insert(rows.end(), c["arg"].get<size_t>(), static_cast<int64_t>(b));
  return rows;
}

class BatchFlow : public ::testing::TestWithParam<const char*> {};

TEST_P(BatchFlow, EqualsARunWithoutACache) {
  const std::string name = GetParam();
  const auto model = load(name);
  const int64_t vocab = model->description.vocab_size;
  const auto file = golden(name);
  const auto tensors = testing::read_safetensors(testing::data("golden/generate/" + name + ".safetensors"));
  const kvp_call call = Attention::call();
  int cases = 0;
  for (const auto& c : file["cases"]) {
    const std::string id = c["id"];
    if (!id.starts_with(name + "/flow/batch/dynamic/")) continue;
    ++cases;
    const std::vector<float> want = tensors.at(c["no_cache_logits"]).floats();
    std::vector<float> first;
    for (const char* kind : {"dynamic", "static", "offloaded", "offloaded_static"}) {
      SCOPED_TRACE(id + " on " + kind);
      const auto stack = make_stack(*model, kind);
      const std::vector<int64_t> source = source_rows(c);
      StepRunner runner(model,
                        {.max_batch = std::max<int64_t>(3, static_cast<int64_t>(source.size())), .max_query = 64},
                        stack.get());
      feed(runner, *stack, c["input_ids"], vocab);
      feed(runner, *stack, c["then"], vocab);
      stack->gather(call, source);
      const std::vector<float> got = feed(runner, *stack, c["after_op"], vocab);
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], c["atol"].get<double>()) << i;
      if (first.empty()) first = got;
      ASSERT_EQ(got, first) << "not the bits of dynamic";
    }
  }
  EXPECT_EQ(cases, 3);
}

INSTANTIATE_TEST_SUITE_P(Families, BatchFlow,
                         ::testing::Values("llama", "llama_rope3", "qwen2", "qwen3", "mistral", "gemma2",
                                           "llama4_text"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace kvplug::model
