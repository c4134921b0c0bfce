// SPDX-License-Identifier: Apache-2.0
// The inside of a generation: its rows, what they are about to take, and the phases of a step. Internal to this room.
#pragma once

#include <algorithm>
#include <chrono>
#include <deque>
#include <utility>

#include "core/error.h"
#include "generate/generation.h"
#include "generate/processors.h"
#include "generate/sampler.h"
#include "generate/session_state.h"
#include "text/stop_strings.h"
#include "text/stream.h"

namespace kvplug::generate {

using Clock = std::chrono::steady_clock;
inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// One row of the decode.
struct Row {
  config::Generation settings;
  std::vector<Processor> processors;
  std::optional<Sampler> sampler;  // absent: greedy
  std::optional<text::StreamDecoder> decoder;
  text::StopMatcher stops;
  int64_t prompt = 0, max_length = 0;  // in ids
  int32_t newest = -1;                 // chosen, not yet part of the row
  bool saw_nan = false;

  bool done(const RowResult& result) const { return result.finish != Finish::kNone; }
  bool is_eos(int32_t id) const {
    return std::find(settings.eos_token_id.begin(), settings.eos_token_id.end(), id) != settings.eos_token_id.end();
  }
};

struct Generation::State {
  Session::State& session;
  std::vector<Row> rows;
  std::vector<RowResult> results;
  Timings timings;
  std::deque<Event> events;
  std::vector<float> logits, scores;  // [rows, vocab]; scores of rows without processors stay unused
  Feed feed;                          // of the current step, and what its rows take: kept, so that decoding
  std::vector<FeedRow> taken;         // makes none
  std::atomic<bool> cancelled{false};
  bool started = false, ended = false, uncommitted = false;
  bool want_logprobs = false;
  bool prepared = false;         // decode steps run without a decision and without an allocation
  std::optional<Error> ran_out;  // of memory: what the retry with another kind follows
  bool retry = false;            // it is the next thing to do
  Clock::time_point start;
  size_t vocab = 0;

  explicit State(Session::State& of) : session(of) {}

  void set_up(std::vector<config::Generation> settings, const std::vector<std::optional<uint64_t>>& seeds);
  void set_lengths(Row& row, size_t index);
  SlotNeed take(bool anew);
  void prefill();
  void decode();
  void choose();
  void commit();
  void finish_row(size_t index, Finish reason);
  void fail();
  void check_plan() const;
  bool all_done() const {
    return std::all_of(results.begin(), results.end(), [](const RowResult& r) { return r.finish != Finish::kNone; });
  }
  std::span<float> row_of(std::vector<float>& from, size_t index) { return {from.data() + index * vocab, vocab}; }
  void emit(EventType type, size_t row, std::string text) {
    Event event;
    event.type = type;
    event.row = static_cast<uint32_t>(row);
    event.text = std::move(text);
    events.push_back(std::move(event));
  }
};

}  // namespace kvplug::generate
