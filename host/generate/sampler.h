// SPDX-License-Identifier: Apache-2.0
// Picks the next id of one row from its scores [vocab]. Every row has a generator of its own, so what a row draws
// depends on its seed alone, never on its neighbours.
#pragma once

#include <cstdint>
#include <random>
#include <span>

namespace kvplug::generate {

// The seed of row `row` of a run; well mixed, so that neighbouring seeds give unrelated rows.
uint64_t row_seed(uint64_t run_seed, uint64_t row);

// The highest score; among equals the lowest id. NaN counts as the highest, as in the reference.
int32_t argmax(std::span<const float> scores);

class Sampler {
 public:
  explicit Sampler(uint64_t seed) : engine_(seed) {}
  // Draws from softmax(scores); -inf is never drawn. Scores without any finite value give argmax.
  int32_t draw(std::span<const float> scores);

 private:
  std::mt19937_64 engine_;
};

// log softmax of scores at `id`.
float log_probability(std::span<const float> scores, int32_t id);

}  // namespace kvplug::generate
