// SPDX-License-Identifier: Apache-2.0
#include "generate/generation.h"

#include <cmath>

#include "generate/generation_state.h"
#include "generate/memory_limit.h"

namespace kvplug::generate {

const char* finish_word(Finish finish) {
  static constexpr const char* kWords[] = {"", "eos", "length", "stop_string", "time", "cancelled", "error"};
  return kWords[static_cast<size_t>(finish)];
}

int64_t final_length(const config::Generation& s, int64_t prompt, int64_t positions) {
  const int64_t length = s.max_new_tokens     ? prompt + *s.max_new_tokens
                         : s.max_length_given ? std::max(s.max_length, prompt + 1)
                                              : prompt + s.max_length;
  return std::min(length, positions + 1);
}

void Generation::State::set_up(std::vector<config::Generation> settings,
                               const std::vector<std::optional<uint64_t>>& seeds) {
  const model::Description& model = session.context.executor->description();
  vocab = static_cast<size_t>(model.vocab_size);
  const auto& include = session.run.output.include;
  want_logprobs = std::find(include.begin(), include.end(), "logprobs") != include.end();
  if (session.rows.empty()) {
    throw Error(Code::kInvalidState, "the session has no rows", "append ids or text to row 0 first");
  }
  if (settings.size() != 1 && settings.size() != session.rows.size()) {
    throw Error(Code::kInvalidArgument, "generation settings for 1 or " + std::to_string(session.rows.size()) +
                                            " rows expected, got " + std::to_string(settings.size()));
  }
  const uint64_t run_seed = session.run.run.seed.value_or(0);
  for (size_t b = 0; b < session.rows.size(); ++b) {
    Row row{.settings = settings.size() == 1 ? settings[0] : std::move(settings[b]),
            .processors = {},
            .sampler = {},
            .decoder = {},
            .stops = text::StopMatcher({})};
    if (session.rows[b].ids.empty()) {
      if (!row.settings.bos_token_id) {
        throw Error(Code::kInvalidArgument, "the prompt is empty, and the model has no bos_token_id to start from",
                    "give at least one token", "row " + std::to_string(b));
      }
      const auto bos = static_cast<int32_t>(*row.settings.bos_token_id);
      session.check_ids(std::span(&bos, 1));
      session.rows[b].ids.push_back(bos);
    }
    row.processors = make_processors(row.settings, model.vocab_size);
    if (row.settings.do_sample) {
      const bool own = b < seeds.size() && seeds[b].has_value();
      row.sampler.emplace(own ? *seeds[b] : row_seed(run_seed, b));
    }
    if (session.context.tokenizer)
      row.decoder.emplace(session.context.tokenizer, session.run.tokenizer.skip_special_tokens);
    if (!row.settings.stop_strings.empty()) {
      if (!row.decoder) {
        throw Error(Code::kUnsupported, "stop strings need a tokenizer, and the model folder has none", "",
                    "generation.stop_strings");
      }
      row.stops = text::StopMatcher(row.settings.stop_strings);
    }
    set_lengths(row, b);
    RowResult result;
    result.prompt_tokens = static_cast<uint64_t>(row.prompt);
    // Room for every token there may be, so that a step takes none.
    session.rows[b].ids.reserve(static_cast<size_t>(row.max_length));
    result.token_ids.reserve(static_cast<size_t>(row.max_length - row.prompt));
    if (want_logprobs) result.logprobs.reserve(static_cast<size_t>(row.max_length - row.prompt));
    rows.push_back(std::move(row));
    results.push_back(std::move(result));
  }
  taken.resize(rows.size());
  logits.resize(rows.size() * vocab);
  if (std::any_of(rows.begin(), rows.end(), [](const Row& r) { return !r.processors.empty(); })) {
    scores.resize(logits.size());
  }
}

void Generation::State::set_lengths(Row& row, size_t index) {
  const config::Generation& s = row.settings;
  const int64_t positions = session.context.executor->description().max_position_embeddings;
  row.prompt = static_cast<int64_t>(session.rows[index].ids.size());
  const std::string where = "row " + std::to_string(index);
  if (row.prompt > positions) {
    throw Error(Code::kInvalidArgument,
                "the prompt has " + std::to_string(row.prompt) + " tokens, the model has " + std::to_string(positions) +
                    " positions",
                "shorten the prompt", where);
  }
  if (!s.max_new_tokens && s.max_length_given && row.prompt >= s.max_length) {
    throw Error(Code::kInvalidArgument,
                "the prompt has " + std::to_string(row.prompt) + " tokens and generation.max_length is " +
                    std::to_string(s.max_length) + ", which leaves none to generate",
                "use generation.max_new_tokens", where);
  }
  row.max_length = final_length(s, row.prompt, positions);
  if (const int64_t wanted = final_length(s, row.prompt, INT32_MAX); wanted > row.max_length) {
    emit(EventType::kNotice, index,
         "the model has " + std::to_string(positions) + " positions: at most " +
             std::to_string(row.max_length - row.prompt) + " new tokens instead of " +
             std::to_string(wanted - row.prompt));
  }
}

void Generation::State::choose() {
  for (size_t b = 0; b < rows.size(); ++b) {
    Row& row = rows[b];
    if (row.done(results[b])) continue;
    std::span<const float> from = row_of(logits, b);
    if (!row.processors.empty()) {
      const std::span<float> own = row_of(scores, b);
      std::copy(from.begin(), from.end(), own.begin());
      const RowPast past{session.rows[b].ids, row.prompt, row.max_length};
      for (const Processor& process : row.processors) process(past, own);
      from = own;
    }
    row.newest = row.sampler ? row.sampler->draw(from) : argmax(from);
    if (std::isnan(from[static_cast<size_t>(row.newest)]) && !std::exchange(row.saw_nan, true)) {
      emit(EventType::kNotice, b, "the logits hold NaN: what follows in this row means nothing");
    }
    emit(EventType::kToken, b, "");
    events.back().token_id = row.newest;
    events.back().position = session.rows[b].ids.size();
    if (want_logprobs) events.back().logprob = log_probability(from, row.newest);
  }
  uncommitted = true;
}

// The newest tokens become part of their rows, once their TOKEN events are delivered (force() may have changed them).
void Generation::State::commit() {
  uncommitted = false;
  for (size_t b = 0; b < rows.size(); ++b) {
    Row& row = rows[b];
    RowResult& result = results[b];
    if (row.done(result)) continue;
    session.rows[b].ids.push_back(row.newest);
    result.token_ids.push_back(row.newest);
    if (want_logprobs) {
      result.logprobs.push_back(
          log_probability(row.processors.empty() ? row_of(logits, b) : row_of(scores, b), row.newest));
    }
    if (row.decoder) {
      std::string text = row.stops.feed(row.decoder->push(row.newest));
      if (!text.empty()) {
        result.text += text;
        emit(EventType::kText, b, std::move(text));
      }
    }
    if (row.is_eos(row.newest)) {
      finish_row(b, Finish::kEos);
    } else if (row.stops.stopped()) {
      finish_row(b, Finish::kStopString);
    } else if (static_cast<int64_t>(session.rows[b].ids.size()) >= row.max_length) {
      finish_row(b, Finish::kLength);
    } else if (row.settings.max_time && seconds_since(start) > *row.settings.max_time) {
      finish_row(b, Finish::kTime);
    }
  }
}

void Generation::State::finish_row(size_t index, Finish reason) {
  Row& row = rows[index];
  if (row.decoder) {
    // What was held back: an incomplete character, and the beginning of a stop string that never came.
    std::string rest = row.stops.feed(row.decoder->finish());
    if (row.stops.stopped() && reason != Finish::kEos) reason = Finish::kStopString;
    rest += row.stops.finish();
    if (!rest.empty()) {
      results[index].text += rest;
      emit(EventType::kText, index, std::move(rest));
    }
  }
  results[index].finish = reason;
  emit(EventType::kFinish, index, "");
  events.back().finish = reason;
}

void Generation::State::fail() {
  ended = true;
  for (RowResult& result : results) {
    if (result.finish == Finish::kNone) result.finish = Finish::kError;
  }
}

void Generation::State::check_plan() const {
  if (session.run.memory.plan != "exact" || !session.stack || session.lent) return;
  const kvp_memory memory = session.stack->memory(-1);
  for (int tier = 0; tier < KVP_N_TIERS; ++tier) {
    for (int purpose = 0; purpose < KVP_N_PURPOSES; ++purpose) {
      if (memory.reserved[tier][purpose] == session.planned.reserved[tier][purpose]) continue;
      throw Error(Code::kPlugin,
                  "cache \"" + session.run.generation.cache_implementation + "\" holds " +
                      std::to_string(memory.reserved[tier][purpose]) + " bytes of tier " + std::to_string(tier) +
                      ", purpose " + std::to_string(purpose) + ", and planned " +
                      std::to_string(session.planned.reserved[tier][purpose]),
                  "memory.plan = \"check\" lets the run pass; the plugin's plan is wrong", "memory.plan");
    }
  }
}

Generation::Generation(Session& session, std::vector<config::Generation> settings,
                       std::vector<std::optional<uint64_t>> seeds)
    : state_(std::make_unique<State>(*session.state_)) {
  state_->set_up(std::move(settings), seeds);
}

Generation::~Generation() = default;

bool Generation::next(Event& event) {
  State& s = *state_;
  while (s.events.empty()) {
    if (s.ended) return false;
    if (s.uncommitted) {
      s.commit();
      continue;
    }
    if (s.all_done()) {
      s.ended = true;
      s.check_plan();
      return false;
    }
    if (s.cancelled.load(std::memory_order_relaxed)) {
      for (size_t b = 0; b < s.rows.size(); ++b) {
        if (!s.rows[b].done(s.results[b])) s.finish_row(b, Finish::kCancelled);
      }
      continue;
    }
    try {
      if (std::exchange(s.retry, false)) {
        s.session.fall_back();
        s.prefill();
      } else if (!std::exchange(s.started, true)) {
        s.start = Clock::now();
        s.prefill();
      } else {
        s.decode();
      }
      s.choose();
    } catch (const Error& error) {
      if (is_out_of_memory(error) && s.session.may_fall_back()) {
        // The notice goes out first, then the retry begins.
        s.emit(EventType::kNotice, 0, retry_text(error, *s.session.run.cache.oom_fallback));
        s.ran_out = error;
        s.retry = true;
        continue;
      }
      s.fail();
      // A retry may run out of disk instead.
      if (s.ran_out && (is_out_of_memory(error) || error.code() == Code::kIo)) throw both_failed(*s.ran_out, error);
      if (is_out_of_memory(error)) throw with_memory_hint(error, s.session.run);
      throw;
    } catch (...) {
      s.fail();
      throw;
    }
  }
  event = std::move(s.events.front());
  s.events.pop_front();
  return true;
}

bool Generation::ended() const { return state_->ended && state_->events.empty(); }

void Generation::cancel() noexcept { state_->cancelled.store(true, std::memory_order_relaxed); }

std::span<const float> Generation::logits(uint32_t row) const {
  if (row >= state_->rows.size()) throw Error(Code::kInvalidArgument, "row " + std::to_string(row) + " does not exist");
  if (!state_->started) throw Error(Code::kInvalidState, "no step has been computed yet");
  return state_->row_of(state_->logits, row);
}

std::span<const float> Generation::scores(uint32_t row) const {
  const std::span<const float> raw = logits(row);
  return state_->rows[row].processors.empty() ? raw : state_->row_of(state_->scores, row);
}

void Generation::force(uint32_t row, int32_t id) {
  if (row >= state_->rows.size()) throw Error(Code::kInvalidArgument, "row " + std::to_string(row) + " does not exist");
  if (!state_->uncommitted || state_->rows[row].done(state_->results[row])) {
    throw Error(Code::kInvalidState, "row " + std::to_string(row) + " has no new token to replace");
  }
  state_->session.check_ids(std::span(&id, 1));
  state_->rows[row].newest = id;
}

const std::vector<RowResult>& Generation::results() const { return state_->results; }
const Timings& Generation::timings() const { return state_->timings; }

}  // namespace kvplug::generate
