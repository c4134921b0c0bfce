// SPDX-License-Identifier: Apache-2.0
#include "generate/processors.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "core/error.h"

namespace kvplug::generate {
namespace {

constexpr float kGone = -std::numeric_limits<float>::infinity();

void ban(const std::vector<int64_t>& ids, Scores scores) {
  for (const int64_t id : ids) scores[static_cast<size_t>(id)] = kGone;
}

void force(const std::vector<int64_t>& ids, Scores scores) {
  std::fill(scores.begin(), scores.end(), kGone);
  for (const int64_t id : ids) scores[static_cast<size_t>(id)] = 0.0f;
}

void check_ids(const char* key, std::span<const int64_t> ids, int64_t vocab) {
  for (const int64_t id : ids) {
    if (id < 0 || id >= vocab) {
      throw Error(Code::kInvalidArgument,
                  "id " + std::to_string(id) + " is not in the vocabulary (0 to " + std::to_string(vocab - 1) + ")", "",
                  std::string("generation.") + key);
    }
  }
}

}  // namespace

void repetition_penalty(float penalty, const RowPast& past, Scores scores) {
  // Once per distinct id, however often it occurs: the reference gathers first and scatters afterwards.
  thread_local std::vector<int32_t> seen;  // kept from step to step, grown ahead: a decode step takes no memory
  seen.reserve(static_cast<size_t>(std::max<int64_t>(past.max_length, 0)));
  seen.assign(past.ids.begin(), past.ids.end());
  std::sort(seen.begin(), seen.end());
  seen.erase(std::unique(seen.begin(), seen.end()), seen.end());
  for (const int32_t id : seen) {
    float& score = scores[static_cast<size_t>(id)];
    score = score < 0 ? score * penalty : score / penalty;
  }
}

void no_repeat_ngram(int64_t size, const RowPast& past, Scores scores) {
  const auto n = static_cast<size_t>(size);
  if (past.ids.size() + 1 < n) return;
  const auto tail = past.ids.last(n - 1);  // what the next id would complete
  for (size_t i = 0; i + n <= past.ids.size(); ++i) {
    if (std::equal(tail.begin(), tail.end(), past.ids.begin() + static_cast<std::ptrdiff_t>(i))) {
      scores[static_cast<size_t>(past.ids[i + n - 1])] = kGone;
    }
  }
}

void bad_words(const std::vector<std::vector<int64_t>>& words, const RowPast& past, Scores scores) {
  for (const auto& word : words) {
    const size_t prefix = word.size() - 1;
    if (prefix > past.ids.size()) continue;
    if (std::equal(word.begin(), word.end() - 1, past.ids.end() - static_cast<std::ptrdiff_t>(prefix))) {
      scores[static_cast<size_t>(word.back())] = kGone;
    }
  }
}

void remove_invalid_values(Scores scores) {
  for (float& score : scores) {
    if (std::isnan(score)) score = 0.0f;
    if (std::isinf(score)) score = std::copysign(std::numeric_limits<float>::max(), score);
  }
}

std::vector<Processor> make_processors(const config::Generation& s, int64_t vocab) {
  check_ids("eos_token_id", s.eos_token_id, vocab);
  check_ids("suppress_tokens", s.suppress_tokens, vocab);
  check_ids("begin_suppress_tokens", s.begin_suppress_tokens, vocab);
  check_ids("forced_eos_token_id", s.forced_eos_token_id, vocab);
  if (s.forced_bos_token_id) check_ids("forced_bos_token_id", std::span(&*s.forced_bos_token_id, 1), vocab);
  for (const auto& word : s.bad_words_ids) check_ids("bad_words_ids", word, vocab);

  std::vector<Processor> chain;
  const auto add = [&](bool wanted, Processor processor) {
    if (wanted) chain.push_back(std::move(processor));
  };
  add(s.repetition_penalty != 1.0, [penalty = static_cast<float>(s.repetition_penalty)](const RowPast& past, Scores x) {
    repetition_penalty(penalty, past, x);
  });
  add(s.no_repeat_ngram_size > 0,
      [size = s.no_repeat_ngram_size](const RowPast& past, Scores x) { no_repeat_ngram(size, past, x); });
  // A bad word that is the end token itself would forbid ending; the reference leaves it out.
  auto words = s.bad_words_ids;
  std::erase_if(words, [&](const auto& word) {
    return word.empty() || (word.size() == 1 && std::count(s.eos_token_id.begin(), s.eos_token_id.end(), word[0]) > 0);
  });
  add(!words.empty(), [words](const RowPast& past, Scores x) { bad_words(words, past, x); });
  add(s.min_length > 0 && !s.eos_token_id.empty(),
      [min = s.min_length, eos = s.eos_token_id](const RowPast& past, Scores x) {
        if (static_cast<int64_t>(past.ids.size()) < min) ban(eos, x);
      });
  add(s.min_new_tokens.value_or(0) > 0 && !s.eos_token_id.empty(),
      [min = s.min_new_tokens.value_or(0), eos = s.eos_token_id](const RowPast& past, Scores x) {
        if (static_cast<int64_t>(past.ids.size()) - past.prompt < min) ban(eos, x);
      });
  add(s.forced_bos_token_id.has_value(), [bos = s.forced_bos_token_id.value_or(0)](const RowPast& past, Scores x) {
    if (past.ids.size() == 1) force({bos}, x);
  });
  add(!s.forced_eos_token_id.empty(), [eos = s.forced_eos_token_id](const RowPast& past, Scores x) {
    if (static_cast<int64_t>(past.ids.size()) == past.max_length - 1) force(eos, x);
  });
  add(s.remove_invalid_values, [](const RowPast&, Scores x) { remove_invalid_values(x); });
  add(!s.suppress_tokens.empty(), [ids = s.suppress_tokens](const RowPast&, Scores x) { ban(ids, x); });
  add(!s.begin_suppress_tokens.empty(),
      [ids = s.begin_suppress_tokens, forced_bos = s.forced_bos_token_id.has_value()](const RowPast& past, Scores x) {
        // After a forced first token the "beginning" is the one behind it.
        const int64_t begin = past.prompt > 1 || !forced_bos ? past.prompt : past.prompt + 1;
        if (static_cast<int64_t>(past.ids.size()) == begin) ban(ids, x);
      });
  if (s.do_sample) {
    add(s.temperature != 1.0, [t = static_cast<float>(s.temperature)](const RowPast&, Scores x) { temperature(t, x); });
    add(s.top_k > 0, [k = s.top_k](const RowPast&, Scores x) { top_k(k, x); });
    add(s.top_p < 1.0, [p = s.top_p](const RowPast&, Scores x) { top_p(p, x); });
    add(s.min_p.has_value(), [p = s.min_p.value_or(0)](const RowPast&, Scores x) { min_p(p, x); });
    add(s.typical_p < 1.0, [p = s.typical_p](const RowPast&, Scores x) { typical_p(p, x); });
    add(s.epsilon_cutoff > 0.0, [e = s.epsilon_cutoff](const RowPast&, Scores x) { epsilon_cutoff(e, x); });
    add(s.eta_cutoff > 0.0, [e = s.eta_cutoff](const RowPast&, Scores x) { eta_cutoff(e, x); });
  }
  add(s.renormalize_logits, [](const RowPast&, Scores x) { renormalize(x); });
  return chain;
}

}  // namespace kvplug::generate
