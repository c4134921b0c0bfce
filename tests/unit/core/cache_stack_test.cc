// SPDX-License-Identifier: Apache-2.0
// Cache stacks over the plain test plugin: placement, reading back, all-or-nothing changes, failures and blame.
#include "core/cache_stack.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/registry.h"
#include "plugin_folder.h"

namespace kvplug {
namespace {

using Rows = std::vector<int64_t>;
using Json = nlohmann::json;

constexpr kvp_dtype kFloat32 = {KVP_DTYPE_FLOAT, 32, 1};
const kvp_call kCall = {sizeof(kvp_call), KVP_DEVICE_CPU, 0, nullptr, 0, 0};

kvp_layer attention(int32_t kind, int32_t model_layer) {
  kvp_layer layer{};
  layer.struct_size = sizeof layer;
  layer.kind = kind;
  layer.q_heads = 4;
  layer.kv_heads = 2;
  layer.key_dim = layer.value_dim = 3;
  layer.window = kind == KVP_LAYER_SLIDING ? 8 : 0;
  layer.model_layer = model_layer;
  return layer;
}

kvp_layer nothing(int32_t model_layer) {
  kvp_layer layer{};
  layer.struct_size = sizeof layer;
  layer.model_layer = model_layer;
  return layer;
}

// [batch, 2, tokens, 3] filled with start, start + 1, …
struct Tokens {
  Tokens(int64_t batch, int64_t tokens, float start) : data(static_cast<size_t>(batch * tokens * 6)) {
    for (float& value : data) value = start++;
    tensor = {data.data(),
              KVP_DEVICE_CPU,
              0,
              4,
              KVP_DTYPE_FLOAT,
              32,
              1,
              0,
              0,
              {batch, 2, tokens, 3},
              {tokens * 6, tokens * 3, 3, 1}};
  }
  std::vector<float> data;
  kvp_tensor tensor{};
};

float at(const kvp_tensor& view, int64_t b, int64_t h, int64_t t, int64_t d) {
  return static_cast<const float*>(view.data)[b * view.strides[0] + h * view.strides[1] + t * view.strides[2] + d];
}

class StackTest : public testing::Test {
 protected:
  StackTest() {
    for (const char* name : {"plain", "plain_twin", "throwing_create", "panicking_create", "failing_create",
                             "empty_create", "unended_text"}) {
      registry.add_search_path(built_plugin(name));
    }
    params.dtype = kFloat32;
  }

  std::unique_ptr<CacheStack> make(const std::vector<kvp_layer>& layers, const Json& options = Json::object()) {
    CacheChoice choice;
    choice.kind = "test/plain";
    choice.options = options;
    return CacheStack::create(registry, layers, choice, params);
  }

  static void append(CacheStack& stack, int32_t layer, const Tokens& k, const Rows& pad = {}, const Rows& count = {}) {
    kvp_update_args args{};
    args.struct_size = sizeof args;
    args.layer = layer;
    args.k = args.v = &k.tensor;
    args.pad = pad.empty() ? nullptr : pad.data();
    args.count = count.empty() ? nullptr : count.data();
    stack.update(kCall, args, nullptr, nullptr);
  }

  static kvp_tensor view(CacheStack& stack, int32_t layer) {
    kvp_update_args args{};
    args.struct_size = sizeof args;
    args.layer = layer;
    kvp_tensor k{}, v{};
    stack.update(kCall, args, &k, &v);
    return k;
  }

  static Rows row_seen(CacheStack& stack, int32_t layer) {
    Rows rows(static_cast<size_t>(stack.batch()));
    kvp_lengths out{};
    out.struct_size = sizeof out;
    out.row_seen = rows.data();
    out.n_rows = rows.size();
    stack.lengths(layer, 0, out);
    return rows;
  }

  HostServices host;
  Registry registry{host};
  StackParams params;
  const std::vector<kvp_layer> three = {attention(KVP_LAYER_FULL, 0), attention(KVP_LAYER_SLIDING, 1),
                                        attention(KVP_LAYER_FULL, 2)};
};

TEST_F(StackTest, StoresAndGivesBack) {
  const auto stack = make(three);
  EXPECT_EQ(stack->layer_count(), 3);
  EXPECT_EQ(stack->batch(), 0);
  EXPECT_EQ(stack->seen(), 0);
  append(*stack, 0, Tokens(2, 4, 100));
  EXPECT_EQ(stack->batch(), 2);
  EXPECT_EQ(stack->seen(), 4);
  kvp_lengths next{};
  next.struct_size = sizeof next;
  stack->lengths(0, 3, next);
  EXPECT_EQ(next.kv_len, 7);
  append(*stack, 0, Tokens(2, 1, 0));
  const kvp_tensor k = view(*stack, 0);
  EXPECT_EQ(k.shape[2], 5);
  EXPECT_EQ(at(k, 1, 1, 3, 2), 147);  // the last of the first call
  EXPECT_EQ(at(k, 0, 1, 4, 0), 3);
  EXPECT_EQ(stack->placements()[1].kind, "sliding_attention");
  EXPECT_EQ(stack->placements()[1].plugin, "test/plain");
  EXPECT_EQ(stack->placements()[1].attend, "view");
  EXPECT_HAS(stack->placements()[1].reason, "has no kvp.attend/1");
}

TEST_F(StackTest, NoneAndSharedLayersAreResolved) {
  kvp_layer shared = attention(KVP_LAYER_FULL, 3);
  shared.flags = KVP_LAYER_SHARED;
  shared.shared_with = 1;
  const auto stack = make({nothing(0), attention(KVP_LAYER_FULL, 1), attention(KVP_LAYER_FULL, 2), shared});
  append(*stack, 1, Tokens(1, 2, 10));
  EXPECT_EQ(at(view(*stack, 3), 0, 0, 1, 0), 13);
  EXPECT_HAS(error_of([&] { append(*stack, 3, Tokens(1, 1, 0)); }).what(), "reads the storage of layer 1");
  EXPECT_HAS(error_of([&] { append(*stack, 0, Tokens(1, 1, 0)); }).what(), "layer 0 keeps no cache");
  EXPECT_HAS(error_of([&] { append(*stack, 4, Tokens(1, 1, 0)); }).what(), "there is no layer 4");
  EXPECT_EQ(stack->placements().size(), 4U);
  EXPECT_EQ(stack->placements()[0].plugin, "");
  EXPECT_EQ(stack->placements()[3].plugin, "test/plain");
  EXPECT_EQ(stack->memory(3).reserved[KVP_TIER_HOST][KVP_PURPOSE_KV], 0U);
  EXPECT_EQ(stack->memory(-1).reserved[KVP_TIER_HOST][KVP_PURPOSE_KV], 2048U);
}

TEST_F(StackTest, LayersThatContradictThemselvesAreRefused) {
  kvp_layer bad = attention(KVP_LAYER_FULL, 7);
  bad.q_heads = 3;
  const Error error = error_of([&] { make({bad}); });
  EXPECT_EQ(error.code(), Code::kInvalidArgument);
  EXPECT_HAS(error.what(), "layer 7 (full_attention), number 0 of the list: q_heads 3, kv_heads 2");
  bad = attention(KVP_LAYER_FULL, 0);
  bad.flags = KVP_LAYER_SHARED;
  bad.shared_with = 0;
  EXPECT_EQ(error_of([&] { make({bad}); }).code(), Code::kInvalidArgument);
  bad.shared_with = 9;
  EXPECT_EQ(error_of([&] { make({bad}); }).code(), Code::kInvalidArgument);
  for (const int32_t kind : {-1, 6})
    EXPECT_EQ(error_of([&] { make({attention(kind, 0)}); }).code(), Code::kInvalidArgument);
}

TEST_F(StackTest, BadOptionsAreNamed) {
  const Error error = error_of([&] { make(three, {{"refuze", "sliding"}}); });
  EXPECT_EQ(error.code(), Code::kConfig);
  EXPECT_HAS(error.what(), "generation.cache_config.refuze: unknown key");
  EXPECT_HAS(error.what(), "did you mean `refuse`?");
}

TEST_F(StackTest, ARefusedLayerIsAnErrorUnlessAFallbackTakesIt) {
  CacheChoice choice;
  choice.kind = "test/plain";
  choice.options = {{"refuse", "sliding"}};
  Error error = error_of([&] { CacheStack::create(registry, three, choice, params); });
  EXPECT_EQ(error.code(), Code::kUnsupported);
  EXPECT_HAS(error.what(), "layer 1 (sliding_attention) is served by no cache kind: \"test/plain\": no windows here");
  EXPECT_HAS(error.what(), "set cache.negotiation.on_unsupported");

  // The twin declares `refuse` too and would refuse as well: the fallback gets the options that it knows.
  choice.on_unsupported = "fallback";
  choice.fallback = {"test/plain_twin"};
  error = error_of([&] { CacheStack::create(registry, three, choice, params); });
  EXPECT_HAS(error.what(), "\"test/plain\": no windows here; \"test/plain_twin\": no windows here");

  choice.options = {{"refuse_together", true}};
  error = error_of([&] { CacheStack::create(registry, three, choice, params); });
  EXPECT_HAS(error.what(), "one layer at a time");
  choice.on_unsupported = "perhaps";
  EXPECT_EQ(error_of([&] { CacheStack::create(registry, three, choice, params); }).code(), Code::kConfig);
}

TEST_F(StackTest, StateLayersWithoutAPartnerAreRefused) {
  kvp_state_slot slot{};
  slot.struct_size = sizeof slot;
  slot.kind = KVP_STATE_CONV;
  kvp_layer hybrid = attention(KVP_LAYER_FULL, 5);
  hybrid.slots = &slot;
  hybrid.n_slots = 1;
  hybrid.slot_stride = sizeof slot;
  const Error error = error_of([&] { make({hybrid}); });
  EXPECT_EQ(error.code(), Code::kUnsupported);
  EXPECT_HAS(error.what(), "layer 5 (state) is served by no cache kind: \"test/plain\": keeps keys and values only");
}

TEST_F(StackTest, RequiredCapabilitiesAreHeldTo) {
  CacheChoice choice;
  choice.kind = "test/plain";
  choice.require = {"lossless", "row_crop", "rollback"};
  CacheStack::create(registry, three, choice, params);
  choice.require = {"fused_attention"};
  Error error = error_of([&] { CacheStack::create(registry, three, choice, params); });
  EXPECT_EQ(error.code(), Code::kUnsupported);
  EXPECT_HAS(error.what(), "required capability fused_attention is not there: layer 0 (full_attention)");
  EXPECT_HAS(error.what(), "has no kvp.attend/1");
  choice.require = {"stable_address"};
  EXPECT_EQ(error_of([&] { CacheStack::plan(registry, three, choice, params, 1, 1); }).code(), Code::kUnsupported);
  choice.require = {"fused_atention"};
  error = error_of([&] { CacheStack::create(registry, three, choice, params); });
  EXPECT_EQ(error.code(), Code::kConfig);
  EXPECT_HAS(error.what(), "did you mean \"fused_attention\"?");
}

TEST_F(StackTest, PlanIsPureAndAddsUp) {
  CacheChoice choice;
  choice.kind = "test/plain";
  const uint64_t before = host.memory().allocations();
  const StackPlan plan = CacheStack::plan(registry, three, choice, params, 1, 100);
  EXPECT_EQ(plan.total.reserved[KVP_TIER_HOST][KVP_PURPOSE_KV], 3072U);
  EXPECT_EQ(plan.total.peak[KVP_TIER_HOST], 3072U);
  ASSERT_EQ(plan.layers.size(), 3U);
  EXPECT_EQ(plan.layers[1].reserved[KVP_TIER_HOST][KVP_PURPOSE_KV], 1024U);
  EXPECT_EQ(host.memory().allocations(), before);

  const kvp_memory again = make(three)->planned(three, params, 1, 100);
  EXPECT_TRUE(std::ranges::equal(again.peak, plan.total.peak));
  for (int tier = 0; tier < KVP_N_TIERS; ++tier) {
    EXPECT_TRUE(std::ranges::equal(again.reserved[tier], plan.total.reserved[tier])) << tier;
  }
}

TEST_F(StackTest, CropGatherAndResetReachEveryLayer) {
  const auto stack = make(three);
  for (int32_t layer = 0; layer < 3; ++layer) append(*stack, layer, Tokens(2, 4, 0));
  const Rows one = {1}, per_row = {0, 2}, wrong = {1, 1, 1}, negative = {-1};
  stack->crop(kCall, one);
  stack->crop(kCall, per_row);
  for (int32_t layer = 0; layer < 3; ++layer) EXPECT_EQ(row_seen(*stack, layer), (Rows{3, 1}));
  EXPECT_EQ(error_of([&] { stack->crop(kCall, wrong); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(error_of([&] { stack->crop(kCall, negative); }).code(), Code::kInvalidArgument);

  const Rows rows = {1, 1, 0, -1}, outside = {2, 4};
  stack->gather(kCall, rows);
  EXPECT_EQ(stack->batch(), 4);
  EXPECT_EQ(row_seen(*stack, 2), (Rows{1, 1, 3, 0}));
  EXPECT_HAS(error_of([&] { stack->gather(kCall, outside); }).what(), "there is no row 4");
  stack->reset(kCall);
  EXPECT_EQ(stack->batch(), 0);
  EXPECT_EQ(stack->seen(), 0);
}

TEST_F(StackTest, WhatAKindLacksIsRefusedByNameAndChangesNothing) {
  const auto stack = make(three);
  append(*stack, 0, Tokens(1, 2, 0));
  const Error error = error_of([&] { stack->reserve(kCall, 1, 100); });
  EXPECT_EQ(error.code(), Code::kUnsupported);
  EXPECT_HAS(error.what(), "plugin \"test.plain\"");
  EXPECT_HAS(error.what(), "this cache has no reserve");
  EXPECT_EQ(error_of([&] { stack->set_rollback(kCall, 3); }).code(), Code::kUnsupported);
  kvp_attend_args args{};
  args.struct_size = sizeof args;
  kvp_tensor out{};
  EXPECT_EQ(error_of([&] { stack->attend(kCall, args, out, nullptr); }).code(), Code::kUnsupported);
  EXPECT_FALSE(stack->poisoned());
  EXPECT_EQ(stack->seen(), 2);
}

TEST_F(StackTest, AnInstanceIsBookedAndCleanedUp) {
  auto stack = make(three);
  EXPECT_EQ(host.memory().use().live[KVP_TIER_HOST][KVP_PURPOSE_KV], 3072U);
  append(*stack, 0, Tokens(1, 2, 7));
  auto copy = stack->clone(kCall);
  EXPECT_EQ(host.memory().use().live[KVP_TIER_HOST][KVP_PURPOSE_KV], 6144U);
  append(*stack, 0, Tokens(1, 1, 50));
  EXPECT_EQ(copy->seen(), 2);
  EXPECT_EQ(copy->batch(), 1);
  EXPECT_EQ(at(view(*copy, 0), 0, 0, 1, 0), 10);
  stack.reset();
  EXPECT_EQ(at(view(*copy, 0), 0, 0, 1, 0), 10);
  copy.reset();
  EXPECT_EQ(host.memory().use().blocks, 0U);
}

TEST_F(StackTest, EveryFailedAllocationLeavesNothingBehind) {
  for (uint64_t n = 1;; ++n) {
    host.memory().fail_allocation(n);
    try {
      auto stack = make(three);
      auto copy = stack->clone(kCall);
      host.memory().fail_allocation(0);
      EXPECT_EQ(n, 3U);
      break;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kOutOfMemory);
      EXPECT_HAS(error.what(), "plugin \"test.plain\"");
      EXPECT_HAS(error.what(), "cache \"test/plain\" asked for 3072 bytes of host memory (kv)");
    }
    EXPECT_EQ(host.memory().use().blocks, 0U);
  }
}

TEST_F(StackTest, CountersAddUpAndLibrariesDoNotMix) {
  const auto stack = make(three);
  view(*stack, 0);
  const Json counters = stack->counters();
  EXPECT_EQ(counters["view_attend_calls"], 1);
  EXPECT_EQ(counters["fused_attend_calls"], 0);
  EXPECT_LT(counters["instances_made"], 1000);
  CacheChoice twin;
  twin.kind = "test/plain_twin";  // The same inline variable by name, in another library.
  EXPECT_GT(CacheStack::create(registry, three, twin, params)->counters()["instances_made"], 1000);
}

// A step that fails at a layer is taken back from the layers before it, with padding and uneven rows too.
TEST_F(StackTest, AFailedStepIsTakenBack) {
  for (const int32_t failing : {0, 1, 2}) {
    const auto stack = make(three, {{"fail_layer", failing}});
    // The option fails the first update of the layer: a step on the empty cache.
    stack->begin_step(kCall);
    EXPECT_EQ(error_of([&] {
                for (int32_t l = 0; l < 3; ++l) append(*stack, l, Tokens(2, 3, 0), {1, 0});
              }).code(),
              Code::kOutOfMemory);
    stack->abort_step(kCall);
    EXPECT_FALSE(stack->poisoned());
    EXPECT_EQ(stack->seen(), 0);
    EXPECT_EQ(stack->batch(), 0);
  }
}

TEST_F(StackTest, AFailedLaterStepIsTakenBackFromEveryLayer) {
  const auto stack = make(three);
  for (int32_t layer = 0; layer < 3; ++layer) append(*stack, layer, Tokens(2, 3, 0), {1, 0});
  stack->begin_step(kCall);
  append(*stack, 0, Tokens(2, 2, 90), {}, {2, 1});
  append(*stack, 1, Tokens(2, 2, 90), {}, {2, 1});
  stack->abort_step(kCall);  // As if layer 2 had failed.
  EXPECT_FALSE(stack->poisoned());
  for (int32_t layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(row_seen(*stack, layer), (Rows{3, 3})) << layer;
    const kvp_tensor k = view(*stack, layer);
    EXPECT_EQ(k.shape[2], 3);
    EXPECT_EQ(at(k, 1, 1, 2, 2), 35);
  }
  stack->begin_step(kCall);
  append(*stack, 0, Tokens(2, 1, 0));
  stack->end_step(kCall);
  stack->abort_step(kCall);  // Nothing to take back after the end.
  EXPECT_EQ(row_seen(*stack, 0), (Rows{4, 4}));
}

TEST_F(StackTest, AStepThatCannotBeTakenBackPoisons) {
  const auto stack = make(three);
  for (int32_t layer = 0; layer < 3; ++layer) append(*stack, layer, Tokens(1, 3, 0));
  stack->begin_step(kCall);
  append(*stack, 0, Tokens(1, 2, 0));
  append(*stack, 1, Tokens(1, 1, 0));  // The layers disagree.
  stack->abort_step(kCall);
  EXPECT_TRUE(stack->poisoned());
  EXPECT_EQ(error_of([&] { append(*stack, 0, Tokens(1, 1, 0)); }).code(), Code::kPoisoned);
  EXPECT_EQ(error_of([&] { stack->clone(kCall); }).code(), Code::kPoisoned);
  stack->reset(kCall);
  EXPECT_FALSE(stack->poisoned());
  append(*stack, 0, Tokens(1, 1, 0));
}

// From here on the plain library is not used: INTERNAL would mark it as bad for the whole process.
TEST_F(StackTest, ADeviceErrorPoisonsTheStack) {
  const auto stack = make(three, {{"fail_layer", 1}, {"fail_status", KVP_DEVICE}});
  append(*stack, 0, Tokens(1, 1, 0));
  EXPECT_EQ(error_of([&] { append(*stack, 1, Tokens(1, 1, 0)); }).code(), Code::kDevice);
  EXPECT_TRUE(stack->poisoned());
  stack->reset(kCall);
  EXPECT_FALSE(stack->poisoned());
}

class BadCreate : public StackTest {
 protected:
  Error fault(const std::string& kind) {
    CacheChoice choice;
    choice.kind = "test/" + kind;
    const Error error = error_of([&] { CacheStack::create(registry, three, choice, params); });
    EXPECT_HAS(error.what(), "test." + kind);
    EXPECT_HAS(error.what(), kind + ".so");
    EXPECT_EQ(host.memory().use().blocks, 0U);
    return error;
  }
};

TEST_F(BadCreate, AFailureIsPassedOnWithItsReason) {
  const Error error = fault("failing_create");
  EXPECT_EQ(error.code(), Code::kIo);
  EXPECT_HAS(error.what(), "create: the folder /nowhere cannot be made");
  EXPECT_EQ(fault("failing_create").code(), Code::kIo);  // It may try again.
}

TEST_F(BadCreate, AnExceptionIsCaughtAndTheLibraryNotUsedAgain) {
  Error error = fault("throwing_create");
  EXPECT_EQ(error.code(), Code::kInternal);
  EXPECT_HAS(error.what(), "an exception left the plugin: thrown in create");
  error = fault("throwing_create");
  EXPECT_EQ(error.code(), Code::kPlugin);
  EXPECT_HAS(error.what(), "is not used any more in this process, since it failed inside: create: an exception");
}

TEST_F(BadCreate, APanicIsReportedAndTheLibraryNotUsedAgain) {
  Error error = fault("panicking_create");
  EXPECT_EQ(error.code(), Code::kInternal);
  EXPECT_HAS(error.what(), "panicked at 'index out of range'");
  EXPECT_EQ(fault("panicking_create").code(), Code::kPlugin);
}

TEST_F(BadCreate, OkWithoutAnInstanceIsALie) {
  EXPECT_HAS(fault("empty_create").what(), "create: answered OK without an instance");
}

TEST_F(BadCreate, UnknownStatusAndUnendedTextAreReadSafely) {
  const Error error = fault("unended_text");
  EXPECT_EQ(error.code(), Code::kPlugin);
  EXPECT_HAS(error.what(), "(status 27)");
  EXPECT_HAS(error.what(), std::string(100, '?'));
}

}  // namespace
}  // namespace kvplug
