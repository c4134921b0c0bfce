// SPDX-License-Identifier: Apache-2.0
// A batch of token sequences and their cache. The session owns the histories (ids of every row) and the stack; what of
// a row is not cached yet is fed by the next generation. After a run the cache holds all ids of a row but the last.
// One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "config/run.h"
#include "core/cache_stack.h"
#include "model/executor.h"
#include "text/tokenizer.h"

namespace kvplug {
class HostServices;
class Registry;
}  // namespace kvplug

namespace kvplug::generate {

// What [generation] and [cache] say about the cache.
CacheChoice cache_choice(const config::Run& run);

// Adds the numbers of `more` to those of `sum`, name by name.
void add_counters(nlohmann::json& sum, const nlohmann::json& more);

// {"used": true, "reason": ""}, or why decode steps do not run prepared.
nlohmann::json prepared_json(const std::string& why_not);
// The same of recording such steps into a graph, which only a device does.
nlohmann::json captured_json(bool on_device, const std::string& why_not);

// What a session needs from around it; all outlive it through shared ownership by the api handles.
struct SessionContext {
  std::shared_ptr<model::Executor> executor;
  std::shared_ptr<const text::Tokenizer> tokenizer;  // NULL where the folder has none: ids only
  HostServices* services = nullptr;
  Registry* registry = nullptr;
};

class Session {
 public:
  // generation: the effective [generation]; memory, cache: limits and negotiation.
  Session(SessionContext context, const config::Run& run);
  // On a stack made elsewhere (HF's past_key_values); it may hold tokens already: their ids come first by set_ids.
  Session(SessionContext context, const config::Run& run, std::shared_ptr<CacheStack> stack);
  ~Session();

  void append_ids(uint32_t row, std::span<const int32_t> ids);
  void append_text(uint32_t row, std::string_view text);
  // Keeps the longest common prefix, crops, appends the rest; returns the tokens that stay cached.
  size_t set_ids(uint32_t row, std::span<const int32_t> ids);
  uint64_t length(uint32_t row) const;
  size_t rows() const;
  const std::vector<int32_t>& ids(uint32_t row) const;
  void crop(std::span<const int64_t> n_remove);
  // Windows keep what a crop of up to max_tokens needs, from now on and in every stack made later.
  void set_rollback(int64_t max_tokens);
  std::unique_ptr<Session> clone();
  void reset();

  std::vector<LayerPlacement> placements() const;  // empty with use_cache = false
  nlohmann::json explain() const;
  nlohmann::json stats() const;  // {"tokens", "bytes": as run-file.md Output, "counters"}
  const config::Run& run() const;

 private:
  friend class Generation;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvplug::generate
