// SPDX-License-Identifier: Apache-2.0
#include "generate/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace kvplug::generate {

uint64_t row_seed(uint64_t run_seed, uint64_t row) {
  // SplitMix64 (Steele, Lea, Flood 2014).
  uint64_t z = run_seed + (row + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

int32_t argmax(std::span<const float> scores) {
  size_t best = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (std::isnan(scores[i])) return static_cast<int32_t>(i);
    if (scores[i] > scores[best]) best = i;
  }
  return static_cast<int32_t>(best);
}

int32_t Sampler::draw(std::span<const float> scores) {
  // mt19937_64 and the division below are the same on every platform; the standard's distributions are not.
  const double u = static_cast<double>(engine_() >> 11) * 0x1.0p-53;
  const int32_t top = argmax(scores);
  const float peak = scores[static_cast<size_t>(top)];
  if (!std::isfinite(peak)) return top;
  double total = 0.0;
  for (const float s : scores) total += std::exp(static_cast<double>(s) - peak);
  double sum = 0.0;
  for (size_t i = 0; i < scores.size(); ++i) {
    const double p = std::exp(static_cast<double>(scores[i]) - peak);
    sum += p;
    if (p > 0.0 && u * total < sum) return static_cast<int32_t>(i);
  }
  return top;
}

float log_probability(std::span<const float> scores, int32_t id) {
  const float peak = *std::max_element(scores.begin(), scores.end());
  if (!std::isfinite(peak)) return std::numeric_limits<float>::quiet_NaN();
  double sum = 0.0;
  for (const float s : scores) sum += std::exp(static_cast<double>(s) - peak);
  return static_cast<float>(static_cast<double>(scores[static_cast<size_t>(id)]) - peak - std::log(sum));
}

}  // namespace kvplug::generate
