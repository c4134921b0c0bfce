// SPDX-License-Identifier: Apache-2.0
// Forward passes on a cache: over views, fused in the plugin `dynamic`, whole prompts and pieces, padded and ragged
// rows.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "core/registry.h"
#include "model/exec/parallel.h"
#include "tiny_model.h"
#include "view_stack.h"

namespace kvplug::model {
namespace {

using testing::find_case;
using testing::golden;
using testing::load;
using testing::ViewStack;

// A runner on a cache of its own.
class Session {
 public:
  Session(std::shared_ptr<const PackedModel> model, std::unique_ptr<CacheStack> stack, int64_t batch, int64_t query)
      : model_(std::move(model)),
        stack_(std::move(stack)),
        runner_(model_, {.max_batch = batch, .max_query = query}, stack_.get()) {}

  // rows: one sequence each, of one length.
  std::vector<float> feed(const std::vector<std::vector<int32_t>>& rows, const std::vector<int64_t>& pad = {},
                          const std::vector<int64_t>& count = {}) {
    std::vector<int32_t> ids;
    for (const auto& row : rows) ids.insert(ids.end(), row.begin(), row.end());
    std::vector<float> logits(rows.size() * vocab());
    const ForwardInput input{.ids = ids.data(),
                             .batch = static_cast<int64_t>(rows.size()),
                             .tokens = static_cast<int64_t>(rows[0].size()),
                             .pad = pad.empty() ? nullptr : pad.data(),
                             .count = count.empty() ? nullptr : count.data()};
    runner_.forward(input, stack_.get(), logits.data());
    return logits;
  }
  size_t vocab() const { return static_cast<size_t>(model_->description.vocab_size); }
  CacheStack& stack() { return *stack_; }
  const Runner& runner() const { return runner_; }

 private:
  const std::shared_ptr<const PackedModel> model_;
  const std::unique_ptr<CacheStack> stack_;
  StepRunner runner_;
};

Registry& registry() {
  static Registry* const all = [] {
    auto* host = new HostServices();
    host->set_parallel(torch_parallel());
    auto* made = new Registry(*host);
    made->load(std::filesystem::path(KVPLUG_TEST_BUILD) / "plugins/dynamic.toml");
    return made;
  }();
  return *all;
}

std::unique_ptr<CacheStack> make_stack(const PackedModel& model, bool fused) {
  const auto layers = model.description.cache_layers();
  if (!fused) return std::make_unique<ViewStack>(layers);
  return CacheStack::create(registry(), layers, {}, {.dtype = model.options.dtype});
}

class OnCache : public ::testing::TestWithParam<bool> {
 protected:
  static Session session(const std::shared_ptr<const PackedModel>& model, int64_t batch, int64_t query) {
    return {model, make_stack(*model, GetParam()), batch, query};
  }
};

std::vector<std::vector<int32_t>> greedy(const std::vector<float>& logits, size_t batch) {
  std::vector<std::vector<int32_t>> next;
  const size_t vocab = logits.size() / batch;
  for (size_t b = 0; b < batch; ++b) {
    const float* row = logits.data() + b * vocab;
    next.push_back({static_cast<int32_t>(std::max_element(row, row + vocab) - row)});
  }
  return next;
}

TEST_P(OnCache, GreedyTokensAreThoseOfTransformers) {
  for (const char* name :
       {"llama", "llama_rope3", "qwen2", "qwen3", "llama_bf16", "llama_fp16", "mistral", "gemma2", "llama4_text"}) {
    const auto model = load(name);
    const auto file = golden(name);
    for (const char* prompt : {"single", "batch3", "long"}) {
      const auto& one = find_case(file, std::string(name) + "/dynamic/" + prompt + "/greedy");
      if (!one.at("token_exact").get<bool>()) continue;
      std::vector<std::vector<int32_t>> rows = one.at("input_ids");
      const std::vector<std::vector<int32_t>> mask = one.at("attention_mask"), expected = one.at("sequences");
      std::vector<int64_t> pad;
      for (const auto& row : mask) pad.push_back(std::count(row.begin(), row.end(), 0));
      Session s = session(model, static_cast<int64_t>(rows.size()), static_cast<int64_t>(rows[0].size()));
      auto logits = s.feed(rows, pad);
      for (;;) {
        const auto next = greedy(logits, rows.size());
        for (size_t b = 0; b < rows.size(); ++b) rows[b].push_back(next[b][0]);
        if (rows[0].size() == expected[0].size()) break;
        logits = s.feed(next);
      }
      EXPECT_EQ(rows, expected) << one.at("id");
    }
  }
}

TEST_P(OnCache, DeterministicPromptsInPiecesAndPaddedGiveTheSameBits) {
  for (const char* name : {"llama", "llama_bf16"}) {
    const auto model = load(name, true);
    std::vector<int32_t> prompt(150);
    for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(1 + i * 31 % 200);
    Session whole = session(model, 1, 150);
    const auto expected = whole.feed({prompt});
    const auto expected_next = whole.feed({{17}});

    Session pieces = session(model, 1, 70);
    std::vector<float> last;
    for (size_t at = 0; at < 150; at += 70) {
      const auto begin = prompt.begin() + static_cast<int64_t>(at);
      last = pieces.feed({{begin, begin + std::min<int64_t>(70, 150 - static_cast<int64_t>(at))}});
    }
    EXPECT_EQ(last, expected) << name;
    EXPECT_EQ(pieces.feed({{17}}), expected_next) << name;

    // The same row behind 5 tokens of padding, below a longer one.
    std::vector<int32_t> longer(155, 9), padded(5, 0);
    padded.insert(padded.end(), prompt.begin(), prompt.end());
    Session batch = session(model, 2, 155);
    const auto both = batch.feed({longer, padded}, {0, 5});
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(), both.begin() + static_cast<int64_t>(batch.vocab())))
        << name;
    const auto next = batch.feed({{4}, {17}});
    EXPECT_TRUE(
        std::equal(expected_next.begin(), expected_next.end(), next.begin() + static_cast<int64_t>(batch.vocab())))
        << name;
  }
}

TEST_P(OnCache, RaggedRowsContinueWhereTheyEnded) {
  const auto model = load("llama", true);
  Session ragged = session(model, 2, 4);
  ragged.feed({{5, 6, 7, 8}, {9, 10, 0, 0}}, {}, {4, 2});
  const auto both = ragged.feed({{11}, {12}});
  Session a = session(model, 1, 4), b = session(model, 1, 4);
  a.feed({{5, 6, 7, 8}});
  b.feed({{9, 10}});
  auto apart = a.feed({{11}});
  const auto more = b.feed({{12}});
  apart.insert(apart.end(), more.begin(), more.end());
  EXPECT_EQ(both, apart);
}

TEST_P(OnCache, ThreadsChangeNoBitOfADeterministicRun) {
  std::vector<int32_t> prompt(300);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(1 + i * 7 % 200);
  std::vector<std::vector<float>> results;
  for (const int threads : {1, 2, 3}) {
    const Description description = describe_model(testing::data("models/llama"));
    const auto model = std::make_shared<const PackedModel>(
        description, LoadOptions{.dtype = description.checkpoint_dtype, .threads = threads, .deterministic = true},
        Progress());
    Session s = session(model, 1, 300);
    auto logits = s.feed({prompt});
    const auto next = s.feed({{3}});
    logits.insert(logits.end(), next.begin(), next.end());
    results.push_back(logits);
  }
  use_threads(1);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

INSTANTIATE_TEST_SUITE_P(Ways, OnCache, ::testing::Bool(),
                         [](const auto& one) { return std::string(one.param ? "fused" : "views"); });

TEST(Cache, FusedAndViewsGiveTheSameBits) {
  const auto model = load("qwen3");
  Session fused(model, make_stack(*model, true), 1, 130), views(model, make_stack(*model, false), 1, 130);
  std::vector<int32_t> prompt(130);
  for (size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<int32_t>(i);
  EXPECT_EQ(fused.feed({prompt}), views.feed({prompt}));
  EXPECT_EQ(fused.feed({{3}}), views.feed({{3}}));
  EXPECT_GT(fused.stack().counters().at("fused_attend_calls").get<int>(), 0);
}

TEST(Cache, AStepThatFailsIsTakenBack) {
  const auto model = load("llama");
  auto stack = std::make_unique<ViewStack>(model->description.cache_layers());
  ViewStack& views = *stack;
  Session s(model, std::move(stack), 1, 4);
  s.feed({{1, 2, 3}});
  views.fail_at_layer = 1;
  try {
    s.feed({{4}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kOutOfMemory);
  }
  EXPECT_EQ(views.begun, 2);
  EXPECT_EQ(views.ended, 1);
  EXPECT_EQ(views.aborted, 1);
  EXPECT_EQ(views.seen(), 3);
  views.fail_at_layer = -1;
  Session fresh(model, std::make_unique<ViewStack>(model->description.cache_layers()), 1, 4);
  fresh.feed({{1, 2, 3}});
  EXPECT_EQ(s.feed({{4}}), fresh.feed({{4}}));
}

TEST(Cache, ADecodeStepTakesNoScratch) {
  const auto model = load("llama");
  Session s(model, make_stack(*model, true), 1, 8);
  s.feed({{1, 2, 3, 4, 5, 6, 7, 8}});
  const uint64_t before = s.runner().scratch_bytes();
  for (int32_t i = 0; i < 200; ++i) s.feed({{i % 200}});
  EXPECT_EQ(s.runner().scratch_bytes(), before);
}

}  // namespace
}  // namespace kvplug::model
