// SPDX-License-Identifier: Apache-2.0
// A whole run file: plan, explain, run.
#include <kvplug/kvplug.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>

#include "api/events.h"
#include "api/load_model.h"
#include "api/model_library.h"
#include "config/input.h"
#include "generate/task.h"
#include "report/document.h"
#include "report/explain.h"
#include "report/logits_file.h"
#include "report/plan.h"

using namespace kvplug;
using namespace kvplug::api;

namespace {

// Tokens of every prompt, told without weights.
std::vector<int64_t> prompt_tokens(const Effective& effective, const std::vector<config::Prompt>& prompts) {
  const config::Run& run = effective.run;
  const std::filesystem::path folder =
      run.tokenizer.path.empty() ? effective.model->folder : std::filesystem::path(run.tokenizer.path);
  std::shared_ptr<const text::Tokenizer> tokenizer;
  std::shared_ptr<const text::ChatTemplate> chat;
  std::vector<int64_t> out;
  for (const config::Prompt& prompt : prompts) {
    if (prompt.input_ids) {
      out.push_back(static_cast<int64_t>(prompt.input_ids->size()));
      continue;
    }
    if (!tokenizer) tokenizer = reading_model([&] { return text::Tokenizer::load(folder); });
    if (prompt.messages && !chat) chat = load_chat_template(run.tokenizer, folder);
    const std::string text =
        prompt.messages ? generate::render_messages(prompt.messages->dump(), run.tokenizer, chat.get(), *tokenizer)
                        : *prompt.text;
    out.push_back(
        static_cast<int64_t>(tokenizer->encode(text, !prompt.messages && run.tokenizer.add_special_tokens).size()));
  }
  return out;
}

// The batch that takes the most: fresh rows end in one column, so shorter prompts are padded to the longest.
report::RunPlan make_plan(HostState& host, const Effective& effective, const std::vector<config::Prompt>& prompts) {
  const int64_t positions = effective.model->max_position_embeddings;
  const std::vector<int64_t> tokens = prompt_tokens(effective, prompts);
  const auto batch = static_cast<size_t>(effective.run.input.batch_size);
  int64_t slots = prompts.empty() ? generate::final_length(effective.run.generation, 1, positions) - 1 : 0;
  for (size_t first = 0; first < tokens.size(); first += batch) {
    const size_t end = std::min(first + batch, tokens.size());
    const int64_t longest = *std::max_element(tokens.begin() + static_cast<std::ptrdiff_t>(first),
                                              tokens.begin() + static_cast<std::ptrdiff_t>(end));
    for (size_t i = first; i < end; ++i) {
      slots = std::max(slots,
                       longest - tokens[i] + generate::final_length(prompts[i].generation, tokens[i], positions) - 1);
    }
  }
  return report::plan_run(host.registry, effective.run, *effective.model,
                          static_cast<int64_t>(std::clamp<size_t>(tokens.size(), 1, batch)), slots);
}

report::RunPlan make_plan(HostState& host, const Effective& effective) {
  return make_plan(host, effective, config::read_prompts(effective.run, effective.config.where("input.jsonl")));
}

}  // namespace

extern "C" {

kvplug_status kvplug_plan_run(kvplug_host* host, const kvplug_config* config, kvplug_plan* out, kvplug_buf** json,
                              kvp_error* err) {
  return border(err, [&] {
    HostState& state = *need(host, "host").state;
    const Effective effective = make_effective(state, need(config, "config").config, ModelNeed::kRequired);
    const report::RunPlan plan = make_plan(state, effective);
    if (out) {
      const auto tier = [&](int index) {
        const auto& bytes = plan.cache.total.reserved[index];
        return std::accumulate(bytes, bytes + KVP_N_PURPOSES, uint64_t{0});
      };
      kvplug_plan full{};
      full.struct_size = out->struct_size;
      full.weight_bytes = plan.weight_bytes;
      full.cache_bytes_device = tier(KVP_TIER_DEVICE);
      full.cache_bytes_pinned = tier(KVP_TIER_PINNED);
      full.cache_bytes_host = tier(KVP_TIER_HOST);
      full.cache_bytes_file = tier(KVP_TIER_FILE);
      full.scratch_bytes = plan.cache.total.reserved[KVP_TIER_HOST][KVP_PURPOSE_SCRATCH];
      full.peak_device_bytes = plan.cache.total.peak[KVP_TIER_DEVICE];
      full.peak_host_bytes = plan.peak_host_bytes;
      full.limit_host_bytes = plan.limit_host_bytes;
      full.fits = plan.fits ? 1 : 0;
      std::memcpy(out, &full, std::min(out->struct_size, sizeof full));
    }
    if (json) give(json, report::plan_json(plan, effective.run, *effective.model));
  });
}

kvplug_status kvplug_explain(kvplug_host* host, const kvplug_config* config, kvplug_buf** json, kvp_error* err) {
  return border(err, [&] {
    need(json, "json");
    HostState& state = *need(host, "host").state;
    const Effective effective = make_effective(state, need(config, "config").config, ModelNeed::kRequired);
    // Without LibTorch on the machine everything else can still be told.
    nlohmann::json executor;
    try {
      executor = model_library().explain(*effective.model, load_options(effective.run, *effective.model));
    } catch (const Error& e) {
      if (e.code() != Code::kNotFound) throw;
      executor = {{"error", e.message()}};
    }
    give(json, report::explain_run(state.registry, effective.config, effective.run, *effective.model, executor));
  });
}

kvplug_status kvplug_run(kvplug_host* host, const kvplug_config* config, const kvplug_run_params* params,
                         kvplug_buf** json, kvp_error* err) {
  return border(err, [&] {
    need(json, "json");
    const auto state = need(host, "host").state;
    kvplug_run_params hooks{};
    if (params) std::memcpy(&hooks, params, std::min(params->struct_size, sizeof hooks));
    Effective effective = make_effective(*state, need(config, "config").config, ModelNeed::kRequired);
    config::Run run = effective.run;
    // A fresh seed stands in the document, so that the run can be repeated.
    if (!run.run.seed) run.run.seed = std::random_device{}();
    const model::Description description = *effective.model;
    if (run.run.task == "plan") {
      give(json, report::plan_json(make_plan(*state, effective), run, description));
      return;
    }
    const auto prompts = config::read_prompts(run, effective.config.where("input.jsonl"));
    if (prompts.empty())
      throw Error(Code::kConfig, "the run has no prompt", "add [[prompts]], or input.jsonl", "prompts");
    if (run.output.logits_path && *run.output.logits_path == run.output.path) {
      throw Error(Code::kConfig, "is the place of the result as well", "choose another path", "output.logits_path");
    }
    if (run.output.logits_path) report::check_writable(*run.output.logits_path, run.output.overwrite);
    if (run.memory.plan != "off") {
      const report::RunPlan plan = make_plan(*state, effective, prompts);
      if (!plan.fits) {
        throw Error(Code::kPlanExceeded,
                    "this run needs " + std::to_string(plan.peak_host_bytes) + " bytes (weights " +
                        std::to_string(plan.weight_bytes) + ", cache " +
                        std::to_string(plan.peak_host_bytes - plan.weight_bytes) + "), and may use " +
                        std::to_string(plan.limit_host_bytes),
                    "generate fewer tokens, use a smaller batch or dtype, or raise memory.max_host_bytes; `kvplug "
                    "plan` shows the parts");
      }
    }
    const auto start = std::chrono::steady_clock::now();
    const auto model = load_model(state, std::move(effective), progress_of(hooks.progress, hooks.user));
    const double load_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

    generate::TaskHooks task_hooks;
    task_hooks.keep_logits = run.output.logits_path.has_value();
    if (hooks.event) {
      task_hooks.event = [&](const generate::Event& event) {
        const kvplug_event out = event_of(event);
        return hooks.event(hooks.user, &out) == 0;
      };
    }
    const generate::TaskResult task =
        generate::run_prompts(model->context(), model->chat.get(), run, prompts, task_hooks);
    if (run.output.logits_path) report::write_logits(*run.output.logits_path, task, description.vocab_size);
    nlohmann::json document = report::run_document(task, run, description, model->executor->options().dtype, load_s);
    if (std::find(run.output.include.begin(), run.output.include.end(), "config") != run.output.include.end()) {
      document["config"] = model->config.effective_json();
    }
    give(json, document);
  });
}

}  // extern "C"
