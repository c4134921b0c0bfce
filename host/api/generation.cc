// SPDX-License-Identifier: Apache-2.0
#include <kvplug/kvplug.h>

#include <algorithm>
#include <cstring>

#include "api/effective.h"
#include "api/events.h"
#include "report/document.h"

using namespace kvplug;
using namespace kvplug::api;

namespace kvplug::api {

kvplug_event event_of(const generate::Event& event) {
  kvplug_event out{};
  out.struct_size = sizeof out;
  out.type = static_cast<int32_t>(event.type);
  out.row = event.row;
  out.token_id = event.token_id;
  out.logprob = event.logprob;
  out.finish_reason = static_cast<int32_t>(event.finish);
  out.position = event.position;
  out.text = event.text.c_str();
  out.text_len = event.text.size();
  return out;
}

}  // namespace kvplug::api

namespace {

// The session's [generation] with the keys of `overrides` above it.
config::Generation settings_of(const SessionState& state, const kvplug_config* overrides) {
  if (!overrides) return state.session->run().generation;
  config::Config config = state.config;
  config.overlay(overrides->config);
  config::Generation out = config.resolve().generation;
  const config::Generation now = state.config.resolve().generation;  // as asked for, whatever a lack of memory led to
  if (out.cache_implementation != now.cache_implementation || out.cache_config != now.cache_config ||
      out.use_cache != now.use_cache || out.max_cache_len != now.max_cache_len) {
    throw Error(Code::kConfig, "the cache of a session cannot be changed by a generation", "create another session",
                "generation.cache_implementation");
  }
  return out;
}

kvp_tensor vector_view(std::span<const float> values) {
  kvp_tensor out{};
  out.data = const_cast<float*>(values.data());
  out.device_type = KVP_DEVICE_CPU;
  out.ndim = 1;
  out.dtype_code = KVP_DTYPE_FLOAT;
  out.dtype_bits = 32;
  out.dtype_lanes = 1;
  out.flags = KVP_TENSOR_READ_ONLY;
  out.shape[0] = static_cast<int64_t>(values.size());
  out.strides[0] = 1;
  return out;
}

template <class F>
kvplug_status on_generation(kvplug_generation* generation, kvp_error* err, F&& f) {
  return border(err, [&] {
    need(generation, "generation");
    const Turn turn(generation->busy);
    f(*generation->generation);
  });
}

}  // namespace

extern "C" {

kvplug_status kvplug_generation_start(kvplug_session* session, const kvplug_config* overrides, kvplug_generation** out,
                                      kvp_error* err) {
  return border(err, [&] {
    need(out, "out");
    const auto state = need(session, "session").state;
    const Turn turn(state->busy);
    auto generation = std::make_unique<kvplug_generation>();
    generation->session = state;
    if (state->generating.exchange(true)) {
      throw Error(Code::kBusy, "a generation of this session is open", "release it first");
    }
    generation->open = true;
    generation->generation = std::make_unique<generate::Generation>(
        *state->session, std::vector{settings_of(*state, overrides)}, std::vector<std::optional<uint64_t>>{});
    *out = generation.release();
  });
}

kvplug_status kvplug_generation_next(kvplug_generation* generation, uint32_t, kvplug_event* out, kvp_error* err) {
  bool more = true;
  const kvplug_status status = on_generation(generation, err, [&](generate::Generation& g) {
    const size_t size = std::min(need(out, "out").struct_size, sizeof(kvplug_event));
    const Turn turn(generation->session->busy);
    more = g.next(generation->event);
    if (!more) return;
    kvplug_event event = event_of(generation->event);
    event.struct_size = out->struct_size;
    std::memcpy(out, &event, size);
  });
  if (generation && generation->generation->ended()) generation->close();
  return status == KVP_OK && !more ? KVPLUG_END : status;
}

void kvplug_generation_cancel(kvplug_generation* generation) {
  if (generation) generation->generation->cancel();
}

kvplug_status kvplug_generation_logits(kvplug_generation* generation, uint32_t row, kvp_tensor* view, kvp_error* err) {
  return on_generation(generation, err,
                       [&](generate::Generation& g) { need(view, "view") = vector_view(g.logits(row)); });
}

kvplug_status kvplug_generation_scores(kvplug_generation* generation, uint32_t row, kvp_tensor* view, kvp_error* err) {
  return on_generation(generation, err,
                       [&](generate::Generation& g) { need(view, "view") = vector_view(g.scores(row)); });
}

kvplug_status kvplug_generation_force(kvplug_generation* generation, uint32_t row, int32_t id, kvp_error* err) {
  return on_generation(generation, err, [&](generate::Generation& g) { g.force(row, id); });
}

kvplug_status kvplug_generation_result(kvplug_generation* generation, kvplug_buf** json, kvp_error* err) {
  return on_generation(generation, err, [&](generate::Generation& g) {
    need(json, "json");
    give(json, report::results_json(g.results(), g.timings(), generation->session->session->run()));
  });
}

void kvplug_generation_release(kvplug_generation* generation) { delete generation; }

kvplug_status kvplug_generate(kvplug_session* session, const kvplug_config* overrides, kvplug_event_fn fn, void* user,
                              kvp_error* err) {
  kvplug_generation* generation = nullptr;
  kvplug_status status = kvplug_generation_start(session, overrides, &generation, err);
  while (status == KVP_OK) {
    kvplug_event event{};
    event.struct_size = sizeof event;
    status = kvplug_generation_next(generation, 0, &event, err);
    if (status == KVP_OK && fn && fn(user, &event) != 0) kvplug_generation_cancel(generation);
  }
  kvplug_generation_release(generation);
  return status == KVPLUG_END ? KVP_OK : status;
}

}  // extern "C"
