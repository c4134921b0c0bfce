// SPDX-License-Identifier: Apache-2.0
// Recorded decode steps on device "cpu": the runner for accelerators with `static` on the emulator, and in place of a
// CUDA graph one that keeps the work and does it again, so that a replay sees nothing but memory. What only a device
// can show is that CUDA records it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "core/accounts.h"
#include "core/error.h"
#include "core/registry.h"
#include "model/exec/device_model.h"
#include "support/translated_stack.h"
#include "unit/model_exec/tiny_model.h"

namespace kvplug::model {
namespace {

using testing::TranslatedStack;

struct Recordings {
  int made = 0, replays = 0;
  bool fails = false;
};

class Repeated final : public StepGraph {
 public:
  explicit Repeated(Recordings& all) : all_(all) { ++all_.made; }
  void record(const std::function<void()>& work) override {
    if (all_.fails) throw std::runtime_error("an operation cannot be recorded");
    work_ = work;
  }
  void replay() override {
    ++all_.replays;
    work_();
  }

 private:
  Recordings& all_;
  std::function<void()> work_;
};

std::shared_ptr<const DeviceModel> load(const std::string& name) {
  const Description description = describe_model(testing::data("models/" + name));
  return std::make_shared<const DeviceModel>(
      description, LoadOptions{.dtype = description.checkpoint_dtype, .threads = 1}, open_device("cpu"), Progress());
}

Registry& registry() {
  static Registry* const all = [] {
    EngineAllocator plain;
    plain.alloc = [](void*, const kvp_mem* mem, void** block, kvp_error*) -> int32_t {
      *block = std::aligned_alloc(256, (mem->bytes + 255) / 256 * 256);
      return *block == nullptr ? KVP_OUT_OF_MEMORY : KVP_OK;
    };
    plain.free = [](void*, const kvp_mem*, void* block) { std::free(block); };
    Accounts::get().set_device_allocator(plain);
    auto* made = new Registry(*new HostServices());
    for (const char* file : {"dynamic.toml", "static.toml"}) {
      made->load(std::filesystem::path(KVPLUG_TEST_BUILD) / "plugins_emulated" / file);
    }
    return made;
  }();
  return *all;
}

std::unique_ptr<CacheStack> stack_of(const DeviceModel& model, const std::string& kind, int64_t tokens) {
  const std::vector<kvp_layer> layers = model.description.cache_layers();
  StackParams params{.batch = 2, .tokens = tokens, .dtype = model.options.dtype};
  place(params, "cuda");
  CacheChoice choice;
  choice.kind = kind;
  return std::make_unique<TranslatedStack>(CacheStack::create(registry(), layers, choice, params));
}

kvp_call plain_call() { return device_call(at::Device(at::kCPU)); }

// One generation by a runner and a stack: a left-padded prompt of two rows, then tokens of which each row takes one.
class Rows {
 public:
  Rows(std::shared_ptr<const DeviceModel> model, const std::string& kind, Recordings* recordings, int64_t tokens = 64)
      : stack(stack_of(*model, kind, tokens)),
        vocab_(static_cast<size_t>(model->description.vocab_size)),
        runner_(make_device_runner(
            model, {.max_batch = 2, .max_query = 8}, stack.get(), recordings == nullptr ? GraphMaker() : [recordings] {
              return std::unique_ptr<StepGraph>(new Repeated(*recordings));
            })) {
    stack->reserve(plain_call(), 2, tokens);
    const int32_t ids[] = {5, 6, 7, 8, 9, 10, 11, 12, 1, 1, 1, 13, 14, 15, 16, 17};
    const int64_t pad[] = {0, 3};
    std::vector<float> logits(2 * vocab_);
    runner_->forward({.ids = ids, .batch = 2, .tokens = 8, .pad = pad}, stack.get(), logits.data());
  }

  std::vector<float> step(int32_t id, bool second_row_takes = true) {
    const int32_t ids[] = {id, id + 1};
    const int64_t pad[] = {0, 0}, count[] = {1, second_row_takes ? 1 : 0};
    std::vector<float> logits(2 * vocab_);
    const ForwardInput input{.ids = ids, .batch = 2, .tokens = 1, .pad = pad, .count = count, .prepared = true};
    runner_->forward(input, stack.get(), logits.data());
    if (!second_row_takes) logits.resize(vocab_);
    return logits;
  }

  std::unique_ptr<CacheStack> stack;

 private:
  const size_t vocab_;
  std::unique_ptr<Runner> runner_;
};

float worst_of(const std::vector<float>& a, const std::vector<float>& b) {
  float worst = 0;
  for (size_t i = 0; i < a.size(); ++i) worst = std::isnan(a[i]) ? INFINITY : std::max(worst, std::abs(a[i] - b[i]));
  return worst;
}

TEST(RecordedSteps, GiveTheLogitsOfStepsThatAreNot) {
  const auto model = load("llama");
  Recordings recordings;
  Rows recorded(model, "static", &recordings), queued(model, "static", nullptr);
  int32_t id = 20;
  const auto steps = [&](int n, bool both = true) {
    for (; n > 0; --n, id += 3) {
      const std::vector<float> want = queued.step(id, both);
      ASSERT_LE(worst_of(recorded.step(id, both), want), 1e-5F) << "id " << id;
    }
  };
  steps(10);
  EXPECT_EQ(recordings.made, 1);
  EXPECT_EQ(recordings.replays, 9) << "all but the first, which is queued";
  EXPECT_EQ(recorded.stack->counters()["captured_steps"], 9);
  EXPECT_EQ(recorded.stack->counters()["prepared_steps"], 10);
  EXPECT_EQ(recorded.stack->seen(), 18);
  // What changes the stack ends the binding, and the next step is recorded anew.
  const int64_t two[] = {2};
  recorded.stack->crop(plain_call(), two);
  queued.stack->crop(plain_call(), two);
  EXPECT_EQ(recorded.stack->bound(), 0U);
  steps(3);
  EXPECT_EQ(recordings.made, 2);
  // A row that takes nothing: queued, as is the next step.
  steps(1, false);
  EXPECT_EQ(recordings.replays, 12);
  steps(2);
  EXPECT_EQ(recordings.made, 3);
  EXPECT_EQ(recordings.replays, 13);
  const auto copy = recorded.stack->clone(plain_call());
  EXPECT_EQ(copy->seen(), recorded.stack->seen());
  EXPECT_EQ(queued.stack->counters()["captured_steps"], 0);
}

TEST(RecordedSteps, EndAtTheCapacity) {
  const auto model = load("llama");
  Recordings recordings;
  Rows rows(model, "static", &recordings, 11);
  for (int i = 0; i < 3; ++i) rows.step(20);
  EXPECT_EQ(recordings.replays, 2);
  try {
    rows.step(20);
    FAIL() << "a twelfth token";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kCapacity) << error.what();
  }
  EXPECT_EQ(recordings.replays, 2);
  EXPECT_EQ(rows.stack->seen(), 11);
  EXPECT_FALSE(rows.stack->poisoned());
}

TEST(RecordedSteps, WhatCannotBeRecordedIsQueuedAndSaysWhy) {
  Recordings recordings;
  Rows growing(load("llama"), "dynamic", &recordings), windows(load("mistral"), "static", &recordings);
  EXPECT_NE(growing.stack->uncaptured().find("\"dynamic\" grows"), std::string::npos) << growing.stack->uncaptured();
  EXPECT_NE(windows.stack->uncaptured().find("sliding_attention"), std::string::npos) << windows.stack->uncaptured();
  for (Rows* rows : {&growing, &windows}) {
    for (int i = 0; i < 3; ++i) rows->step(20 + i);
  }
  EXPECT_EQ(recordings.made, 0);
  recordings.fails = true;
  Rows failing(load("llama"), "static", &recordings), queued(load("llama"), "static", nullptr);
  EXPECT_EQ(failing.stack->uncaptured(), "");
  for (int i = 0; i < 4; ++i) EXPECT_EQ(failing.step(30 + i), queued.step(30 + i));
  EXPECT_EQ(recordings.made, 1);
  EXPECT_EQ(failing.stack->uncaptured(), "an operation cannot be recorded");
  EXPECT_EQ(failing.stack->counters()["captured_steps"], 0);
}

}  // namespace
}  // namespace kvplug::model
