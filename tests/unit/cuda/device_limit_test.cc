// SPDX-License-Identifier: Apache-2.0
// memory.max_device_bytes: the plan, the check before a run, the accounted allocator and [cache.oom_fallback], over the
// plugins on the emulator. The model is a stand-in that computes nothing: what is limited is taken before it is asked.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "config/config.h"
#include "core/accounts.h"
#include "core/error.h"
#include "core/host_services.h"
#include "core/registry.h"
#include "generate/generation.h"
#include "generate/session.h"
#include "report/plan.h"

namespace kvplug {
namespace {

using nlohmann::json;

class NoRunner final : public model::Runner {
 public:
  explicit NoRunner(int64_t vocab) : vocab_(static_cast<size_t>(vocab)) {}
  void forward(const model::ForwardInput& input, CacheStack*, float* logits) override {
    std::fill_n(logits, static_cast<size_t>(input.batch) * vocab_, 0.0F);
  }
  void forward_all(const model::ForwardInput&, CacheStack*, float*) override { FAIL() << "not asked for here"; }
  void watch_attention(model::AttentionWatch) override {}
  uint64_t scratch_bytes() const override { return 0; }

 private:
  const size_t vocab_;
};

class NoModel final : public model::Executor {
 public:
  NoModel() : description_(model::describe_model(std::filesystem::path(KVPLUG_TEST_DATA) / "models/llama")) {
    options_.dtype = description_.checkpoint_dtype;
    options_.device = "cuda";
  }
  const model::Description& description() const override { return description_; }
  const model::LoadOptions& options() const override { return options_; }
  std::unique_ptr<model::Runner> prepare(const model::StepShape&, CacheStack*) override {
    return std::make_unique<NoRunner>(description_.vocab_size);
  }
  json explain() const override { return nullptr; }
  uint64_t weight_bytes() const override { return model::weight_bytes(description_, options_.dtype); }
  kvp_call call() const override {
    kvp_call out{};
    out.struct_size = sizeof out;
    out.device_type = KVP_DEVICE_CUDA;
    return out;
  }

 private:
  const model::Description description_;
  model::LoadOptions options_;
};

class DeviceLimit : public ::testing::Test {
 protected:
  DeviceLimit() : services_(options()), registry_(services_) {
    for (const char* file : {"dynamic.toml", "static.toml"}) {
      registry_.load(std::filesystem::path(KVPLUG_TEST_BUILD) / "plugins_emulated" / file);
    }
  }

  // `static` of 8192 tokens a row; `more` under [memory] and below.
  static config::Run run_with(const std::string& more) {
    config::Config config;
    config.merge_toml(
        "config_version = 1\nmodel.device = \"cuda\"\n"
        "[generation]\ncache_implementation = \"static\"\nmax_cache_len = 8192\nmax_new_tokens = 4\n[memory]\n"
        "headroom = 0.0\n" +
            more,
        "run.toml", "/");
    return config.resolve();
  }
  static std::string limit(uint64_t bytes) { return "max_device_bytes = " + std::to_string(bytes) + "\n"; }

  report::RunPlan plan(const std::string& more) {
    const report::BatchShape batch{1, 6};
    return report::plan_run(registry_, run_with(more), model_->description(), {&batch, 1});
  }

  // The new tokens; the texts of notices go to notices_.
  size_t generate(const std::string& more) {
    generate::Session session({model_, nullptr, &services_, &registry_}, run_with(more));
    const int32_t ids[] = {1, 2, 3};
    session.append_ids(0, ids);
    generate::Generation generation(session, {session.run().generation}, {});
    generate::Event event;
    while (generation.next(event)) {
      if (event.type == generate::EventType::kNotice) notices_.push_back(event.text);
    }
    return generation.results()[0].token_ids.size();
  }

  Error error_of(const std::string& more) {
    try {
      generate(more);
    } catch (const Error& error) {
      return error;
    }
    return Error(Code::kInternal, "no error");
  }

  const std::shared_ptr<NoModel> model_ = std::make_shared<NoModel>();
  std::vector<std::string> notices_;
  HostServices services_;
  Registry registry_;

 private:
  static HostOptions options() {
    HostOptions out;
    out.allocator.alloc = [](void*, const kvp_mem* mem, void** block, kvp_error*) -> int32_t {
      *block = std::aligned_alloc(256, (mem->bytes + 255) / 256 * 256);
      return *block == nullptr ? KVP_OUT_OF_MEMORY : KVP_OK;
    };
    out.allocator.free = [](void*, const kvp_mem*, void* block) { std::free(block); };
    return out;
  }
};

TEST_F(DeviceLimit, PlanCountsWeightsAndCacheOfTheDevice) {
  const report::RunPlan free = plan("");
  const uint64_t weights = model_->weight_bytes(), need = free.peak[KVP_TIER_DEVICE];
  EXPECT_EQ(need, weights + free.cache.total.peak[KVP_TIER_DEVICE]);
  EXPECT_GT(free.cache.total.peak[KVP_TIER_DEVICE], 0U);
  EXPECT_EQ(free.peak[KVP_TIER_HOST], free.cache.total.peak[KVP_TIER_HOST]) << "the weights lie elsewhere";
  EXPECT_TRUE(free.fits);
  EXPECT_TRUE(plan(limit(need)).fits);
  const report::RunPlan over = plan(limit(need - 1));
  EXPECT_FALSE(over.fits);
  const json document = report::plan_json(over, run_with(limit(need - 1)), model_->description());
  EXPECT_EQ(document["limit_device_bytes"], need - 1);
  EXPECT_EQ(document["peak_device_bytes"], need);
  EXPECT_EQ(document["totals"]["weights"], (json{{"device", weights}}));
  EXPECT_EQ(document["rows"][0]["tier"], "device");
}

TEST_F(DeviceLimit, ARunThatCannotFitIsRefusedBeforeItBegins) {
  const uint64_t need = plan("").peak[KVP_TIER_DEVICE];
  EXPECT_EQ(generate(limit(need)), 4U);
  const uint64_t allocations = services_.memory().allocations();
  const Error error = error_of(limit(need - 1));
  EXPECT_EQ(error.code(), Code::kPlanExceeded) << error.what();
  EXPECT_EQ(error.where(), "memory.max_device_bytes");
  for (const std::string& word : {std::to_string(need) + " bytes of device memory", std::to_string(need - 1)}) {
    EXPECT_NE(error.message().find(word), std::string::npos) << error.what();
  }
  EXPECT_NE(error.hint().find("raise memory.max_device_bytes"), std::string::npos) << error.hint();
  EXPECT_EQ(error.hint().find("disk_path"), std::string::npos) << "refused on a device";
  EXPECT_EQ(services_.memory().allocations(), allocations) << "nothing was taken";
}

TEST_F(DeviceLimit, TheAllocatorKeepsItWithoutAPlan) {
  const uint64_t weights = model_->weight_bytes(), half = (plan("").peak[KVP_TIER_DEVICE] - weights) / 2;
  const Error error = error_of("plan = \"off\"\n" + limit(weights + half));
  EXPECT_EQ(error.code(), Code::kOutOfMemory) << error.what();
  for (const std::string& word :
       {std::string("bytes of device memory"), "bytes of the limit of " + std::to_string(half)}) {
    EXPECT_NE(error.message().find(word), std::string::npos) << error.what();
  }
  EXPECT_EQ(generate("plan = \"off\"\n"), 4U) << "the limit ends with the session that had it";
}

TEST_F(DeviceLimit, LeadsToTheOtherKind) {
  const uint64_t weights = model_->weight_bytes(), half = (plan("").peak[KVP_TIER_DEVICE] - weights) / 2;
  for (const std::string how : {"check", "off"}) {
    notices_.clear();
    EXPECT_EQ(generate("plan = \"" + how + "\"\n" + limit(weights + half) +
                       "[cache.oom_fallback]\ncache_implementation = \"dynamic\"\n"),
              4U);
    ASSERT_EQ(notices_.size(), 1U);
    EXPECT_NE(notices_[0].find("retrying with cache_implementation='dynamic'"), std::string::npos) << notices_[0];
  }
}

}  // namespace
}  // namespace kvplug
