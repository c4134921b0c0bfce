// SPDX-License-Identifier: Apache-2.0
// Hugging Face's logits processors and sampling warpers on one row of float32 scores [vocab], in the order in which
// generate() applies them. -inf = filtered out. Each works on its own; a chain is the list that a run's settings ask
// for. What counts as the past of a row is its own ids: padding and neighbours never do.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "config/run.h"

namespace kvplug::generate {

// What a processor may look at: ids is prompt and new tokens of the row, prompt the number of prompt ids in it.
struct RowPast {
  std::span<const int32_t> ids;
  int64_t prompt = 0;
  int64_t max_length = 0;  // ids the row may reach in all
};

using Scores = std::span<float>;
using Processor = std::function<void(const RowPast&, Scores)>;

// Processors and, with do_sample, warpers of `settings`, in Hugging Face's order. Throws kInvalidArgument for ids that
// are no ids of the vocabulary.
std::vector<Processor> make_processors(const config::Generation& settings, int64_t vocab);

// --- processors.cc: look at the past
void repetition_penalty(float penalty, const RowPast& past, Scores scores);
void no_repeat_ngram(int64_t size, const RowPast& past, Scores scores);
void bad_words(const std::vector<std::vector<int64_t>>& words, const RowPast& past, Scores scores);
void remove_invalid_values(Scores scores);

// --- warpers.cc: filter the distribution; `keep` = tokens that always stay
void temperature(float value, Scores scores);
void top_k(int64_t k, Scores scores);
void top_p(double p, Scores scores);
void min_p(double p, Scores scores);
void typical_p(double mass, Scores scores);
void epsilon_cutoff(double epsilon, Scores scores);
void eta_cutoff(double epsilon, Scores scores);
void renormalize(Scores scores);  // log softmax in place

}  // namespace kvplug::generate
