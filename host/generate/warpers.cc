// SPDX-License-Identifier: Apache-2.0
// The warpers that filter a distribution. Each keeps at least the most likely token, as the reference does for one
// beam.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "generate/processors.h"

namespace kvplug::generate {
namespace {

constexpr float kGone = -std::numeric_limits<float>::infinity();

// Working room of the calling thread, kept from step to step: a decode step takes no memory.
template <class T, int place>
std::vector<T>& room(size_t n) {
  thread_local std::vector<T> values;
  values.resize(n);
  return values;
}
constexpr int kProbabilities = 0, kLogs = 1, kDistance = 2, kOrder = 3, kSorted = 4;

float largest(std::span<const float> scores) { return *std::max_element(scores.begin(), scores.end()); }

// Valid until the next call on this thread.
const std::vector<float>& softmax(std::span<const float> scores) {
  const float top = largest(scores);
  std::vector<float>& out = room<float, kProbabilities>(scores.size());
  float sum = 0.0f;
  for (size_t i = 0; i < out.size(); ++i) sum += out[i] = std::exp(scores[i] - top);
  for (float& p : out) p /= sum;
  return out;
}

// log softmax, and its entropy with 0 * -inf = 0.
float log_softmax(std::span<const float> scores, std::vector<float>& out) {
  const float top = largest(scores);
  float sum = 0.0f;
  for (const float s : scores) sum += std::exp(s - top);
  const float shift = top + std::log(sum);
  float entropy = 0.0f;
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = scores[i] - shift;
    const float p = std::exp(out[i]);
    if (p > 0.0f) entropy -= p * out[i];
  }
  return entropy;
}

// Drops what is less likely than `limit`, the most likely tokens (ties included) excepted.
void drop_below(float limit, const std::vector<float>& probabilities, Scores scores) {
  const float top = largest(scores);
  for (size_t i = 0; i < scores.size(); ++i) {
    if (probabilities[i] < limit && scores[i] < top) scores[i] = kGone;
  }
}

// The ids by ascending key, equal ones by id.
const std::vector<size_t>& sorted_by(std::span<const float> key) {
  std::vector<size_t>& order = room<size_t, kOrder>(key.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return key[a] != key[b] ? key[a] < key[b] : a < b; });
  return order;
}

}  // namespace

void temperature(float value, Scores scores) {
  for (float& score : scores) score /= value;
}

void top_k(int64_t k, Scores scores) {
  const size_t keep = std::min(static_cast<size_t>(k), scores.size());
  std::vector<float>& sorted = room<float, kSorted>(scores.size());
  std::copy(scores.begin(), scores.end(), sorted.begin());
  const auto kth = sorted.begin() + static_cast<std::ptrdiff_t>(keep - 1);
  std::nth_element(sorted.begin(), kth, sorted.end(), std::greater<>());
  for (float& score : scores) {
    if (score < *kth) score = kGone;
  }
}

void top_p(double p, Scores scores) {
  // Ascending order; a token goes when everything up to and including it holds at most 1 - p of the probability.
  const std::vector<size_t>& order = sorted_by(scores);
  const std::vector<float>& probabilities = softmax(scores);
  const auto limit = static_cast<float>(1.0 - p);
  float sum = 0.0f;
  for (size_t i = 0; i + 1 < order.size(); ++i) {  // the last one always stays
    sum += probabilities[order[i]];
    if (sum <= limit) scores[order[i]] = kGone;
  }
}

void min_p(double p, Scores scores) {
  const std::vector<float>& probabilities = softmax(scores);
  const float limit = static_cast<float>(p) * largest(probabilities);
  drop_below(limit, probabilities, scores);
}

void typical_p(double mass, Scores scores) {
  std::vector<float>& logs = room<float, kLogs>(scores.size());
  const float entropy = log_softmax(scores, logs);
  std::vector<float>& distance = room<float, kDistance>(scores.size());
  for (size_t i = 0; i < distance.size(); ++i) distance[i] = std::fabs(-logs[i] - entropy);
  const std::vector<size_t>& order = sorted_by(distance);
  const std::vector<float>& probabilities = softmax(scores);
  float sum = 0.0f;
  size_t last = 0;  // tokens whose cumulative probability stays below the mass
  for (const size_t i : order) {
    sum += probabilities[i];
    if (sum < static_cast<float>(mass)) ++last;
  }
  const float limit = distance[order[std::min(last, order.size() - 1)]];
  for (size_t i = 1; i < order.size(); ++i) {  // the most typical one always stays
    if (distance[order[i]] > limit) scores[order[i]] = kGone;
  }
}

void epsilon_cutoff(double epsilon, Scores scores) { drop_below(static_cast<float>(epsilon), softmax(scores), scores); }

void eta_cutoff(double epsilon, Scores scores) {
  std::vector<float>& logs = room<float, kLogs>(scores.size());
  const float entropy = log_softmax(scores, logs);
  const auto e = static_cast<float>(epsilon);
  drop_below(std::min(e, std::sqrt(e) * std::exp(-entropy)), softmax(scores), scores);
}

void renormalize(Scores scores) {
  std::vector<float>& logs = room<float, kLogs>(scores.size());
  log_softmax(scores, logs);
  std::copy(logs.begin(), logs.end(), scores.begin());
}

}  // namespace kvplug::generate
