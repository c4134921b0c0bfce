// SPDX-License-Identifier: Apache-2.0
#include "report/document.h"

#include <algorithm>

#include "core/host_services.h"
#include "report/plan.h"

namespace kvplug::report {
namespace {

bool included(const config::Run& run, const char* what) {
  const auto& include = run.output.include;
  return std::find(include.begin(), include.end(), what) != include.end();
}

// Runs of layers with the same placement, by the model's indices.
nlohmann::json stack_json(const std::vector<LayerPlacement>& placements) {
  nlohmann::json out = nlohmann::json::array();
  const LayerPlacement* last = nullptr;
  for (const LayerPlacement& p : placements) {
    if (last && last->kind == p.kind && last->plugin == p.plugin && last->attend == p.attend &&
        last->quantizer_key == p.quantizer_key) {
      out.back()["layers"].push_back(p.model_layer);
    } else {
      out.push_back({{"layers", {p.model_layer}}, {"kind", p.kind}, {"plugin", p.plugin}, {"attend", p.attend}});
      if (!p.quantizer_key.empty()) {
        out.back()["quantizer_key"] = p.quantizer_key;
        out.back()["quantizer_value"] = p.quantizer_value;
      }
    }
    last = &p;
  }
  return out;
}

nlohmann::json cache_json(const generate::TaskResult& task, const config::Run& run) {
  // Names that every document has, so that readers need not ask; plugins add their own.
  nlohmann::json counters = {{"fused_attend_calls", 0}, {"view_attend_calls", 0}, {"dequantized_tokens", 0},
                             {"requantized_tokens", 0}, {"packed_tokens", 0},     {"prefetch_hits", 0},
                             {"prefetch_stalls", 0},    {"bytes_moved", 0},       {"oom_fallbacks", 0},
                             {"cache_rebuilds", 0},     {"prepared_steps", 0}};
  nlohmann::json bytes = {{"planned", 0},
                          {"used", 0},
                          {"reserved", 0},
                          {"unquantized", 0},
                          {"by_tier", {{"device", 0}, {"pinned", 0}, {"host", 0}, {"file", 0}}}};
  nlohmann::json tokens = 0;
  if (task.stats.is_object()) {
    counters.update(task.stats["counters"]);
    bytes = task.stats["bytes"];
    tokens = task.stats["tokens"];
  }
  return {{"implementation",
           run.generation.use_cache ? nlohmann::json(run.generation.cache_implementation) : nlohmann::json(nullptr)},
          {"stack", stack_json(task.placements)},
          {"tokens", tokens},
          {"bytes", bytes},
          {"counters", counters}};
}

nlohmann::json row_json(const std::string& id, const generate::RowResult& row, const generate::Timings& timings,
                        const config::Run& run) {
  nlohmann::json sequence = {{"token_ids", row.token_ids},
                             {"text", row.text},
                             {"score", nullptr},
                             {"finish_reason", generate::finish_word(row.finish)}};
  if (included(run, "logprobs")) sequence["logprobs"] = row.logprobs;
  return {
      {"id", id},
      {"prompt_tokens", row.prompt_tokens},
      {"sequences", {sequence}},
      {"usage",
       {{"prompt_tokens", row.prompt_tokens},
        {"reused_tokens", row.reused_tokens},
        {"new_tokens", row.token_ids.size()}}},
      {"timings",
       {{"prefill_s", timings.prefill_s}, {"decode_s", timings.decode_s}, {"first_token_s", timings.first_token_s}}}};
}

double rate(uint64_t tokens, double seconds) { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0; }

}  // namespace

nlohmann::json result_json(const generate::PromptResult& prompt, const config::Run& run) {
  nlohmann::json out = row_json(prompt.id, prompt.row, prompt.timings, run);
  if (prompt.error) {
    out["error"] = {{"code", code_word(prompt.error->code())},
                    {"message", prompt.error->message()},
                    {"hint", prompt.error->hint()},
                    {"where", prompt.error->where()}};
  }
  return out;
}

nlohmann::json results_json(const std::vector<generate::RowResult>& rows, const generate::Timings& timings,
                            const config::Run& run) {
  nlohmann::json out = nlohmann::json::array();
  for (size_t i = 0; i < rows.size(); ++i) out.push_back(row_json(std::to_string(i), rows[i], timings, run));
  return out;
}

nlohmann::json run_document(const generate::TaskResult& task, const config::Run& run, const model::Description& model,
                            kvp_dtype dtype, double load_s) {
  nlohmann::json results = nlohmann::json::array();
  uint64_t prefill_tokens = 0, decode_tokens = 0;
  double prefill_s = 0, decode_s = 0;
  const auto batch = static_cast<size_t>(run.input.batch_size);
  for (size_t i = 0; i < task.prompts.size(); ++i) {
    results.push_back(result_json(task.prompts[i], run));
    if (i % batch != 0) continue;  // timings are a batch's
    const generate::Timings& t = task.prompts[i].timings;
    prefill_tokens += t.prefill_tokens;
    decode_tokens += t.decode_tokens;
    prefill_s += t.prefill_s;
    decode_s += t.decode_s;
  }
  nlohmann::json notices = nlohmann::json::array();
  for (const config::Notice& n : run.notices) notices.push_back({{"code", n.code}, {"text", n.text}});
  for (const std::string& text : model.notices) notices.push_back({{"code", "checkpoint"}, {"text", text}});
  for (const std::string& text : task.notices) notices.push_back({{"code", "run"}, {"text", text}});
  return {{"schema_version", 1},
          {"kvplug", HostServices::version()},
          {"name", run.run.name},
          {"config_digest", run.digest},
          {"seed", run.run.seed ? nlohmann::json(*run.run.seed) : nlohmann::json(nullptr)},
          {"model",
           {{"path", model.folder.string()},
            {"model_type", model.model_type},
            {"dtype", dtype_word(dtype)},
            {"device", run.model.device == "auto" ? "cpu" : run.model.device},
            {"layers", model.layers.size()},
            {"parameters", model.parameters}}},
          {"cache", cache_json(task, run)},
          {"results", results},
          {"timings",
           {{"load_s", load_s},
            {"prefill_tokens_per_s", rate(prefill_tokens, prefill_s)},
            {"decode_tokens_per_s", rate(decode_tokens, decode_s)}}},
          {"notices", notices}};
}

}  // namespace kvplug::report
