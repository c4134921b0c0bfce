// SPDX-License-Identifier: Apache-2.0
#include "report/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace kvplug::report {

void log_softmax(std::span<const float> logits, std::vector<double>& out) {
  out.resize(logits.size());
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - most);
  const double norm = most + std::log(sum);
  std::transform(logits.begin(), logits.end(), out.begin(), [norm](float x) { return static_cast<double>(x) - norm; });
}

int32_t argmax(std::span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

double kl_divergence(std::span<const double> log_p, std::span<const double> log_q) {
  double sum = 0;
  for (size_t i = 0; i < log_p.size(); ++i) {
    const double p = std::exp(log_p[i]);
    if (p > 0) sum += p * (log_p[i] - log_q[i]);  // p log p is 0 at 0
  }
  return sum;
}

double quantile(std::span<const double> sorted, double part) {
  if (sorted.empty()) return 0;
  const auto rank = static_cast<size_t>(std::ceil(part * static_cast<double>(sorted.size())));
  return sorted[std::clamp<size_t>(rank, 1, sorted.size()) - 1];
}

void Comparison::add(int64_t text, int64_t position, std::span<const float> baseline, std::span<const double> log_p,
                     std::span<const float> candidate, int32_t next) {
  log_softmax(candidate, log_q_);
  kl_.push_back(kl_divergence(log_p, log_q_));
  baseline_nll_ -= log_p[static_cast<size_t>(next)];
  nll_ -= log_q_[static_cast<size_t>(next)];
  const int32_t a = argmax(baseline), b = argmax(candidate);
  if (a == b) {
    ++equal_;
  } else if (!first_) {
    first_ = {text, position, a, b};
  }
}

double Comparison::mean_kl() const {
  return kl_.empty() ? 0 : std::accumulate(kl_.begin(), kl_.end(), 0.0) / static_cast<double>(kl_.size());
}

std::vector<double> Comparison::sorted_kl() const {
  std::vector<double> out = kl_;
  std::sort(out.begin(), out.end(), [](double a, double b) { return std::isnan(b) ? !std::isnan(a) : a < b; });
  return out;
}

double Comparison::top1_agreement() const {
  return kl_.empty() ? 1 : static_cast<double>(equal_) / static_cast<double>(kl_.size());
}

double Comparison::baseline_perplexity() const { return std::exp(baseline_nll_ / static_cast<double>(kl_.size())); }
double Comparison::perplexity() const { return std::exp(nll_ / static_cast<double>(kl_.size())); }

void LayerDrift::add(size_t layer, std::span<const float> baseline, std::span<const float> candidate) {
  if (layer >= change_.size()) {
    change_.resize(layer + 1);
    size_.resize(layer + 1);
  }
  double change = 0, size = 0;
  for (size_t i = 0; i < baseline.size(); ++i) {
    const double a = baseline[i], d = candidate[i] - a;
    change += d * d;
    size += a * a;
  }
  change_[layer] += change;
  size_[layer] += size;
}

std::vector<double> LayerDrift::relative() const {
  std::vector<double> out(change_.size());
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = change_[i] == 0 ? 0 : std::sqrt(change_[i] / std::max(size_[i], 1e-300));
  }
  return out;
}

}  // namespace kvplug::report
