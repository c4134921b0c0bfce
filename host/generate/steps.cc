// SPDX-License-Identifier: Apache-2.0
// The forward passes of a generation: the prompt with what the cache needs for it, then one token a row.
#include <algorithm>

#include "generate/generation_state.h"

namespace kvplug::generate {

// What each row takes at the start, and the slots that the longest will need. anew: as if the cache held nothing.
SlotNeed Generation::State::take(bool anew) {
  int64_t longest = 0;
  for (size_t b = 0; b < rows.size(); ++b) {
    const SessionRow& row = session.rows[b];
    const int64_t cached = anew ? 0 : row.cached;
    // A row that has ended keeps its last token for a later run.
    const auto fed = static_cast<int64_t>(row.ids.size()) - (rows[b].done(results[b]) ? 1 : 0);
    taken[b] = {std::span(row.ids).subspan(static_cast<size_t>(cached), static_cast<size_t>(fed - cached)),
                cached == 0};
    longest = std::max(longest, static_cast<int64_t>(taken[b].ids.size()));
  }
  const std::vector<int64_t> pads = session.row_pads();
  SlotNeed need;
  for (size_t b = 0; b < rows.size(); ++b) {
    const int64_t before = anew ? 0 : pads[b];
    const int64_t pad = taken[b].fresh ? longest - static_cast<int64_t>(taken[b].ids.size()) : 0;
    need.include(before + pad + rows[b].prompt, rows[b].max_length - rows[b].prompt);
  }
  return need;
}

void Generation::State::prefill() {
  const auto entered = Clock::now();
  for (size_t b = 0; b < rows.size(); ++b) {
    SessionRow& row = session.rows[b];
    // A row that is cached to its end gives no logits: its last token is computed again.
    if (row.cached == static_cast<int64_t>(row.ids.size())) session.uncache(static_cast<uint32_t>(b), 1);
  }
  SlotNeed need = take(false);
  if (session.outgrown(need)) {
    need = take(true);
    session.plan(need.slots());  // what does not fit is refused while the session is as it was
    session.drop_stack();
    ++session.rebuilds;
    emit(EventType::kNotice, 0,
         "the cache was too small for this run and is made anew for " + std::to_string(need.slots()) +
             " tokens a row; what it held is computed again");
    take(false);
  }
  for (size_t b = 0; b < rows.size(); ++b) {
    if (results[b].token_ids.empty()) results[b].reused_tokens = static_cast<uint64_t>(session.rows[b].cached);
    timings.prefill_tokens += taken[b].ids.size();
  }
  feed.fill(taken);
  int64_t total = 0;
  for (const Row& row : rows) total = std::max(total, row.max_length - 1);
  const auto chunk = session.run.generation.prefill_chunk_size;
  if (chunk && !session.use_cache) {
    throw Error(Code::kConfig, "prefill in chunks needs a cache, and use_cache is false", "remove one of the two",
                "generation.prefill_chunk_size");
  }
  const int64_t step = chunk ? std::min(*chunk, feed.tokens) : feed.tokens;
  session.prepare(session.use_cache ? need.slots() : total, session.use_cache ? step : total);
  prepared = session.unprepared().empty() &&
             std::none_of(rows.begin(), rows.end(), [](const Row& row) { return row.settings.disable_compile; });
  if (step == feed.tokens) {
    session.forward(feed, false, logits.data());
  } else {
    Feed piece;
    for (int64_t begin = 0; begin < feed.tokens; begin += step) {
      piece.fill(feed, begin, std::min(begin + step, feed.tokens));
      session.forward(piece, false, logits.data());
    }
  }
  timings.prefill_s += seconds_since(entered);
  if (timings.first_token_s == 0) timings.first_token_s = seconds_since(start);
}

void Generation::State::decode() {
  const auto begin = Clock::now();
  for (size_t b = 0; b < rows.size(); ++b) {
    const SessionRow& row = session.rows[b];
    const auto cached = session.use_cache ? static_cast<size_t>(row.cached) : size_t{0};
    const bool done = rows[b].done(results[b]);
    if (done && session.use_cache) {
      taken[b] = {};
    } else {
      taken[b] = {std::span(row.ids).subspan(cached), cached == 0};
    }
    if (!done) ++timings.decode_tokens;
  }
  feed.fill(taken);
  session.forward(feed, prepared && feed.tokens == 1, logits.data());
  timings.decode_s += seconds_since(begin);
}

}  // namespace kvplug::generate
