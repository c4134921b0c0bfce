// SPDX-License-Identifier: Apache-2.0
// A whole run file: plan, explain, run.
#include <kvplug/kvplug.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <random>
#include <span>

#include "api/events.h"
#include "api/load_model.h"
#include "api/model_library.h"
#include "config/input.h"
#include "generate/memory_limit.h"
#include "generate/slot_need.h"
#include "generate/task.h"
#include "report/document.h"
#include "report/explain.h"
#include "report/logits_file.h"
#include "report/plan.h"

using namespace kvplug;
using namespace kvplug::api;

namespace {

// The prompts of a run as ids, made once: for the plan and for the run.
struct Prompts {
  TextState text;
  std::vector<generate::TaskPrompt> all;
  std::vector<std::string> notices;
};

Prompts read_prompts(const Effective& effective) {
  const auto prompts = config::read_prompts(effective.run, effective.config.where("input.jsonl"));
  Prompts out;
  const bool ids_only =
      std::all_of(prompts.begin(), prompts.end(), [](const auto& p) { return p.input_ids.has_value(); });
  if (!ids_only) out.text = load_text(effective);
  out.all =
      generate::encode_prompts(effective.run, prompts, out.text.tokenizer.get(), out.text.chat.get(), out.notices);
  return out;
}

// The batches of a run; fresh rows end in one column, so shorter prompts are padded to the longest. One row of one
// token stands for a run that has none.
std::vector<report::BatchShape> batches_of(const Effective& effective,
                                           const std::vector<generate::TaskPrompt>& prompts) {
  const int64_t positions = effective.model->max_position_embeddings;
  const auto size = static_cast<size_t>(effective.run.input.batch_size);
  const auto tokens_of = [](const generate::TaskPrompt& prompt) {
    return std::max<int64_t>(static_cast<int64_t>(prompt.ids.size()), 1);  // nothing at all starts with BOS
  };
  std::vector<report::BatchShape> out;
  generate::SlotNeed most;
  for (size_t first = 0; first < prompts.size(); first += size) {
    std::vector<const generate::TaskPrompt*> members;
    int64_t longest = 0;
    for (size_t i = first; i < std::min(first + size, prompts.size()); ++i) {
      if (prompts[i].error) continue;
      members.push_back(&prompts[i]);
      longest = std::max(longest, tokens_of(prompts[i]));
    }
    if (members.empty()) continue;
    generate::SlotNeed need;
    for (const generate::TaskPrompt* prompt : members) {
      const int64_t tokens = tokens_of(*prompt);
      need.include(longest, generate::final_length(prompt->settings, tokens, positions) - tokens);
    }
    out.push_back({static_cast<int64_t>(members.size()), need.slots()});
    most.include(need.prompt, need.new_tokens);
  }
  if (out.empty()) {
    most.include(1, generate::final_length(effective.run.generation, 1, positions) - 1);
    out.push_back({1, most.slots()});
  }
  generate::check_max_cache_len(most, effective.run);
  return out;
}

report::RunPlan make_plan(HostState& host, const Effective& effective, std::span<const report::BatchShape> batches) {
  return report::plan_run(host.registry, effective.run, *effective.model, batches);
}

// Of the run as it is after falling back, which `other` becomes.
report::RunPlan plan_fallback(HostState& host, Effective& other, std::span<const report::BatchShape> batches) {
  generate::take_fallback(other.run);
  return make_plan(host, other, batches);
}

// The plan's document, with what the run would fall back to.
nlohmann::json plan_document(HostState& host, const Effective& effective, std::span<const report::BatchShape> batches,
                             const report::RunPlan& plan) {
  nlohmann::json out = report::plan_json(plan, effective.run, *effective.model);
  out["oom_fallback"] = nullptr;
  if (effective.run.cache.oom_fallback) {
    Effective other = effective;
    const report::RunPlan its = plan_fallback(host, other, batches);
    out["oom_fallback"] = report::plan_json(its, other.run, *other.model);
  }
  return out;
}

}  // namespace

extern "C" {

kvplug_status kvplug_plan_run(kvplug_host* host, const kvplug_config* config, kvplug_plan* out, kvplug_buf** json,
                              kvp_error* err) {
  return border(err, [&] {
    HostState& state = *need(host, "host").state;
    const Effective effective = make_effective(state, need(config, "config").config, ModelNeed::kRequired);
    const auto batches = batches_of(effective, read_prompts(effective).all);
    const report::RunPlan plan = make_plan(state, effective, batches);
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
      full.peak_device_bytes = plan.peak[KVP_TIER_DEVICE];
      full.peak_host_bytes = plan.peak[KVP_TIER_HOST];
      full.limit_host_bytes = plan.limit[KVP_TIER_HOST];
      full.fits = plan.fits ? 1 : 0;
      std::memcpy(out, &full, std::min(out->struct_size, sizeof full));
    }
    if (json) give(json, plan_document(state, effective, batches, plan));
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
      const auto batches = batches_of(effective, read_prompts(effective).all);
      give(json, plan_document(*state, effective, batches, make_plan(*state, effective, batches)));
      return;
    }
    Prompts prompts = read_prompts(effective);
    if (prompts.all.empty())
      throw Error(Code::kConfig, "the run has no prompt", "add [[prompts]], or input.jsonl", "prompts");
    if (run.output.logits_path && *run.output.logits_path == run.output.path) {
      throw Error(Code::kConfig, "is the place of the result as well", "choose another path", "output.logits_path");
    }
    if (run.output.logits_path) report::check_writable(*run.output.logits_path, run.output.overwrite);
    uint64_t planned_fallbacks = 0;
    const auto batches = batches_of(effective, prompts.all);
    // A cache that cannot be made is refused before the weights are read, and so is the one to fall back to.
    const auto check = [&] {
      const report::RunPlan plan = make_plan(*state, effective, batches);
      if (run.cache.oom_fallback) {
        Effective other = effective;
        plan_fallback(*state, other, batches);
      }
      if (run.memory.plan == "off") return;
      for (const int tier : {KVP_TIER_HOST, KVP_TIER_DEVICE}) {
        const uint64_t weights = generate::weights_in(tier, run.model.device, plan.weight_bytes);
        if (plan.limit[tier] != 0) generate::check_fits(tier, weights, plan.peak[tier] - weights, plan.limit[tier]);
      }
    };
    try {
      check();
    } catch (const Error& first) {
      if (!generate::is_out_of_memory(first)) throw;
      if (!run.cache.oom_fallback) throw generate::with_memory_hint(first, run);
      // The failure that the plan foresees takes the way of one that happens.
      generate::Event notice;
      notice.type = generate::EventType::kNotice;
      notice.text = generate::retry_text(first, *run.cache.oom_fallback);
      prompts.notices.push_back(notice.text);
      const kvplug_event out = event_of(notice);
      if (hooks.event) hooks.event(hooks.user, &out);
      generate::take_fallback(run);
      generate::take_fallback(effective.run);
      planned_fallbacks = 1;
      try {
        check();
      } catch (const Error& second) {
        if (!generate::is_out_of_memory(second)) throw;
        throw generate::both_failed(first, second);
      }
    }
    // A folder that is run by ids alone has its tokenizer for the texts of the answers.
    if (!prompts.text.tokenizer) prompts.text = load_text(effective);
    const auto start = std::chrono::steady_clock::now();
    const auto model =
        load_model(state, std::move(effective), std::move(prompts.text), progress_of(hooks.progress, hooks.user));
    const double load_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();

    generate::TaskHooks task_hooks;
    task_hooks.keep_logits = run.output.logits_path.has_value();
    if (hooks.event) {
      task_hooks.event = [&](const generate::Event& event) {
        const kvplug_event out = event_of(event);
        return hooks.event(hooks.user, &out) == 0;
      };
    }
    generate::TaskResult task = generate::run_prompts(model->context(), run, prompts.all, task_hooks);
    task.notices.insert(task.notices.begin(), prompts.notices.begin(), prompts.notices.end());
    generate::add_counters(task.stats["counters"], {{"oom_fallbacks", planned_fallbacks}});
    if (run.output.logits_path) report::write_logits(*run.output.logits_path, task, description.vocab_size);
    nlohmann::json document = report::run_document(task, run, description, model->executor->options().dtype, load_s);
    if (std::find(run.output.include.begin(), run.output.include.end(), "config") != run.output.include.end()) {
      document["config"] = model->config.effective_json();
    }
    give(json, document);
  });
}

}  // extern "C"
