// SPDX-License-Identifier: Apache-2.0
#include "report/explain.h"

#include "core/registry.h"
#include "generate/session.h"
#include "report/plan.h"

namespace kvplug::report {

nlohmann::json explain_run(Registry& registry, const config::Config& config, const config::Run& run,
                           const model::Description& model, const nlohmann::json& executor) {
  nlohmann::json settings = nlohmann::json::object();
  for (const char* section :
       {"run", "model", "tokenizer", "input", "generation", "cache", "memory", "plugins", "output"}) {
    settings[section] = config.get(section);
  }
  nlohmann::json layers = nlohmann::json::array();
  if (run.generation.use_cache) {
    StackParams params;
    params.dtype = compute_dtype(run, model);
    const StackPlan plan = CacheStack::plan(registry, model.cache_layers(), generate::cache_choice(run), params, 1, 1);
    for (const LayerPlacement& p : plan.placements) {
      layers.push_back({{"layer", p.model_layer},
                        {"kind", p.kind},
                        {"plugin", p.plugin},
                        {"attend", p.attend},
                        {"reason", p.reason}});
    }
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
          {"cache",
           {{"implementation",
             run.generation.use_cache ? nlohmann::json(run.generation.cache_implementation) : nlohmann::json(nullptr)},
            {"layers", layers},
            {"require", run.cache.negotiation.require}}},
          {"executor", executor},
          {"settings", settings},
          {"without_effect", run.without_effect},
          {"notices", notices}};
}

}  // namespace kvplug::report
