// SPDX-License-Identifier: Apache-2.0
// kvp.offload/1: who wants to know of steps is told, and a failing hint is an error of the step.
#include <gtest/gtest.h>

#include "core/cache_stack.h"
#include "core/registry.h"
#include "plugin_folder.h"

namespace kvplug {
namespace {

const kvp_call kCall = {sizeof(kvp_call), KVP_DEVICE_CPU, 0, nullptr, 0, 0};

class Hints : public testing::Test {
 protected:
  Hints() {
    for (const char* name : {"plain", "hinting"}) registry.add_search_path(built_plugin(name));
    layer.struct_size = sizeof layer;
    layer.kind = KVP_LAYER_FULL;
    layer.q_heads = layer.kv_heads = 1;
    layer.key_dim = layer.value_dim = 4;
  }
  std::unique_ptr<CacheStack> make(const char* kind, const nlohmann::json& options = nlohmann::json::object()) {
    CacheChoice choice;
    choice.kind = kind;
    choice.options = options;
    return CacheStack::create(registry, {&layer, 1}, choice, {.dtype = {KVP_DTYPE_FLOAT, 32, 1}});
  }
  static uint64_t count(CacheStack& stack, const char* name) { return stack.counters().at(name).get<uint64_t>(); }

  HostServices host;
  Registry registry{host};
  kvp_layer layer{};
};

TEST_F(Hints, StepsAreToldToWhoWantsToKnow) {
  const auto stack = make("test/hinting");
  const uint64_t begun = count(*stack, "begun"), ended = count(*stack, "ended");
  stack->begin_step(kCall);
  EXPECT_EQ(count(*stack, "begun"), begun + 1);
  EXPECT_EQ(count(*stack, "ended"), ended);
  stack->end_step(kCall);
  EXPECT_EQ(count(*stack, "ended"), ended + 1);
  stack->begin_step(kCall);
  stack->abort_step(kCall);
  EXPECT_EQ(count(*stack, "ended"), ended + 2) << "an aborted step ends too";
  stack->abort_step(kCall);
  EXPECT_EQ(count(*stack, "ended"), ended + 2) << "once";

  const auto plain = make("test/plain");
  plain->begin_step(kCall);
  plain->end_step(kCall);
}

TEST_F(Hints, FailingOneIsAnErrorOfTheStepAndNothingHasBegun) {
  const auto stack = make("test/hinting", {{"fail_layer", 9}, {"fail_status", KVP_IO}});
  const uint64_t ended = count(*stack, "ended");
  try {
    stack->begin_step(kCall);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kIo);
    EXPECT_NE(error.message().find("begin_step: no step is to be begun"), std::string::npos) << error.message();
  }
  stack->abort_step(kCall);
  EXPECT_EQ(count(*stack, "ended"), ended);
}

TEST_F(Hints, OneThatIsNotWantedIsNoError) {
  const auto stack = make("test/hinting", {{"fail_layer", 9}, {"fail_status", KVP_UNSUPPORTED}});
  stack->begin_step(kCall);
  stack->end_step(kCall);
  EXPECT_FALSE(stack->poisoned());
}

}  // namespace
}  // namespace kvplug
