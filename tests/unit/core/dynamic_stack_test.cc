// SPDX-License-Identifier: Apache-2.0
// A stack over the built-in plugin `dynamic`, loaded through the same door: fused attention, no allocation after
// reserve, a failed step taken back, faults at every allocation.
#include <gtest/gtest.h>

#include <cmath>

#include "core/cache_stack.h"
#include "core/registry.h"
#include "plugin_folder.h"

namespace kvplug {
namespace {

constexpr int64_t kHeads = 2, kQueryHeads = 4, kDim = 16;
const kvp_call kCall = {sizeof(kvp_call), KVP_DEVICE_CPU, 0, nullptr, 0, 0};

struct Values {
  Values(int64_t batch, int64_t heads, int64_t tokens, float start)
      : data(static_cast<size_t>(batch * heads * tokens * kDim)) {
    for (size_t i = 0; i < data.size(); ++i) data[i] = std::sin(start + 0.37F * static_cast<float>(i));
    tensor = {data.data(),
              KVP_DEVICE_CPU,
              0,
              4,
              KVP_DTYPE_FLOAT,
              32,
              1,
              0,
              0,
              {batch, heads, tokens, kDim},
              {heads * tokens * kDim, tokens * kDim, kDim, 1}};
  }
  std::vector<float> data;
  kvp_tensor tensor{};
};

class DynamicStack : public testing::Test {
 protected:
  DynamicStack() {
    registry.add_search_path(fs::path(KVPLUG_TEST_BUILD) / "plugins");
    params.dtype = {KVP_DTYPE_FLOAT, 32, 1};
    params.batch = 2;
    for (int32_t i = 0; i < 3; ++i) {
      kvp_layer layer{};
      layer.struct_size = sizeof layer;
      layer.kind = KVP_LAYER_FULL;
      layer.q_heads = kQueryHeads;
      layer.kv_heads = kHeads;
      layer.key_dim = layer.value_dim = kDim;
      layer.model_layer = i;
      layers.push_back(layer);
    }
  }

  std::unique_ptr<CacheStack> make() { return CacheStack::create(registry, layers, CacheChoice{}, params); }

  // Appends `tokens` tokens to the layer and attends with as many queries.
  static std::vector<float> attend(CacheStack& stack, int32_t layer, int64_t batch, int64_t tokens, float start,
                                   uint32_t flags = 0) {
    const Values q(batch, kQueryHeads, tokens, start), k(batch, kHeads, tokens, start + 1),
        v(batch, kHeads, tokens, start + 2);
    Values out(batch, kQueryHeads, tokens, 0);
    kvp_attend_args args{};
    args.struct_size = sizeof args;
    args.layer = layer;
    args.flags = KVP_ATTEND_CAUSAL;
    args.q = &q.tensor;
    args.k = &k.tensor;
    args.v = &v.tensor;
    args.scale = 0.25F;
    kvp_call call = kCall;
    call.flags = flags;
    stack.attend(call, args, out.tensor, nullptr);
    return out.data;
  }

  HostServices host;
  Registry registry{host};
  StackParams params;
  std::vector<kvp_layer> layers;
};

TEST_F(DynamicStack, AttendsFused) {
  CacheChoice choice;
  choice.require = {"fused_attention", "lossless", "rollback"};
  const auto stack = CacheStack::create(registry, layers, choice, params);
  for (const LayerPlacement& placed : stack->placements()) EXPECT_EQ(placed.attend, "fused");
  // One token sees itself only: the output is its value.
  const std::vector<float> out = attend(*stack, 0, 1, 1, 5);
  const Values v(1, kHeads, 1, 7);
  for (int64_t h = 0; h < kQueryHeads; ++h) {
    for (int64_t d = 0; d < kDim; ++d) {
      EXPECT_NEAR(out[static_cast<size_t>(h * kDim + d)], v.data[static_cast<size_t>(h / 2 * kDim + d)], 1e-6);
    }
  }
  EXPECT_EQ(stack->counters()["fused_attend_calls"], 1);
  EXPECT_EQ(stack->counters()["view_attend_calls"], 0);
}

TEST_F(DynamicStack, AllocatesNothingAfterReserve) {
  const auto stack = make();
  stack->reserve(kCall, 2, 100);
  const uint64_t before = host.memory().allocations();
  for (int32_t layer = 0; layer < 3; ++layer) attend(*stack, layer, 2, 10, 1, KVP_CALL_PREPARED);
  for (int step = 0; step < 90; ++step) {
    for (int32_t layer = 0; layer < 3; ++layer)
      attend(*stack, layer, 2, 1, static_cast<float>(step), KVP_CALL_PREPARED);
  }
  EXPECT_EQ(host.memory().allocations(), before);
  EXPECT_EQ(stack->seen(), 100);
}

TEST_F(DynamicStack, AStepThatFailedHalfWayLeavesNoTrace) {
  const auto stack = make(), untouched = make();
  for (int32_t layer = 0; layer < 3; ++layer) {
    attend(*stack, layer, 2, 70, 1);
    attend(*untouched, layer, 2, 70, 1);
  }
  stack->begin_step(kCall);
  attend(*stack, 0, 2, 5, 50);
  attend(*stack, 1, 2, 5, 50);
  stack->abort_step(kCall);
  ASSERT_FALSE(stack->poisoned());
  EXPECT_EQ(stack->seen(), 70);
  for (int32_t layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(attend(*stack, layer, 2, 1, 9), attend(*untouched, layer, 2, 1, 9)) << layer;
  }
}

TEST_F(DynamicStack, FailsCleanlyAtEveryAllocation) {
  for (uint64_t n = 1;; ++n) {
    ASSERT_LT(n, 1000U);
    host.memory().fail_allocation(n);
    try {
      const auto stack = make();
      for (int32_t layer = 0; layer < 3; ++layer) attend(*stack, layer, 2, 130, 1);
      const auto copy = stack->clone(kCall);
      attend(*copy, 0, 2, 1, 1);
      host.memory().fail_allocation(0);
      EXPECT_GT(n, 3U);
      break;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kOutOfMemory) << error.what();
      EXPECT_HAS(error.what(), "dynamic.so");
    }
    EXPECT_EQ(host.memory().use().blocks, 0U) << n;
  }
}

TEST_F(DynamicStack, ALayerItDoesNotServeIsNamed) {
  layers[1].kind = KVP_LAYER_STATE;
  kvp_state_slot slot{};
  slot.struct_size = sizeof slot;
  slot.kind = KVP_STATE_RECURRENT;
  layers[1].slots = &slot;
  layers[1].n_slots = 1;
  layers[1].slot_stride = sizeof slot;
  const Error error = error_of([&] { make(); });
  EXPECT_EQ(error.code(), Code::kUnsupported);
  EXPECT_HAS(error.what(), "layer 1 (state) is served by no cache kind: \"dynamic\": ");
}

}  // namespace
}  // namespace kvplug
