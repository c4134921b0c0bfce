// SPDX-License-Identifier: Apache-2.0
// bench and diff.
#include <kvplug/kvplug.h>

#include <cstring>

#include "api/load_model.h"
#include "config/input.h"
#include "generate/task.h"
#include "report/bench.h"
#include "report/diff.h"

using namespace kvplug;
using namespace kvplug::api;

namespace {

kvplug_measure_params hooks_of(const kvplug_measure_params* params) {
  kvplug_measure_params hooks{};
  if (params) std::memcpy(&hooks, params, std::min(params->struct_size, sizeof hooks));
  return hooks;
}

report::MeasureContext context_of(const ModelState& model, const kvplug_measure_params& hooks) {
  report::MeasureContext context;
  context.registry = &model.host->registry;
  context.executor = model.executor;
  context.tokenizer = model.tokenizer;
  if (hooks.measure) {
    context.progress = [hooks](const std::string& what, uint64_t done, uint64_t total) {
      return hooks.measure(hooks.user, what.c_str(), done, total) == 0;
    };
  }
  return context;
}

// The texts of [diff] as ids: its file, else the prompts.
std::vector<report::DiffText> read_texts(const Effective& effective, const TextState& text) {
  const config::Run& run = effective.run;
  std::vector<report::DiffText> out;
  if (run.diff.file) {
    const std::string where = effective.config.where("diff.file");
    if (!text.tokenizer) {
      throw Error(Code::kConfig, "the model folder has no tokenizer.json, so text cannot be read",
                  "give tokenizer.path, or prompts with input_ids", where);
    }
    const std::string all = config::read_text_file(*run.diff.file, where);
    out.push_back({"file", text.tokenizer->encode(all, run.tokenizer.add_special_tokens)});
    return out;
  }
  const auto prompts = config::read_prompts(run, effective.config.where("input.jsonl"));
  std::vector<std::string> notices;
  for (generate::TaskPrompt& prompt :
       generate::encode_prompts(run, prompts, text.tokenizer.get(), text.chat.get(), notices)) {
    if (prompt.error) throw *prompt.error;
    out.push_back({prompt.id, std::move(prompt.ids)});
  }
  if (out.empty()) throw Error(Code::kConfig, "nothing to score", "set diff.file, or add [[prompts]]", "diff.file");
  return out;
}

}  // namespace

extern "C" {

kvplug_status kvplug_bench(kvplug_host* host, const kvplug_config* config, const kvplug_measure_params* params,
                           kvplug_buf** json, kvp_error* err) {
  return border(err, [&] {
    need(json, "json");
    const auto state = need(host, "host").state;
    const kvplug_measure_params hooks = hooks_of(params);
    Effective effective = make_effective(*state, need(config, "config").config, ModelNeed::kRequired);
    const config::Run run = effective.run;
    const auto model = load_model(state, std::move(effective), {}, progress_of(hooks.progress, hooks.user));
    give(json, report::bench_document(context_of(*model, hooks), run));
  });
}

kvplug_status kvplug_diff(kvplug_host* host, const kvplug_config* config, const kvplug_measure_params* params,
                          kvplug_buf** json, kvp_error* err) {
  return border(err, [&] {
    need(json, "json");
    const auto state = need(host, "host").state;
    const kvplug_measure_params hooks = hooks_of(params);
    Effective effective = make_effective(*state, need(config, "config").config, ModelNeed::kRequired);
    const config::Run run = effective.run;
    TextState text = load_text(effective);
    std::vector<report::DiffText> texts = read_texts(effective, text);
    const auto model =
        load_model(state, std::move(effective), std::move(text), progress_of(hooks.progress, hooks.user));
    give(json, report::diff_document(context_of(*model, hooks), run, std::move(texts)));
  });
}

}  // extern "C"
