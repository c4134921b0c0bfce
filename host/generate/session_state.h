// SPDX-License-Identifier: Apache-2.0
// What Session and Generation share. Internal to this room.
#pragma once

#include <optional>

#include "generate/feed.h"
#include "generate/session.h"
#include "generate/slot_need.h"

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
  int64_t rollback = 0;  // tokens that crop must be able to take back
  bool lent = false;     // the stack was handed in: it is never replaced
  bool reserved = true;  // the stack took what the run needs ahead
  uint64_t rebuilds = 0, oom_fallbacks = 0;
  nlohmann::json past_counters = nlohmann::json::object();  // of stacks that are gone

  StackParams params(int64_t batch, int64_t tokens) const;
  uint64_t weights(int tier) const;  // bytes of them in the tier
  void check_ids(std::span<const int32_t> ids) const;
  SessionRow& row(uint32_t index);  // makes it if it is the next one
  const SessionRow& row(uint32_t index) const;

  // Padding that each row has in the stack.
  std::vector<int64_t> row_pads() const;
  // True where the stack has a capacity below the need, so that another must be made; throws where that is not ours to
  // do (kConfig: max_cache_len, kCapacity: a cache handed in).
  bool outgrown(const SlotNeed& need) const;
  // Ends the stack; every row is computed again from its ids.
  void drop_stack();
  // True where running out of memory leaves another kind to try: [cache.oom_fallback], once, and not on a cache of the
  // caller's.
  bool may_fall_back() const { return use_cache && !lent && run.cache.oom_fallback.has_value(); }
  // Ends the stack, gives its memory back to the system, and takes the other kind.
  void fall_back();
  // Plans the stack, or the one to be made in its place, for rows of up to `slots` slots and checks the plan against
  // the memory limit.
  kvp_memory plan(int64_t slots) const;
  // Makes stack and runner for rows of up to `slots` slots and forwards of up to `query` tokens, checking the memory
  // plan first. Keeps what is there when it is large enough.
  void prepare(int64_t slots, int64_t query);
  // Drops the newest cached tokens of one row; everything where the cache cannot crop that far.
  void uncache(uint32_t index, int64_t n_remove);
  // One forward pass; a failing one leaves the rows as they were. prepared: no allocation on the way.
  void forward(const Feed& feed, bool prepared, float* logits);
  // Why a decode step does not run prepared, "" if it does; asked once a generation.
  std::string unprepared() const;
  // Why it is not recorded into a graph, likewise.
  std::string uncaptured() const;
};

}  // namespace kvplug::generate
