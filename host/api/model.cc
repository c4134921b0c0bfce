// SPDX-License-Identifier: Apache-2.0
#include <kvplug/kvplug.h>

#include "api/load_model.h"
#include "api/model_library.h"
#include "generate/task.h"
#include "report/explain.h"
#include "report/plan.h"

using namespace kvplug;
using namespace kvplug::api;

namespace kvplug::api {

std::shared_ptr<const text::ChatTemplate> load_chat_template(const config::TokenizerSection& settings,
                                                             const std::filesystem::path& folder) {
  if (settings.chat_template == "none") return nullptr;
  if (settings.chat_template != "auto") return text::ChatTemplate::from_file(settings.chat_template);
  try {
    return text::ChatTemplate::load(folder);
  } catch (const Error& e) {
    if (e.code() == Code::kNotFound) return nullptr;  // said when messages need one
    throw;
  }
}

model::Progress progress_of(kvplug_progress_fn fn, void* user) {
  if (!fn) return [](uint64_t, uint64_t) { return true; };
  return [fn, user](uint64_t done, uint64_t total) { return fn(user, done, total) == 0; };
}

model::LoadOptions load_options(const config::Run& run, const model::Description& model) {
  model::LoadOptions options;
  options.dtype = report::compute_dtype(run, model);
  options.threads = run.run.threads;
  options.mmap = run.model.mmap;
  options.device = run.model.device == "auto" ? "cpu" : run.model.device;
  options.deterministic = run.run.deterministic;
  return options;
}

TextState load_text(const Effective& effective) {
  const config::Run& run = effective.run;
  const bool elsewhere = run.tokenizer.path != run.model.path;
  const std::filesystem::path folder = elsewhere ? std::filesystem::path(run.tokenizer.path) : effective.model->folder;
  if (!elsewhere && !std::filesystem::exists(folder / "tokenizer.json")) return {};
  TextState out;
  out.tokenizer = reading_model([&] { return text::Tokenizer::load(folder); });
  out.chat = load_chat_template(run.tokenizer, folder);
  return out;
}

std::shared_ptr<ModelState> load_model(const std::shared_ptr<HostState>& host, Effective effective, TextState text,
                                       const model::Progress& progress) {
  const config::Run& run = effective.run;
  model::Module& module = model_library();
  module.set_threads(run.run.threads);
  module.open(load_options(run, *effective.model).device);
  if (host->own_parallel) host->services.set_parallel(module.parallel());
  auto out = std::make_shared<ModelState>();
  out->host = host;
  out->tokenizer = std::move(text.tokenizer);
  out->chat = std::move(text.chat);
  out->executor =
      reading_model([&] { return module.load(*effective.model, load_options(run, *effective.model), progress); });
  if (out->executor->options().device != "cpu") {
    Accounts::get().set_device_allocator(module.device_allocator());
  }
  out->layers = effective.model->cache_layers();
  out->config = std::move(effective.config);
  return out;
}

}  // namespace kvplug::api

extern "C" {

kvplug_status kvplug_model_load(kvplug_host* host, const kvplug_config* config, kvplug_progress_fn progress, void* user,
                                kvplug_model** out, kvp_error* err) {
  return border(err, [&] {
    need(out, "out");
    const auto state = need(host, "host").state;
    auto model = std::make_unique<kvplug_model>();
    Effective effective = make_effective(*state, need(config, "config").config, ModelNeed::kRequired);
    // Small things first: a bad tokenizer should not cost the time of loading weights.
    TextState text = load_text(effective);
    model->state = load_model(state, std::move(effective), std::move(text), progress_of(progress, user));
    *out = model.release();
  });
}

kvplug_model* kvplug_model_retain(kvplug_model* model) { return retain(model); }
void kvplug_model_release(kvplug_model* model) { release(model); }

kvplug_status kvplug_model_describe(kvplug_model* model, kvplug_buf** json, kvp_error* err) {
  return border(err, [&] {
    need(json, "json");
    ModelState& state = *need(model, "model").state;
    const config::Run run = make_effective(*state.host, state.config, ModelNeed::kNone).run;
    give(json, report::explain_run(state.host->registry, state.config, run, state.executor->description(),
                                   state.executor->explain()));
  });
}

kvplug_status kvplug_model_layers(kvplug_model* model, const kvp_layer** layers, size_t* n, size_t* stride,
                                  kvp_error* err) {
  return border(err, [&] {
    need(layers, "layers"), need(n, "n"), need(stride, "stride");
    const ModelState& state = *need(model, "model").state;
    *layers = state.layers.data();
    *n = state.layers.size();
    *stride = sizeof(kvp_layer);
  });
}

kvplug_status kvplug_model_encode(kvplug_model* model, const char* text, size_t len, uint32_t add_special, int32_t* ids,
                                  size_t cap, size_t* count, kvp_error* err) {
  return border(err, [&] {
    need(count, "count");
    const ModelState& state = *need(model, "model").state;
    if (!state.tokenizer) throw Error(Code::kUnsupported, "the model folder has no tokenizer.json");
    const auto all = state.tokenizer->encode(text_of(text, len), add_special != 0);
    if (cap != 0) std::copy_n(all.begin(), std::min(cap, all.size()), &need(ids, "ids"));
    *count = all.size();
  });
}

kvplug_status kvplug_model_decode(kvplug_model* model, const int32_t* ids, size_t n, uint32_t skip_special,
                                  kvplug_buf** text, kvp_error* err) {
  return border(err, [&] {
    need(text, "text");
    const ModelState& state = *need(model, "model").state;
    if (!state.tokenizer) throw Error(Code::kUnsupported, "the model folder has no tokenizer.json");
    if (n != 0) need(ids, "ids");
    give(text, state.tokenizer->decode({ids, n}, skip_special != 0));
  });
}

kvplug_status kvplug_model_chat(kvplug_model* model, const char* messages_json, size_t len, const char* options_json,
                                kvplug_buf** prompt, kvp_error* err) {
  return border(err, [&] {
    need(prompt, "prompt");
    const ModelState& state = *need(model, "model").state;
    if (!state.tokenizer) throw Error(Code::kUnsupported, "the model folder has no tokenizer.json");
    config::Config config = state.config;
    if (options_json) {
      const auto options = nlohmann::json::parse(options_json, nullptr, false);
      if (!options.is_object()) throw Error(Code::kInvalidArgument, "options_json is not a JSON object");
      config.merge_json(nlohmann::json{{"config_version", 1}, {"tokenizer", options}}.dump(), "options_json",
                        std::filesystem::current_path());
    }
    const config::TokenizerSection settings = config.resolve(nullptr).tokenizer;
    const auto chat = options_json ? load_chat_template(settings, settings.path) : state.chat;
    give(prompt, generate::render_messages(text_of(messages_json, len), settings, chat.get(), *state.tokenizer));
  });
}

}  // extern "C"
