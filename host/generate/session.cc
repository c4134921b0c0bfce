// SPDX-License-Identifier: Apache-2.0
#include "generate/session.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/accounts.h"
#include "core/error.h"
#include "core/host_services.h"
#include "core/registry.h"
#include "generate/memory_limit.h"
#include "generate/session_state.h"

namespace kvplug::generate {
namespace {

uint64_t sum(const uint64_t (&bytes)[KVP_N_PURPOSES]) {
  return std::accumulate(bytes, bytes + KVP_N_PURPOSES, uint64_t{0});
}

// A layer that can be asked for lengths.
int32_t first_layer(std::span<const kvp_layer> layers) {
  const auto keeps = [](const kvp_layer& layer) { return layer.kind != KVP_LAYER_NONE; };
  return static_cast<int32_t>(std::find_if(layers.begin(), layers.end(), keeps) - layers.begin());
}

// The fewest slots a row that a layer of the stack can hold, -1 where none has an end.
int64_t capacity_of(CacheStack& stack) {
  int64_t fewest = -1;
  const auto layers = stack.layers();
  for (size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].kind == KVP_LAYER_NONE || layers[i].kind == KVP_LAYER_CROSS) continue;
    kvp_lengths out{};
    out.struct_size = sizeof out;
    stack.lengths(static_cast<int32_t>(i), 0, out);
    if (out.max >= 0 && (fewest < 0 || out.max < fewest)) fewest = out.max;
  }
  return fewest;
}

}  // namespace

nlohmann::json captured_json(bool on_device, const std::string& why_not) {
  return prepared_json(on_device ? why_not : "steps are recorded on a CUDA device only");
}

void add_counters(nlohmann::json& sum, const nlohmann::json& more) {
  for (const auto& [name, value] : more.items()) {
    if (value.is_number()) sum[name] = sum.value(name, uint64_t{0}) + value.get<uint64_t>();
  }
}

nlohmann::json prepared_json(const std::string& why_not) { return {{"used", why_not.empty()}, {"reason", why_not}}; }

CacheChoice cache_choice(const config::Run& run) {
  CacheChoice out;
  out.kind = run.generation.cache_implementation;
  out.options = run.generation.cache_config;
  out.on_unsupported = run.cache.negotiation.fallback_on_unsupported ? "fallback" : "error";
  out.fallback = run.cache.negotiation.fallback;
  out.require = run.cache.negotiation.require;
  return out;
}

StackParams Session::State::params(int64_t batch, int64_t tokens) const {
  StackParams out;
  out.batch = batch;
  out.tokens = tokens;
  out.rollback = rollback;
  out.dtype = context.executor->options().dtype;
  model::place(out, context.executor->options().device);
  return out;
}

uint64_t Session::State::weights(int tier) const {
  return weights_in(tier, context.executor->options().device, context.executor->weight_bytes());
}

void Session::State::check_ids(std::span<const int32_t> ids) const {
  const int64_t vocab = context.executor->description().vocab_size;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab) {
      throw Error(Code::kInvalidArgument, "id " + std::to_string(ids[i]) + " at place " + std::to_string(i) +
                                              " is not in the vocabulary (0 to " + std::to_string(vocab - 1) + ")");
    }
  }
}

SessionRow& Session::State::row(uint32_t index) {
  if (index > rows.size()) {
    throw Error(
        Code::kInvalidArgument,
        "row " + std::to_string(index) + " does not exist, and the next new one is row " + std::to_string(rows.size()));
  }
  if (index == rows.size()) rows.emplace_back();
  return rows[index];
}

const SessionRow& Session::State::row(uint32_t index) const {
  if (index >= rows.size()) {
    throw Error(Code::kInvalidArgument,
                "row " + std::to_string(index) + " does not exist; the session has " + std::to_string(rows.size()));
  }
  return rows[index];
}

std::vector<int64_t> Session::State::row_pads() const {
  std::vector<int64_t> pads(rows.size(), 0);
  if (!stack || stack->batch() == 0) return pads;
  kvp_lengths out{};
  out.struct_size = sizeof out;
  out.row_pad = pads.data();
  out.n_rows = std::min(pads.size(), static_cast<size_t>(stack->batch()));
  stack->lengths(first_layer(stack->layers()), 0, out);
  return pads;
}

bool Session::State::outgrown(const SlotNeed& need) const {
  if (!use_cache) return false;
  check_max_cache_len(need, run);
  if (!stack) return false;
  const int64_t most = capacity_of(*stack);
  if (most < 0 || need.slots() <= most) return false;
  if (lent) {
    throw Error(
        Code::kCapacity,
        "the cache handed in holds " + std::to_string(most) + " tokens a row, too few for this run: " + need.text(),
        "make it for " + std::to_string(need.slots()) + " tokens or more");
  }
  return true;
}

void Session::State::fall_back() {
  drop_stack();
  release_free_blocks();
  take_fallback(run);
  ++oom_fallbacks;
}

void Session::State::drop_stack() {
  if (stack) add_counters(past_counters, stack->counters());
  runner.reset();
  stack.reset();
  for (SessionRow& row : rows) row.cached = 0;
}

kvp_memory Session::State::plan(int64_t slots) const {
  auto batch = static_cast<int64_t>(rows.size());
  int64_t tokens = run.generation.max_cache_len.value_or(slots);
  const int64_t most = stack ? capacity_of(*stack) : -1;
  if (most >= slots) {  // it holds what it was made for, whatever this run needs of it
    tokens = stack->params().tokens;
    batch = std::max(batch, stack->params().batch);
  }
  const auto layers = context.executor->description().cache_layers();
  const StackParams how = params(batch, tokens);
  const bool stays = stack && (most < 0 || most >= slots);
  const kvp_memory total =
      stays ? stack->planned(layers, how, batch, slots)
            : CacheStack::plan(*context.registry, layers, cache_choice(run), how, batch, slots).total;
  for (const int tier : {KVP_TIER_HOST, KVP_TIER_DEVICE}) {
    const auto usable = usable_in(tier, run.memory);
    if (run.memory.plan != "off" && usable) check_fits(tier, weights(tier), total.peak[tier], *usable);
  }
  return total;
}

void Session::State::prepare(int64_t slots, int64_t query) {
  const auto batch = static_cast<int64_t>(rows.size());
  if (use_cache) {
    if (!lent) planned = plan(slots);  // what a cache handed in holds is its maker's affair
    if (!stack) {
      // The newest session's word counts for the host: without a limit an earlier one ends.
      for (const int tier : {KVP_TIER_HOST, KVP_TIER_DEVICE}) {
        const auto usable = usable_in(tier, run.memory);
        context.services->memory().set_limit(tier, usable ? *usable - std::min(*usable, weights(tier)) : UINT64_MAX);
      }
      stack = CacheStack::create(*context.registry, context.executor->description().cache_layers(), cache_choice(run),
                                 params(batch, run.generation.max_cache_len.value_or(slots)));
    }
    if (stack->batch() != 0 && stack->batch() < batch) {
      std::vector<int64_t> source(static_cast<size_t>(batch), -1);
      for (int64_t b = 0; b < stack->batch(); ++b) source[static_cast<size_t>(b)] = b;
      stack->gather(context.executor->call(), source);
    }
    reserved = true;
    try {
      stack->reserve(context.executor->call(), batch, slots);
    } catch (const Error& e) {
      if (e.code() != Code::kUnsupported) throw;
      reserved = false;  // it allocates as it goes
    }
  }
  if (!runner || shape.max_batch < batch || shape.max_query < query) {
    shape = {batch, std::max(query, shape.max_query), use_cache};
    runner = context.executor->prepare(shape, stack.get());
  }
}

void Session::State::uncache(uint32_t index, int64_t n_remove) {
  if (n_remove <= 0) return;
  SessionRow& target = rows[index];
  if (stack) {
    std::vector<int64_t> counts(rows.size(), 0);
    counts[index] = n_remove;
    if (stack->batch() < static_cast<int64_t>(counts.size())) counts.resize(static_cast<size_t>(stack->batch()));
    try {
      stack->crop(context.executor->call(), counts);
    } catch (const Error& e) {
      if (e.code() != Code::kInvalidState && e.code() != Code::kUnsupported) throw;
      // Emptying needs no recorded past: what cannot be cut is computed again.
      if (rows.size() == 1) {
        stack->reset(context.executor->call());
      } else {
        std::vector<int64_t> source(static_cast<size_t>(stack->batch()));
        for (size_t b = 0; b < source.size(); ++b) source[b] = b == index ? -1 : static_cast<int64_t>(b);
        stack->gather(context.executor->call(), source);
      }
      n_remove = target.cached;
    }
  }
  target.cached -= std::min(n_remove, target.cached);
}

std::string Session::State::unprepared() const {
  if (!use_cache) return "use_cache = false";
  if (run.generation.disable_compile) return "disable_compile = true";
  if (!reserved) return "the cache cannot take memory ahead";
  if (stack) return stack->unprepared();
  return CacheStack::plan(*context.registry, context.executor->description().cache_layers(), cache_choice(run),
                          params(1, run.generation.max_cache_len.value_or(1)), 1, 1)
      .unprepared;
}

std::string Session::State::uncaptured() const {
  const std::string why = unprepared();
  return why.empty() && stack ? stack->uncaptured() : why;
}

void Session::State::forward(const Feed& feed, bool prepared, float* logits) {
  model::ForwardInput input = feed.input();
  input.prepared = prepared;
  runner->forward(input, stack.get(), logits);
  if (!stack) return;
  for (size_t b = 0; b < rows.size(); ++b) rows[b].cached += feed.count[b] - feed.pad[b];
}

Session::Session(SessionContext context, const config::Run& run) : state_(std::make_unique<State>()) {
  state_->context = std::move(context);
  state_->run = run;
  state_->use_cache = run.generation.use_cache;
}

Session::Session(SessionContext context, const config::Run& run, std::shared_ptr<CacheStack> stack)
    : Session(std::move(context), run) {
  if (run.generation.cache_source >= config::Source::kFile) {
    throw Error(Code::kConfig,
                "a cache was handed in and generation.cache_implementation names \"" +
                    run.generation.cache_implementation + "\" as well",
                "leave one of the two out", "generation.cache_implementation");
  }
  if (!run.generation.use_cache) {
    throw Error(Code::kConfig, "a cache was handed in and use_cache is false", "leave one of the two out",
                "generation.use_cache");
  }
  if (stack->seen() != 0) {
    throw Error(Code::kInvalidState,
                "the cache already holds " + std::to_string(stack->seen()) + " tokens whose ids are not known",
                "hand in an empty cache; to go on from a filled one clone the session that filled it");
  }
  state_->stack = std::move(stack);
  state_->lent = true;
}

Session::~Session() = default;

void Session::append_ids(uint32_t row, std::span<const int32_t> ids) {
  state_->check_ids(ids);
  SessionRow& target = state_->row(row);
  target.ids.insert(target.ids.end(), ids.begin(), ids.end());
}

void Session::append_text(uint32_t row, std::string_view text) {
  if (!state_->context.tokenizer) {
    throw Error(Code::kUnsupported, "the model folder has no tokenizer.json, so text cannot be read",
                "give input_ids, or tokenizer.path");
  }
  // Only the start of a sequence gets BOS and the like.
  const bool first = row >= state_->rows.size() || state_->rows[row].ids.empty();
  append_ids(row, state_->context.tokenizer->encode(text, first && state_->run.tokenizer.add_special_tokens));
}

size_t Session::set_ids(uint32_t row, std::span<const int32_t> ids) {
  state_->check_ids(ids);
  SessionRow& target = state_->row(row);
  const auto common = std::mismatch(target.ids.begin(), target.ids.end(), ids.begin(), ids.end());
  const int64_t shared = common.first - target.ids.begin();
  // The newest token is always computed, for its logits.
  const int64_t kept = std::min(shared, static_cast<int64_t>(ids.size()) - 1);
  state_->uncache(row, target.cached - std::max<int64_t>(kept, 0));
  target.ids.assign(ids.begin(), ids.end());
  return static_cast<size_t>(target.cached);
}

uint64_t Session::length(uint32_t row) const { return std::as_const(*state_).row(row).ids.size(); }
size_t Session::rows() const { return state_->rows.size(); }
const std::vector<int32_t>& Session::ids(uint32_t row) const { return std::as_const(*state_).row(row).ids; }

void Session::crop(std::span<const int64_t> n_remove) {
  if (n_remove.size() != 1 && n_remove.size() != state_->rows.size()) {
    throw Error(Code::kInvalidArgument, "crop takes 1 count or one a row (" + std::to_string(state_->rows.size()) +
                                            "), got " + std::to_string(n_remove.size()));
  }
  // Counts are of ids; of a row's cached ids only those beyond the new length go.
  std::vector<int64_t> cached(state_->rows.size());
  for (size_t b = 0; b < cached.size(); ++b) {
    const int64_t n = n_remove.size() == 1 ? n_remove[0] : n_remove[b];
    if (n < 0)
      throw Error(Code::kInvalidArgument, "crop takes the number of newest tokens to remove, got " + std::to_string(n));
    const auto length = static_cast<int64_t>(state_->rows[b].ids.size());
    cached[b] = std::max<int64_t>(0, state_->rows[b].cached - std::max<int64_t>(0, length - n));
  }
  if (state_->stack && std::any_of(cached.begin(), cached.end(), [](int64_t n) { return n > 0; })) {
    state_->stack->crop(state_->context.executor->call(),
                        std::span(cached).first(static_cast<size_t>(state_->stack->batch())));
  }
  for (size_t b = 0; b < cached.size(); ++b) {
    SessionRow& row = state_->rows[b];
    const int64_t n = n_remove.size() == 1 ? n_remove[0] : n_remove[b];
    row.ids.resize(static_cast<size_t>(std::max<int64_t>(0, static_cast<int64_t>(row.ids.size()) - n)));
    row.cached -= cached[b];
  }
}

void Session::set_rollback(int64_t max_tokens) {
  if (max_tokens < 0) {
    throw Error(Code::kInvalidArgument,
                "set_rollback to " + std::to_string(max_tokens) + " tokens; expected 0 or more");
  }
  if (state_->stack) state_->stack->set_rollback(state_->context.executor->call(), max_tokens);
  state_->rollback = max_tokens;
}

std::unique_ptr<Session> Session::clone() {
  auto out = std::make_unique<Session>(state_->context, state_->run);
  out->state_->use_cache = state_->use_cache;
  out->state_->rows = state_->rows;
  out->state_->rollback = state_->rollback;
  if (state_->stack) out->state_->stack = state_->stack->clone(state_->context.executor->call());
  return out;
}

void Session::reset() {
  if (state_->stack) state_->stack->reset(state_->context.executor->call());
  state_->rows.clear();
}

std::vector<LayerPlacement> Session::placements() const {
  if (state_->stack) return state_->stack->placements();
  if (!state_->use_cache) return {};
  return CacheStack::plan(*state_->context.registry, state_->context.executor->description().cache_layers(),
                          cache_choice(state_->run), state_->params(1, 1), 1, 1)
      .placements;
}

nlohmann::json Session::explain() const {
  nlohmann::json layers = nlohmann::json::array();
  for (const LayerPlacement& p : placements()) {
    layers.push_back(
        {{"layer", p.model_layer}, {"kind", p.kind}, {"plugin", p.plugin}, {"attend", p.attend}, {"reason", p.reason}});
    if (p.quantizer_key.empty()) continue;
    layers.back()["quantizer_key"] = p.quantizer_key;
    layers.back()["quantizer_value"] = p.quantizer_value;
  }
  return {{"use_cache", state_->use_cache},
          {"prepared_step", prepared_json(state_->unprepared())},
          {"captured_step",
           captured_json(model::on_device(state_->context.executor->options().device), state_->uncaptured())},
          {"executor", state_->context.executor->explain()},
          {"layers", layers}};
}

nlohmann::json Session::stats() const {
  nlohmann::json out{{"tokens", 0}, {"bytes", nlohmann::json::object()}, {"counters", nlohmann::json::object()}};
  kvp_memory memory{};
  if (state_->stack) {
    memory = state_->stack->memory(-1);
    out["tokens"] = state_->stack->seen();
    out["counters"] = state_->stack->counters();
  }
  add_counters(out["counters"], state_->past_counters);
  out["counters"]["cache_rebuilds"] = state_->rebuilds;
  out["counters"]["oom_fallbacks"] = state_->oom_fallbacks;
  uint64_t planned = 0, used = 0, reserved = 0;
  nlohmann::json tiers = nlohmann::json::object();
  for (int tier = 0; tier < KVP_N_TIERS; ++tier) {
    planned += sum(state_->planned.reserved[tier]);
    used += sum(memory.used[tier]);
    reserved += sum(memory.reserved[tier]);
    tiers[tier_word(tier)] = sum(memory.reserved[tier]);
  }
  out["bytes"] = {{"planned", planned},
                  {"used", used},
                  {"reserved", reserved},
                  {"unquantized", memory.unquantized},
                  {"by_tier", tiers}};
  return out;
}

const config::Run& Session::run() const { return state_->run; }

}  // namespace kvplug::generate
