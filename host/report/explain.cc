// SPDX-License-Identifier: Apache-2.0
#include "report/explain.h"

#include <algorithm>

#include "core/registry.h"
#include "generate/generation.h"
#include "generate/memory_limit.h"
#include "generate/session.h"
#include "model/executor.h"
#include "report/advice.h"
#include "report/plan.h"

namespace kvplug::report {

namespace {

// The cache of a run: who serves which layer, how, and with what options.
nlohmann::json explain_cache(Registry& registry, const config::Run& run, const model::Description& model) {
  nlohmann::json layers = nlohmann::json::array();
  nlohmann::json choices = nlohmann::json::array(), advice = nlohmann::json::array();
  std::string unprepared = "use_cache = false", uncaptured = unprepared;
  if (run.generation.use_cache) {
    StackParams params;
    params.dtype = compute_dtype(run, model);
    model::place(params, run.model.device);
    // Without prompts at hand, what one token would need stands for the capacity of a kind that has one.
    params.tokens = run.generation.max_cache_len.value_or(
        std::max<int64_t>(1, generate::final_length(run.generation, 1, model.max_position_embeddings) - 1));
    const StackPlan plan = CacheStack::plan(registry, model.cache_layers(), generate::cache_choice(run), params, 1, 1);
    unprepared = run.generation.disable_compile ? "disable_compile = true" : plan.unprepared;
    uncaptured = run.generation.disable_compile ? unprepared : plan.uncaptured;
    choices = choices_json(plan);
    for (const GroupChoice& choice : plan.choices) {
      for (std::string& text : advice_on(choice)) {
        if (std::find(advice.begin(), advice.end(), text) == advice.end()) advice.push_back(std::move(text));
      }
    }
    for (const LayerPlacement& p : plan.placements) {
      layers.push_back({{"layer", p.model_layer},
                        {"kind", p.kind},
                        {"plugin", p.plugin},
                        {"attend", p.attend},
                        {"reason", p.reason}});
      if (p.quantizer_key.empty()) continue;
      layers.back()["quantizer_key"] = p.quantizer_key;
      layers.back()["quantizer_value"] = p.quantizer_value;
    }
  }
  return {{"implementation",
           run.generation.use_cache ? nlohmann::json(run.generation.cache_implementation) : nlohmann::json(nullptr)},
          {"layers", layers},
          {"choices", choices},
          {"advice", advice},
          {"prepared_step", generate::prepared_json(unprepared)},
          {"captured_step", generate::captured_json(model::on_device(run.model.device), uncaptured)},
          {"max_cache_len",
           run.generation.max_cache_len ? nlohmann::json(*run.generation.max_cache_len) : nlohmann::json(nullptr)},
          {"require", run.cache.negotiation.require}};
}

}  // namespace

nlohmann::json explain_run(Registry& registry, const config::Config& config, const config::Run& run,
                           const model::Description& model, const nlohmann::json& executor) {
  nlohmann::json settings = nlohmann::json::object();
  for (const char* section :
       {"run", "model", "tokenizer", "input", "generation", "cache", "memory", "plugins", "output"}) {
    settings[section] = config.get(section);
  }
  nlohmann::json cache = explain_cache(registry, run, model);
  cache["oom_fallback"] = nullptr;
  if (run.cache.oom_fallback) {
    config::Run other = run;
    generate::take_fallback(other);
    cache["oom_fallback"] = explain_cache(registry, other, model);
  }
  nlohmann::json notices = nlohmann::json::array();
  for (const config::Notice& notice : run.notices) notices.push_back({{"code", notice.code}, {"text", notice.text}});
  for (const std::string& text : model.notices) notices.push_back({{"code", "checkpoint"}, {"text", text}});
  return {{"schema_version", 1},
          {"config_digest", run.digest},
          {"model",
           {{"path", model.folder.string()},
            {"model_type", model.model_type},
            {"architecture", model.architecture},
            {"dtype", dtype_word(compute_dtype(run, model))},
            {"checkpoint_dtype", dtype_word(model.checkpoint_dtype)},
            {"layers", model.layers.size()},
            {"parameters", model.parameters},
            {"rope", model.rope.type},
            {"eos_token_id", run.generation.eos_token_id}}},
          {"cache", cache},
          {"executor", executor},
          {"settings", settings},
          {"without_effect", run.without_effect},
          {"notices", notices}};
}

}  // namespace kvplug::report
