// SPDX-License-Identifier: Apache-2.0
// One decode in flight: prefill what the session has not cached, then one token a step for every unfinished row, until
// each has ended by eos, length, stop string, time or cancel. Pull style: next() computes a step when no event waits.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/run.h"
#include "generate/session.h"

namespace kvplug::generate {

enum class EventType : int32_t { kToken = 1, kText = 2, kFinish = 3, kNotice = 4 };
enum class Finish : int32_t {
  kNone = 0,
  kEos = 1,
  kLength = 2,
  kStopString = 3,
  kTime = 4,
  kCancelled = 5,
  kError = 6
};
const char* finish_word(Finish finish);  // "eos", "length", "stop_string", "time", "cancelled", "error"

struct Event {
  EventType type = EventType::kToken;
  uint32_t row = 0;
  int32_t token_id = -1;
  float logprob = 0.0f;
  Finish finish = Finish::kNone;
  uint64_t position = 0;
  std::string text;
};

struct RowResult {
  std::vector<int32_t> token_ids;  // new tokens only; the eos that ended the row included
  std::vector<float> logprobs;
  std::string text;  // decoded as [tokenizer] says, cut before a stop string
  Finish finish = Finish::kNone;
  uint64_t prompt_tokens = 0, reused_tokens = 0;
};

// Ids that a row may reach in all: Hugging Face's rule (max_new_tokens wins over max_length; neither given means prompt
// + 20), cut at the model's positions. The last id is never fed, so it needs no position.
int64_t final_length(const config::Generation& settings, int64_t prompt_tokens, int64_t positions);

struct Timings {
  double prefill_s = 0, decode_s = 0, first_token_s = 0;
  uint64_t prefill_tokens = 0, decode_tokens = 0;
};

class Generation {
 public:
  // settings: one for all rows, or one a row (per-prompt overrides); seeds: one a row, absent = drawn from run.seed.
  Generation(Session& session, std::vector<config::Generation> settings, std::vector<std::optional<uint64_t>> seeds);
  ~Generation();

  // False after the last event. A failing step ends the generation and throws; the session's stack is as before the
  // step, or poisoned and says so.
  bool next(Event& event);
  bool ended() const;                                 // no event is left, by the end or by a failure
  void cancel() noexcept;                             // any thread
  std::span<const float> logits(uint32_t row) const;  // of the last step, [vocab]
  std::span<const float> scores(uint32_t row) const;  // after processors and warpers
  void force(uint32_t row, int32_t id);               // replaces the newest token of the row

  const std::vector<RowResult>& results() const;
  const Timings& timings() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvplug::generate
