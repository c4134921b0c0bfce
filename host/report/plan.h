// SPDX-License-Identifier: Apache-2.0
// What a run will hold in memory, before a byte of weights is read: config.json and safetensors headers give the
// weights, the plugins' own plans the cache, exact per tier and purpose.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <vector>

#include "config/run.h"
#include "core/cache_stack.h"
#include "model/describe/description.h"

namespace kvplug {
class Registry;
}

namespace kvplug::report {

// What the cache of one batch is for: rows, and slots of each.
struct BatchShape {
  int64_t rows = 1, tokens = 0;
  auto operator<=>(const BatchShape&) const = default;
};

struct RunPlan {
  uint64_t weight_bytes = 0;
  StackPlan cache;   // of the batch that holds most; empty with use_cache = false
  BatchShape batch;  // which that is
  // Weights and cache by KVP_TIER_HOST and KVP_TIER_DEVICE, the most of any batch, and what of the tier the run may
  // use: headroom taken off, 0 = unknown.
  uint64_t peak[KVP_N_TIERS] = {}, limit[KVP_N_TIERS] = {};
  bool fits = true;
  kvp_dtype dtype{};
};

kvp_dtype compute_dtype(const config::Run& run, const model::Description& model);
std::string dtype_word(kvp_dtype dtype);  // "float32", ...

// batches: at least one. Each has a cache of its own, one after the other.
RunPlan plan_run(Registry& registry, const config::Run& run, const model::Description& model,
                 std::span<const BatchShape> batches);

// One row for each layer, tier and purpose that holds bytes: {layer, kind, plugin, tier, purpose, bytes}; number: which
// of a placement's numbers stands under `layer`.
nlohmann::json cache_rows(const StackPlan& plan, int32_t LayerPlacement::* number);

// What each cache instance is made with: [{plugin, backend, options, key, value}]; backend null where it takes no
// quantizers.
nlohmann::json choices_json(const StackPlan& plan);
// Of a row of `tokens` tokens, how many a FULL layer of the kind packs: whole blocks behind sink_tokens and before
// residual_length; -1 where the kind does not say so (no quantizers, or hf_compat = "strict", whose schedule counts).
int64_t packed_tokens(const GroupChoice& choice, int64_t tokens);

// {"schema_version", "model", "batch", "tokens", "rows": [{layer, kind, plugin, tier, purpose, bytes}], "totals",
// "fits", ...}
nlohmann::json plan_json(const RunPlan& plan, const config::Run& run, const model::Description& model);

}  // namespace kvplug::report
