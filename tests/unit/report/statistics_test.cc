// SPDX-License-Identifier: Apache-2.0
// The figures of a comparison on distributions whose answers are known by hand.
#include "report/statistics.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kvplug::report {
namespace {

std::vector<float> logs(const std::vector<double>& p) {
  std::vector<float> out;
  for (const double x : p) out.push_back(static_cast<float>(std::log(x)));
  return out;
}

TEST(Statistics, LogSoftmaxIsNormalisedAndMovesWithNothing) {
  std::vector<double> out, moved;
  log_softmax(std::vector<float>{1, 2, 3}, out);
  log_softmax(std::vector<float>{1001, 1002, 1003}, moved);
  const double norm = std::log(std::exp(1.0) + std::exp(2.0) + std::exp(3.0));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_NEAR(out[i], static_cast<double>(i + 1) - norm, 1e-15);
    EXPECT_NEAR(out[i], moved[i], 1e-12);
  }
}

TEST(Statistics, DivergenceIsThatOfTheBaselineFromTheCandidate) {
  std::vector<double> p, q;
  log_softmax(logs({0.5, 0.25, 0.25}), p);
  log_softmax(logs({0.25, 0.25, 0.5}), q);
  EXPECT_NEAR(kl_divergence(p, q), 0.5 * std::log(2.0) - 0.25 * std::log(2.0), 1e-7);
  EXPECT_EQ(kl_divergence(p, p), 0);
  log_softmax(logs({0.8, 0.1, 0.1}), p);
  EXPECT_NEAR(kl_divergence(p, q), 0.8 * std::log(3.2) + 0.1 * std::log(0.4) + 0.1 * std::log(0.2), 1e-7);
  EXPECT_NEAR(kl_divergence(q, p), 0.25 * std::log(0.25 / 0.8) + 0.25 * std::log(2.5) + 0.5 * std::log(5.0), 1e-7)
      << "it is not symmetric";
}

TEST(Statistics, ATokenOfNoProbabilityCountsNothing) {
  std::vector<double> p, q;
  log_softmax(std::vector<float>{0, -std::numeric_limits<float>::infinity()}, p);
  log_softmax(std::vector<float>{0, 0}, q);
  EXPECT_NEAR(kl_divergence(p, q), std::log(2.0), 1e-15);
}

TEST(Statistics, QuantilesAreNearestRanks) {
  EXPECT_EQ(quantile({}, 0.5), 0);
  const std::vector<double> four{1, 2, 3, 4};
  EXPECT_EQ(quantile(four, 0.5), 2);
  EXPECT_EQ(quantile(four, 0.99), 4);
  EXPECT_EQ(quantile(four, 0.0), 1);
  std::vector<double> hundred(100);
  for (size_t i = 0; i < 100; ++i) hundred[i] = static_cast<double>(i + 1);
  EXPECT_EQ(quantile(hundred, 0.99), 99);
}

TEST(Statistics, TheFirstOfEqualLogitsIsChosen) { EXPECT_EQ(argmax(std::vector<float>{1, 3, 3}), 1); }

TEST(Statistics, APlantedDifferenceIsFoundWhereItIs) {
  const std::vector<float> plain = logs({0.7, 0.2, 0.1}), planted = logs({0.2, 0.7, 0.1});
  std::vector<double> log_p;
  log_softmax(plain, log_p);
  Comparison same, other;
  for (int64_t position = 0; position < 10; ++position) {
    const bool here = position == 6 || position == 8;
    same.add(0, position, plain, log_p, plain, 0);
    other.add(0, position, plain, log_p, here ? planted : plain, 0);
  }
  EXPECT_EQ(same.mean_kl(), 0);
  EXPECT_EQ(same.sorted_kl().back(), 0);
  EXPECT_EQ(same.top1_agreement(), 1);
  EXPECT_FALSE(same.first());
  EXPECT_EQ(same.perplexity(), same.baseline_perplexity());
  EXPECT_NEAR(same.perplexity(), 1 / 0.7, 1e-6);
  ASSERT_TRUE(other.first());
  EXPECT_EQ(other.first()->position, 6);
  EXPECT_EQ(other.first()->baseline, 0);
  EXPECT_EQ(other.first()->candidate, 1);
  EXPECT_DOUBLE_EQ(other.top1_agreement(), 0.8);
  EXPECT_NEAR(other.mean_kl(), 0.2 * 0.5 * std::log(3.5), 1e-6);
  EXPECT_NEAR(other.perplexity(), std::exp(-(8 * std::log(0.7) + 2 * std::log(0.2)) / 10), 1e-6);
}

TEST(Statistics, DriftIsRelativeToTheLayer) {
  LayerDrift drift;
  drift.add(0, std::vector<float>{3, 4}, std::vector<float>{3, 4});
  drift.add(1, std::vector<float>{3, 4}, std::vector<float>{3, 4.5f});
  drift.add(1, std::vector<float>{0, 0}, std::vector<float>{0, 0});
  EXPECT_EQ(drift.relative(), (std::vector<double>{0, 0.1}));
}

}  // namespace
}  // namespace kvplug::report
