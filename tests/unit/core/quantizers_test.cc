// SPDX-License-Identifier: Apache-2.0
// Stacks of a cache that takes quantizers: what each is given, how long quantizers live, who is blamed.
#include <gtest/gtest.h>

#include "core/cache_stack.h"
#include "core/registry.h"
#include "plugin_folder.h"

namespace kvplug {
namespace {

using Json = nlohmann::json;
const kvp_call kCall = {sizeof(kvp_call), KVP_DEVICE_CPU, 0, nullptr, 0, 0};

kvp_layer attention(int32_t kind, int32_t width, int32_t model_layer) {
  kvp_layer layer{};
  layer.struct_size = sizeof layer;
  layer.kind = kind;
  layer.q_heads = 4;
  layer.kv_heads = 2;
  layer.key_dim = layer.value_dim = width;
  layer.window = kind == KVP_LAYER_SLIDING ? 8 : 0;
  layer.model_layer = model_layer;
  return layer;
}

struct Place {
  explicit Place(const std::string& plugin, const Json& options = Json::object()) {
    registry.add_search_path(built_plugin(plugin));
    choice.kind = "test/" + plugin;
    choice.options = options;
    params.dtype = {KVP_DTYPE_FLOAT, 32, 1};
  }
  std::unique_ptr<CacheStack> make(const std::vector<kvp_layer>& layers = {attention(KVP_LAYER_FULL, 3, 0)}) {
    return CacheStack::create(registry, layers, choice, params);
  }

  HostServices host;
  Registry registry{host};
  CacheChoice choice;
  StackParams params;
};

TEST(Quantizers, KeysAndValuesHaveTheirOwnOptions) {
  Place place("quantized", {{"backend", "TEST/Q"}, {"nbits", 3}, {"nbits_value", 2}, {"hf_compat", "strict"}});
  const Json counters = place.make()->counters();
  EXPECT_EQ(counters["key_levels"], 8);
  EXPECT_EQ(counters["value_levels"], 4);
  EXPECT_EQ(counters["strict"], 2) << "both were told";
  EXPECT_EQ(counters["residual"], 128);
}

TEST(Quantizers, WithoutGroupsThereIsNoResidual) {
  Place place("quantized", {{"backend", "test/q8"}});
  EXPECT_EQ(place.make()->counters()["residual"], 0);
}

TEST(Quantizers, PlacementsNameThem) {
  Place place("quantized");
  const LayerPlacement placed = place.make()->placements().front();
  EXPECT_EQ(placed.quantizer_key, "test/q");
  EXPECT_EQ(placed.quantizer_value, "test/q");
}

TEST(Quantizers, LiveAsLongAsTheLastClone) {
  Place place("quantized");
  const auto watch = place.make();
  const auto alive = [&] { return watch->counters()["quantizer_instances"].get<int>(); };
  const int before = alive();
  auto stack = place.make();
  auto clone = stack->clone(kCall);
  EXPECT_EQ(alive(), before + 2) << "a clone shares them";
  stack.reset();
  EXPECT_EQ(alive(), before + 2);
  clone.reset();
  EXPECT_EQ(alive(), before);
  const kvp_layer layer = attention(KVP_LAYER_FULL, 3, 0);
  const StackPlan plan = CacheStack::plan(place.registry, {&layer, 1}, place.choice, place.params, 1, 8);
  EXPECT_EQ(alive(), before) << "those of a plan end with it";
  ASSERT_EQ(plan.choices.size(), 1U);
  EXPECT_EQ(plan.choices[0].backend, "test/q");
  EXPECT_EQ(plan.choices[0].key_options["nbits"], 4);
}

// The cache refuses layers of another width than its quantizers'.
TEST(Quantizers, LayersOfAnotherWidthHaveTheirOwnInstance) {
  Place place("quantized");
  const auto stack =
      place.make({attention(KVP_LAYER_FULL, 3, 0), attention(KVP_LAYER_FULL, 4, 1), attention(KVP_LAYER_FULL, 3, 2)});
  EXPECT_EQ(stack->placements().size(), 3U);
  EXPECT_EQ(stack->memory(-1).reserved[KVP_TIER_HOST][KVP_PURPOSE_KV], 3U * 1024);
}

TEST(Quantizers, AWidthThatTheQuantizerRefusesIsARefusalOfTheKind) {
  Place place("quantized");
  const Error error = error_of([&] { place.make({attention(KVP_LAYER_FULL, 5, 7)}); });
  EXPECT_EQ(error.code(), Code::kUnsupported);
  EXPECT_HAS(error.what(), "layer 7 (full_attention)");
  EXPECT_HAS(error.what(), "no heads of 5");
}

TEST(Quantizers, StrictServesFullAttentionAlone) {
  Place place("quantized");
  const std::vector<kvp_layer> layers = {attention(KVP_LAYER_FULL, 3, 0), attention(KVP_LAYER_SLIDING, 3, 1)};
  EXPECT_EQ(place.make(layers)->placements().size(), 2U);
  place.choice.options = {{"hf_compat", "strict"}};
  const Error error = error_of([&] { place.make(layers); });
  EXPECT_EQ(error.code(), Code::kUnsupported);
  EXPECT_HAS(error.what(), "layer 1 (sliding_attention)");
  EXPECT_HAS(error.what(), "hf_compat = \"strict\" serves full_attention layers alone");
}

// The built-in kind has kvp.attend/1 and says KVP_CACHE_NO_ATTEND of strict.
TEST(Quantizers, WhatLeavesAttentionToTheHostIsNotFused) {
  Place place("quantized");
  place.registry.add_search_path(fs::path(KVPLUG_TEST_BUILD) / "plugins");
  place.choice.kind = "quantized";
  const kvp_layer layer = attention(KVP_LAYER_FULL, 64, 0);
  const auto plan = [&](const char* hf_compat) {
    place.choice.options = {{"hf_compat", hf_compat}};
    return CacheStack::plan(place.registry, {&layer, 1}, place.choice, place.params, 1, 8);
  };
  EXPECT_EQ(plan("fixed").placements[0].attend, "fused");
  const StackPlan strict = plan("strict");
  EXPECT_EQ(strict.placements[0].attend, "view");
  EXPECT_EQ(strict.placements[0].reason, "\"quantized\" with this cache_config leaves attention to the host");
  EXPECT_EQ(place.make({layer})->placements()[0].reason, strict.placements[0].reason) << "as planned, so made";

  place.choice.require = {"fused_attention"};
  EXPECT_EQ(plan("fixed").placements[0].attend, "fused");
  Error error = error_of([&] { plan("strict"); });
  EXPECT_EQ(error.code(), Code::kUnsupported);
  EXPECT_HAS(error.what(),
             "required capability fused_attention is not there: layer 0 (full_attention): \"quantized\" with this "
             "cache_config leaves attention to the host");
  EXPECT_HAS(error.what(), "choose another cache_implementation or cache_config");
  place.choice.require.clear();
  place.choice.options["fused_attention"] = "required";
  error = error_of([&] { CacheStack::plan(place.registry, {&layer, 1}, place.choice, place.params, 1, 8); });
  EXPECT_EQ(error.code(), Code::kUnsupported);
  EXPECT_HAS(error.what(), "fused_attention = \"required\": hf_compat = \"strict\" unpacks all tokens at each step");
}

TEST(Quantizers, BadOptionsNameTheKey) {
  const std::pair<Json, const char*> cases[] = {
      {{{"backend", "test/r"}},
       "generation.cache_config.backend: quantizer \"test/r\" not found\n  did you mean \"test/q\"?"},
      {{{"backend", 4}}, "generation.cache_config.backend: 4 is not a text"},
      {{{"nbits_key", 9}}, "generation.cache_config.nbits_key: 9 is above the maximum of 8"},
      {{{"nbitz_key", 4}}, "generation.cache_config.nbitz_key: unknown key\n  did you mean `nbits_key`?"},
      {{{"hf_compat_key", "strict"}}, "generation.cache_config.hf_compat_key: unknown key"},
      {{{"fp8_format", "e5m2"}}, "a key of backend \"test/q8\", not of \"test/q\""},
      {{{"backend", "test/q8"}, {"residual_length", 4}},
       "backend \"test/q8\" has no groups and takes no residual_length"},
      {{{"backend", "test/q8"}, {"nbits_value", 4}}, "backend \"test/q8\" has no groups and takes no nbits_value"}};
  for (const auto& [options, words] : cases) {
    Place place("quantized", options);
    const Error error = error_of([&] { place.make(); });
    EXPECT_EQ(error.code(), Code::kConfig) << options;
    EXPECT_HAS(error.what(), words);
  }
}

TEST(Quantizers, WhatBreaksARuleIsBlamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"quantizer_throwing", "create of the quantizer for keys: an exception left the plugin"},
      {"quantizer_failing", "create of the quantizer for values: the codebook is gone"},
      {"quantizer_empty", "create of the quantizer for keys: answered OK without an instance"},
      {"quantizer_lying_size", "struct_size is 9218888453225749180"},
      {"quantizer_missing_slot", "the required function dequantize is missing"}};
  for (const auto& [plugin, words] : cases) {
    Place place(plugin);
    const Error error = error_of([&] { place.make(); });
    EXPECT_HAS(error.what(), words);
    EXPECT_HAS(error.what(), std::string(plugin) + ".so");
  }
}

}  // namespace
}  // namespace kvplug
