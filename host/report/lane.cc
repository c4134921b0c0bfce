// SPDX-License-Identifier: Apache-2.0
#include "report/lane.h"

#include <numeric>

#include "core/error.h"
#include "generate/session.h"
#include "generate/session_state.h"

namespace kvplug::report {
namespace {

// What the text takes; scratch and page tables are not read as K/V.
uint64_t sum(const uint64_t (&bytes)[KVP_N_TIERS][KVP_N_PURPOSES]) {
  uint64_t out = 0;
  for (const auto& tier : bytes) {
    out = std::accumulate(tier, tier + KVP_N_PURPOSES, out) - tier[KVP_PURPOSE_SCRATCH] - tier[KVP_PURPOSE_OTHER];
  }
  return out;
}

}  // namespace

CacheChoice choice_of(const config::NamedCache& cache, const config::Run& run) {
  CacheChoice out = generate::cache_choice(run);
  out.kind = cache.cache_implementation;
  out.options = cache.cache_config;
  return out;
}

Lane::Lane(Registry& registry, model::Executor& executor, const CacheChoice& choice, int64_t batch, int64_t slots,
           int64_t query)
    : batch_(batch), slots_(slots), call_(executor.call()) {
  StackParams params;
  params.batch = batch;
  params.tokens = slots;
  params.dtype = executor.options().dtype;
  model::place(params, executor.options().device);
  stack_ = CacheStack::create(registry, executor.description().cache_layers(), choice, params);
  reserve();
  runner_ = executor.prepare({batch, query, true}, stack_.get());
}

void Lane::reserve() {
  prepared_ = true;
  try {
    stack_->reserve(call_, batch_, slots_);
  } catch (const Error& e) {
    if (e.code() != Code::kUnsupported) throw;
    prepared_ = false;  // it allocates as it goes
  }
  prepared_ = prepared_ && stack_->unprepared().empty();
}

model::ForwardInput Lane::input(std::span<const int32_t> ids, int64_t tokens) const {
  model::ForwardInput in;
  in.ids = ids.data();
  in.batch = batch_;
  in.tokens = tokens;
  in.prepared = prepared_ && tokens == 1;
  return in;
}

void Lane::step(std::span<const int32_t> ids, int64_t tokens, float* logits) {
  runner_->forward(input(ids, tokens), stack_.get(), logits);
}

void Lane::step_all(std::span<const int32_t> ids, int64_t tokens, float* logits) {
  runner_->forward_all(input(ids, tokens), stack_.get(), logits);
}

bool Lane::take() {
  try {
    kept_ = stack_->clone(call_);
    return true;
  } catch (const Error& e) {
    if (e.code() != Code::kUnsupported) throw;
    return false;
  }
}

void Lane::restore() {
  stack_ = kept_->clone(call_);
  reserve();
}

void Lane::restart() {
  stack_->reset(call_);
  reserve();
}

uint64_t Lane::used_bytes() const { return sum(stack_->memory(-1).used); }
uint64_t Lane::reserved_bytes() const { return sum(stack_->memory(-1).reserved); }

}  // namespace kvplug::report
