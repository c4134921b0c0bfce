// SPDX-License-Identifier: Apache-2.0
// One cache under measurement: a stack, a runner, and rows of ids that are fed to both. No sampling, no session: what
// is timed or compared is the model's step on this cache and nothing else.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>

#include "config/run.h"
#include "core/cache_stack.h"
#include "model/executor.h"

namespace kvplug {
class Registry;
}

namespace kvplug::report {

// The choice of one cache of [bench] or [diff]; negotiation is the run's.
CacheChoice choice_of(const config::NamedCache& cache, const config::Run& run);

// Errors are what the plugin says; a lane that threw in a step is of no further use.
class Lane {
 public:
  // Room for `batch` rows of up to `slots` tokens, fed at most `query` tokens at a time.
  Lane(Registry& registry, model::Executor& executor, const CacheChoice& choice, int64_t batch, int64_t slots,
       int64_t query);

  // ids [batch, tokens] are appended. logits [batch, vocab] of the last tokens, or of all: [batch, tokens, vocab].
  void step(std::span<const int32_t> ids, int64_t tokens, float* logits);
  void step_all(std::span<const int32_t> ids, int64_t tokens, float* logits);
  void watch(model::AttentionWatch watch) { runner_->watch_attention(std::move(watch)); }

  // The cache as it is now, to come back to: take() keeps a clone, restore() puts a clone of that in place. False where
  // the kind cannot be cloned.
  bool take();
  void restore();
  void restart();  // empty

  uint64_t used_bytes() const;
  uint64_t reserved_bytes() const;
  const std::vector<LayerPlacement>& placements() const { return stack_->placements(); }

 private:
  model::ForwardInput input(std::span<const int32_t> ids, int64_t tokens) const;
  void reserve();

  const int64_t batch_, slots_;
  bool prepared_ = false;
  const kvp_call call_;  // of the executor
  std::unique_ptr<CacheStack> stack_, kept_;
  std::unique_ptr<model::Runner> runner_;
};

}  // namespace kvplug::report
