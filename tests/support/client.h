// SPDX-License-Identifier: Apache-2.0
// Tests from outside: what an application does with <kvplug/kvplug.h>, in few words. `play` decodes and keeps what the
// application can see of every step; with `forced` ids it teacher-forces after looking at the library's own choice.
#pragma once

#include <kvplug/kvplug.hpp>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvplug::testing {

using nlohmann::json;
using Ids = std::vector<int32_t>;

template <class F, class... Args>
json json_from(F function, Args&&... args) {
  return json::parse(client::text_from(function, std::forward<Args>(args)...));
}

inline client::Config make_config(kvplug_host* host, const json& document) {
  client::Config config = client::make<client::Config>(kvplug_config_create, host);
  const std::string text = document.dump();
  client::call(kvplug_config_merge_json, config.get(), text.data(), text.size(), "test");
  return config;
}

// A run of the model in `folder` that takes no defaults from the checkpoint: `generation` alone counts, and no eos
// where it names none.
inline json run_document(const std::string& folder, json generation) {
  if (!generation.contains("eos_token_id") || generation["eos_token_id"].is_null()) {
    generation["eos_token_id"] = json::array();
  }
  return {{"config_version", 1},
          {"model", {{"path", folder}, {"use_generation_config", false}}},
          {"generation", std::move(generation)}};
}

inline client::Model load_model(kvplug_host* host, const json& document) {
  const client::Config config = make_config(host, document);
  return client::make<client::Model>(kvplug_model_load, host, config.get(), nullptr, nullptr);
}

inline client::Session make_session(kvplug_host* host, kvplug_model* model, const json& document) {
  const client::Config config = make_config(host, document);
  return client::make<client::Session>(kvplug_session_create, model, config.get());
}

inline void append_rows(kvplug_session* session, const std::vector<Ids>& rows) {
  for (size_t b = 0; b < rows.size(); ++b) {
    client::call(kvplug_session_append_ids, session, static_cast<uint32_t>(b), rows[b].data(), rows[b].size());
  }
}

inline size_t set_ids(kvplug_session* session, uint32_t row, const Ids& ids) {
  size_t reused = 0;
  client::call(kvplug_session_set_ids, session, row, ids.data(), ids.size(), &reused);
  return reused;
}

struct Step {
  int32_t choice = -1;  // the library's own
  float logprob = 0;
  std::vector<float> logits, scores;  // [vocab]
};

struct Play {
  std::vector<std::vector<Step>> rows;  // [row][step]
  std::vector<int32_t> finish;          // KVPLUG_FINISH_
};

inline std::vector<float> floats_of(const kvp_tensor& view) {
  const auto* data = static_cast<const float*>(view.data);
  return {data, data + view.shape[0]};
}

inline Play play(kvplug_session* session, size_t rows, const kvplug_config* overrides = nullptr,
                 const std::vector<Ids>& forced = {}) {
  Play out{std::vector<std::vector<Step>>(rows), std::vector<int32_t>(rows, KVPLUG_FINISH_NONE)};
  const auto generation = client::make<client::Generation>(kvplug_generation_start, session, overrides);
  for (;;) {
    kvplug_event event{};
    event.struct_size = sizeof event;
    char text[4096] = "";
    kvp_error err{};
    err.struct_size = sizeof err;
    err.buf = text;
    err.cap = sizeof text;
    const kvplug_status status = kvplug_generation_next(generation.get(), 0, &event, &err);
    if (status == KVPLUG_END) return out;
    if (status != KVP_OK) throw client::Failure(status, text);
    if (event.type == KVPLUG_EVENT_FINISH) out.finish[event.row] = event.finish_reason;
    if (event.type != KVPLUG_EVENT_TOKEN) continue;
    auto& steps = out.rows[event.row];
    kvp_tensor logits{}, scores{};
    client::call(kvplug_generation_logits, generation.get(), event.row, &logits);
    client::call(kvplug_generation_scores, generation.get(), event.row, &scores);
    steps.push_back({event.token_id, event.logprob, floats_of(logits), floats_of(scores)});
    if (!forced.empty() && steps.size() <= forced[event.row].size()) {
      client::call(kvplug_generation_force, generation.get(), event.row, forced[event.row][steps.size() - 1]);
    }
  }
}

inline Ids choices(const std::vector<Step>& steps) {
  Ids out;
  for (const Step& step : steps) out.push_back(step.choice);
  return out;
}

}  // namespace kvplug::testing
