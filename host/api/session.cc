// SPDX-License-Identifier: Apache-2.0
#include <kvplug/kvplug.h>

#include "api/effective.h"

using namespace kvplug;
using namespace kvplug::api;

namespace {

// The config of a session: the given one over the model's checkpoint defaults, or the model's own.
config::Config session_config(const ModelState& model, const kvplug_config* config) {
  if (!config) return model.config;
  config::Config own = config->config;
  if (own.resolve().model.use_generation_config) {
    const model::Description& description = model.executor->description();
    own.set_checkpoint(description.generation_config.dump(), (description.folder / "generation_config.json").string());
  }
  return own;
}

// A cache handed in must have been made for layers and a dtype like the model's.
void check_fits(const ModelState& model, CacheStack& stack) {
  const kvp_dtype want = model.executor->options().dtype, got = stack.params().dtype;
  const auto layers = stack.layers();
  bool fits = want.code == got.code && want.bits == got.bits && layers.size() == model.layers.size();
  for (size_t i = 0; fits && i < layers.size(); ++i) {
    const kvp_layer &a = layers[i], &b = model.layers[i];
    fits = a.kind == b.kind && a.q_heads == b.q_heads && a.kv_heads == b.kv_heads && a.key_dim == b.key_dim &&
           a.value_dim == b.value_dim && a.window == b.window;
  }
  if (!fits) {
    throw Error(Code::kInvalidArgument, "the cache was made for other layers or another dtype than the model's",
                "make it from kvplug_model_layers, with the model's dtype");
  }
}

template <class F>
kvplug_status on_session(kvplug_session* session, kvp_error* err, F&& f) {
  return border(err, [&] {
    SessionState& state = *need(session, "session").state;
    const Turn turn(state.busy);
    f(*state.session);
  });
}

// For calls that change the session: an open generation stands on its rows.
template <class F>
kvplug_status change_session(kvplug_session* session, kvp_error* err, F&& f) {
  return on_session(session, err, [&](generate::Session& s) {
    if (session->state->generating)
      throw Error(Code::kBusy, "a generation of this session is open", "release it first");
    f(s);
  });
}

}  // namespace

extern "C" {

kvplug_status kvplug_session_create(kvplug_model* model, const kvplug_config* config, kvplug_session** out,
                                    kvp_error* err) {
  return border(err, [&] {
    need(out, "out");
    auto state = std::make_shared<SessionState>();
    state->model = need(model, "model").state;
    state->config = session_config(*state->model, config);
    state->session = std::make_unique<generate::Session>(
        state->model->context(), make_effective(*state->model->host, state->config, ModelNeed::kNone).run);
    *out = new kvplug_session{std::move(state)};
  });
}

kvplug_status kvplug_session_create_with_cache(kvplug_model* model, const kvplug_config* config, kvplug_cache* cache,
                                               kvplug_session** out, kvp_error* err) {
  return border(err, [&] {
    need(out, "out");
    const auto cache_state = need(cache, "cache").state;
    const Turn turn(cache_state->busy);
    check_fits(*need(model, "model").state, *cache_state->stack);
    if (cache_state->lent.exchange(true)) throw Error(Code::kBusy, "the cache belongs to another session");
    auto state = std::make_shared<SessionState>();
    state->cache = cache_state;  // from here on the session's end returns it
    state->model = need(model, "model").state;
    state->config = session_config(*state->model, config);
    state->session = std::make_unique<generate::Session>(
        state->model->context(), make_effective(*state->model->host, state->config, ModelNeed::kNone).run,
        cache_state->stack);
    *out = new kvplug_session{std::move(state)};
  });
}

void kvplug_session_release(kvplug_session* session) { delete session; }

kvplug_status kvplug_session_append_ids(kvplug_session* session, uint32_t row, const int32_t* ids, size_t n,
                                        kvp_error* err) {
  return change_session(session, err, [&](generate::Session& s) {
    if (n != 0) need(ids, "ids");
    s.append_ids(row, {ids, n});
  });
}

kvplug_status kvplug_session_append_text(kvplug_session* session, uint32_t row, const char* text, size_t len,
                                         kvp_error* err) {
  return change_session(session, err, [&](generate::Session& s) { s.append_text(row, text_of(text, len)); });
}

kvplug_status kvplug_session_set_ids(kvplug_session* session, uint32_t row, const int32_t* ids, size_t n,
                                     size_t* reused, kvp_error* err) {
  return change_session(session, err, [&](generate::Session& s) {
    if (n != 0) need(ids, "ids");
    const size_t kept = s.set_ids(row, {ids, n});
    if (reused) *reused = kept;
  });
}

kvplug_status kvplug_session_length(kvplug_session* session, uint32_t row, uint64_t* tokens, kvp_error* err) {
  return on_session(session, err, [&](generate::Session& s) { need(tokens, "tokens") = s.length(row); });
}

kvplug_status kvplug_session_crop(kvplug_session* session, const int64_t* n_remove, size_t n, kvp_error* err) {
  return change_session(session, err, [&](generate::Session& s) { s.crop({&need(n_remove, "n_remove"), n}); });
}

kvplug_status kvplug_session_set_rollback(kvplug_session* session, int64_t max_tokens, kvp_error* err) {
  return change_session(session, err, [&](generate::Session& s) { s.set_rollback(max_tokens); });
}

kvplug_status kvplug_session_clone(kvplug_session* session, kvplug_session** out, kvp_error* err) {
  return change_session(session, err, [&](generate::Session& s) {
    need(out, "out");
    auto state = std::make_shared<SessionState>();
    state->model = session->state->model;
    state->config = session->state->config;
    state->session = s.clone();
    *out = new kvplug_session{std::move(state)};
  });
}

kvplug_status kvplug_session_reset(kvplug_session* session, kvp_error* err) {
  return change_session(session, err, [&](generate::Session& s) { s.reset(); });
}

kvplug_status kvplug_session_explain(kvplug_session* session, kvplug_buf** json, kvp_error* err) {
  return on_session(session, err, [&](generate::Session& s) {
    need(json, "json");
    give(json, s.explain());
  });
}

kvplug_status kvplug_session_stats(kvplug_session* session, kvplug_buf** json, kvp_error* err) {
  return on_session(session, err, [&](generate::Session& s) {
    need(json, "json");
    give(json, s.stats());
  });
}

}  // extern "C"
