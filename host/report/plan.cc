// SPDX-License-Identifier: Apache-2.0
#include "report/plan.h"

#include <algorithm>
#include <functional>
#include <set>

#include "core/accounts.h"
#include "core/registry.h"
#include "generate/memory_limit.h"
#include "generate/session.h"
#include "model/executor.h"
#include "report/machine.h"

namespace kvplug::report {

kvp_dtype compute_dtype(const config::Run& run, const model::Description& model) {
  if (run.model.dtype == "float32") return {KVP_DTYPE_FLOAT, 32, 1};
  if (run.model.dtype == "bfloat16") return {KVP_DTYPE_BFLOAT, 16, 1};
  if (run.model.dtype == "float16") return {KVP_DTYPE_FLOAT, 16, 1};
  return model.checkpoint_dtype;
}

std::string dtype_word(kvp_dtype dtype) {
  if (dtype.code == KVP_DTYPE_BFLOAT) return "bfloat16";
  return "float" + std::to_string(dtype.bits);
}

RunPlan plan_run(Registry& registry, const config::Run& run, const model::Description& model,
                 std::span<const BatchShape> batches) {
  RunPlan out;
  out.dtype = compute_dtype(run, model);
  out.weight_bytes = model::weight_bytes(model, out.dtype);
  // A batch with no more rows than another and no longer ones holds no more; of the rest, the kind says which holds
  // most.
  const std::set<BatchShape, std::greater<>> shapes(batches.begin(), batches.end());
  out.batch = *shapes.begin();
  uint64_t most = 0, cache_peak[KVP_N_TIERS] = {};
  int64_t longest = -1;
  for (const BatchShape& shape : shapes) {
    if (!run.generation.use_cache) break;
    if (shape.tokens <= longest) continue;
    longest = shape.tokens;
    StackParams params;
    params.batch = shape.rows;
    params.tokens = run.generation.max_cache_len.value_or(shape.tokens);
    params.dtype = out.dtype;
    model::place(params, run.model.device);
    StackPlan plan =
        CacheStack::plan(registry, model.cache_layers(), generate::cache_choice(run), params, shape.rows, shape.tokens);
    for (int tier = 0; tier < KVP_N_TIERS; ++tier) {
      cache_peak[tier] = std::max(cache_peak[tier], plan.total.peak[tier]);
    }
    uint64_t held = 0;
    each_bytes(plan.total.reserved, [&](int, int, uint64_t bytes) { held += bytes; });
    if (held <= most && !out.cache.placements.empty()) continue;
    most = held;
    out.cache = std::move(plan);
    out.batch = shape;
  }
  const uint64_t available = available_host_bytes();
  out.limit[KVP_TIER_HOST] = available == 0 ? 0 : generate::usable_bytes(available, run.memory);
  for (const int tier : {KVP_TIER_HOST, KVP_TIER_DEVICE}) {
    out.peak[tier] = generate::weights_in(tier, run.model.device, out.weight_bytes) + cache_peak[tier];
    if (const auto usable = generate::usable_in(tier, run.memory)) out.limit[tier] = *usable;
    out.fits = out.fits && (out.limit[tier] == 0 || out.peak[tier] <= out.limit[tier]);
  }
  return out;
}

nlohmann::json cache_rows(const StackPlan& plan, int32_t LayerPlacement::* number) {
  nlohmann::json rows = nlohmann::json::array();
  for (size_t i = 0; i < plan.layers.size(); ++i) {
    // A hybrid layer is placed twice; its bytes stand under the first.
    const auto at = std::find_if(plan.placements.begin(), plan.placements.end(),
                                 [&](const LayerPlacement& p) { return static_cast<size_t>(p.layer) == i; });
    if (at == plan.placements.end()) continue;
    each_bytes(plan.layers[i].reserved, [&](int tier, int purpose, uint64_t bytes) {
      rows.push_back({{"layer", (*at).*number},
                      {"kind", at->kind},
                      {"plugin", at->plugin},
                      {"tier", tier_word(tier)},
                      {"purpose", purpose_word(purpose)},
                      {"bytes", bytes}});
    });
  }
  return rows;
}

nlohmann::json choices_json(const StackPlan& plan) {
  nlohmann::json out = nlohmann::json::array();
  for (const GroupChoice& choice : plan.choices) {
    out.push_back({{"plugin", choice.plugin},
                   {"backend", choice.backend.empty() ? nlohmann::json(nullptr) : nlohmann::json(choice.backend)},
                   {"options", choice.options},
                   {"key", choice.key_options},
                   {"value", choice.value_options}});
  }
  return out;
}

int64_t packed_tokens(const GroupChoice& choice, int64_t tokens) {
  if (choice.backend.empty() || choice.token_block < 1 || !choice.options.contains("residual_length") ||
      choice.options.value("hf_compat", "") == "strict") {
    return -1;
  }
  const auto option = [&](const char* name) { return choice.options.value(name, int64_t{0}); };
  if (tokens <= option("quantized_kv_start")) return 0;
  const int64_t free = std::max<int64_t>(0, tokens - option("sink_tokens") - option("residual_length"));
  return free / choice.token_block * choice.token_block;
}

nlohmann::json plan_json(const RunPlan& plan, const config::Run& run, const model::Description& model) {
  const char* const weights_tier = tier_word(model::on_device(run.model.device) ? KVP_TIER_DEVICE : KVP_TIER_HOST);
  nlohmann::json totals = {{"weights", {{weights_tier, plan.weight_bytes}}}};
  nlohmann::json rows = cache_rows(plan.cache, &LayerPlacement::model_layer);
  rows.insert(rows.begin(), nlohmann::json{{"layer", nullptr},
                                           {"kind", "weights"},
                                           {"plugin", nullptr},
                                           {"tier", weights_tier},
                                           {"purpose", "weights"},
                                           {"bytes", plan.weight_bytes}});
  const auto full = std::find_if(plan.cache.placements.begin(), plan.cache.placements.end(),
                                 [](const LayerPlacement& p) { return p.kind == "full_attention"; });
  nlohmann::json packed;  // null where there is no such layer, or the kind does not say
  for (const GroupChoice& choice : plan.cache.choices) {
    if (full == plan.cache.placements.end() || choice.plugin != full->plugin) continue;
    if (const int64_t tokens = packed_tokens(choice, plan.batch.tokens); tokens >= 0) packed = tokens;
  }
  uint64_t cache_bytes = 0;
  each_bytes(plan.cache.total.reserved, [&](int tier, int purpose, uint64_t bytes) {
    totals[purpose_word(purpose)][tier_word(tier)] = bytes;
    cache_bytes += bytes;
  });
  return {{"schema_version", 1},
          {"config_digest", run.digest},
          {"model",
           {{"path", model.folder.string()},
            {"model_type", model.model_type},
            {"dtype", dtype_word(plan.dtype)},
            {"layers", model.layers.size()},
            {"parameters", model.parameters}}},
          {"cache_implementation",
           run.generation.use_cache ? nlohmann::json(run.generation.cache_implementation) : nlohmann::json(nullptr)},
          {"batch", plan.batch.rows},
          {"tokens", plan.batch.tokens},
          {"max_cache_len",
           run.generation.max_cache_len ? nlohmann::json(*run.generation.max_cache_len) : nlohmann::json(nullptr)},
          {"choices", choices_json(plan.cache)},
          {"packed_tokens", packed},
          {"rows", rows},
          {"totals", totals},
          {"cache_bytes", cache_bytes},
          {"unquantized_bytes", plan.cache.total.unquantized},
          {"peak_host_bytes", plan.peak[KVP_TIER_HOST]},
          {"limit_host_bytes", plan.limit[KVP_TIER_HOST]},
          {"peak_device_bytes", plan.peak[KVP_TIER_DEVICE]},
          {"limit_device_bytes", plan.limit[KVP_TIER_DEVICE]},
          {"fits", plan.fits}};
}

}  // namespace kvplug::report
