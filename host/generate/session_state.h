// SPDX-License-Identifier: Apache-2.0
// What Session and Generation share. Internal to this room.
#pragma once

#include <optional>

#include "generate/feed.h"
#include "generate/session.h"

namespace kvplug::generate {

struct SessionRow {
  std::vector<int32_t> ids;  // prompt and new tokens
  int64_t cached = 0;        // of them in the stack
};

struct Session::State {
  SessionContext context;
  config::Run run;
  std::shared_ptr<CacheStack> stack;  // NULL before the first generation, and always with use_cache = false
  bool use_cache = true;
  std::vector<SessionRow> rows;
  std::unique_ptr<model::Runner> runner;
  model::StepShape shape{};
  kvp_memory planned{};  // of the newest prepare

  StackParams params(int64_t batch, int64_t tokens) const;
  void check_ids(std::span<const int32_t> ids) const;
  SessionRow& row(uint32_t index);  // makes it if it is the next one
  const SessionRow& row(uint32_t index) const;

  // Makes stack and runner for `batch` rows of up to `slots` slots and forwards of up to `query` tokens, checking the
  // memory plan first. Keeps what is there when it is large enough.
  void prepare(int64_t slots, int64_t query);
  // Drops the newest cached tokens of one row; everything where the cache cannot crop that far.
  void uncache(uint32_t index, int64_t n_remove);
  // One forward pass; a failing one leaves the rows as they were.
  void forward(const Feed& feed, float* logits);
};

// kvp_call of host memory, no flags.
kvp_call host_call();

}  // namespace kvplug::generate
