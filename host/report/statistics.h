// SPDX-License-Identifier: Apache-2.0
// The numbers of a comparison, fed position by position so that no text has to fit in memory: Kullback-Leibler
// divergence of the baseline's distribution p from the candidate's q, agreement of the most likely token, perplexity of
// both, the first place where the choices part; and the change of every layer's attention output.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace kvplug::report {

// Natural logarithm of softmax, in float64; NaN in, NaN out.
void log_softmax(std::span<const float> logits, std::vector<double>& out);
// The first of the largest.
int32_t argmax(std::span<const float> logits);
// sum p (log p - log q), both from log_softmax; never below 0 but for rounding, exactly 0 for equal ones.
double kl_divergence(std::span<const double> log_p, std::span<const double> log_q);
// Value at share `part` of a sorted list, the nearest rank; 0 of nothing.
double quantile(std::span<const double> sorted, double part);

struct Divergence {
  int64_t text = 0, position = 0;  // the token at position + 1 is what the logits at `position` choose
  int32_t baseline = 0, candidate = 0;
};

class Comparison {
 public:
  // Of one position: logits of both and the token that follows in the text. log_p of the baseline, so that several
  // candidates share it.
  void add(int64_t text, int64_t position, std::span<const float> baseline, std::span<const double> log_p,
           std::span<const float> candidate, int32_t next);

  int64_t positions() const { return static_cast<int64_t>(kl_.size()); }
  double mean_kl() const;
  std::vector<double> sorted_kl() const;  // NaN last, as the worst
  double top1_agreement() const;          // 0 to 1
  double baseline_perplexity() const;
  double perplexity() const;
  const std::optional<Divergence>& first() const { return first_; }

 private:
  std::vector<double> kl_, log_q_;
  int64_t equal_ = 0;
  double baseline_nll_ = 0, nll_ = 0;
  std::optional<Divergence> first_;
};

// Relative change of each layer's output over everything seen: |candidate - baseline| / |baseline|, Euclidean.
class LayerDrift {
 public:
  void add(size_t layer, std::span<const float> baseline, std::span<const float> candidate);
  std::vector<double> relative() const;

 private:
  std::vector<double> change_, size_;
};

}  // namespace kvplug::report
