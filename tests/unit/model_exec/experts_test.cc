// SPDX-License-Identifier: Apache-2.0
// Routed experts against plain sums over the checkpoint's own tensors, for any number of experts a token.
#include "model/exec/experts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "support/safetensors.h"
#include "tiny_model.h"

namespace kvplug::model {
namespace {

constexpr size_t kHidden = 32, kExperts = 4, kWidth = 24;
constexpr size_t kLayer = 1;

std::shared_ptr<const PackedModel> load_experts(int64_t per_token, Type type, bool deterministic) {
  Description description = describe_model(testing::data("models/llama4_text"));
  description.experts_per_token = per_token;
  const LoadOptions options{.dtype = dtype_of(type), .threads = 1, .deterministic = deterministic};
  return std::make_shared<const PackedModel>(description, options, Progress());
}

std::vector<float> random_rows(size_t rows) {
  std::mt19937 rng(5);
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> x(rows * kHidden);
  for (float& value : x) value = normal(rng);
  return x;
}

// delta + experts(x), in the type and back.
std::vector<float> add_experts(const PackedModel& model, const std::vector<float>& x, const std::vector<float>& delta) {
  const auto rows = static_cast<int64_t>(x.size() / kHidden), room = (rows + kFixedRows) * 32;
  std::vector<char> in(static_cast<size_t>(room) * 4), out(in.size());
  const Kernels& k = kernels(model.type);
  k.from_float(x.data(), in.data(), rows * 32);
  k.from_float(delta.data(), out.data(), rows * 32);
  Products products(model);
  Experts experts(model, products, rows);
  experts.add(model.layers[kLayer], in.data(), out.data(), rows);
  std::vector<float> result(x.size());
  k.to_float(out.data(), result.data(), rows * 32);
  return result;
}

// As Llama 4 defines it: every expert sees every token, its input scaled by sigmoid(score), 0 for those not chosen.
std::vector<double> plain(const std::vector<float>& x, size_t per_token) {
  const auto tensors = testing::read_safetensors(testing::data("models/llama4_text/model.safetensors"));
  const std::string prefix = "model.layers.1.feed_forward.";
  const auto router = tensors.at(prefix + "router.weight").floats(),
             gate_up = tensors.at(prefix + "experts.gate_up_proj").floats(),
             down = tensors.at(prefix + "experts.down_proj").floats();
  std::vector<double> out(x.size());
  for (size_t r = 0; r < x.size() / kHidden; ++r) {
    std::vector<double> scores(kExperts);
    for (size_t e = 0; e < kExperts; ++e) {
      for (size_t i = 0; i < kHidden; ++i)
        scores[e] += static_cast<double>(x[r * kHidden + i]) * router[e * kHidden + i];
    }
    std::vector<size_t> order(kExperts);
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] > scores[b]; });
    for (size_t k = 0; k < per_token; ++k) {
      const size_t e = order[k];
      const double score = 1 / (1 + std::exp(-scores[e]));
      std::vector<double> both(2 * kWidth);
      for (size_t i = 0; i < kHidden; ++i) {
        for (size_t j = 0; j < 2 * kWidth; ++j) {
          both[j] += score * x[r * kHidden + i] * gate_up[(e * kHidden + i) * 2 * kWidth + j];
        }
      }
      for (size_t j = 0; j < kWidth; ++j) {
        const double active = both[j] / (1 + std::exp(-both[j])) * both[kWidth + j];
        for (size_t i = 0; i < kHidden; ++i) out[r * kHidden + i] += active * down[(e * kWidth + j) * kHidden + i];
      }
    }
  }
  return out;
}

class Routed : public ::testing::TestWithParam<int64_t> {};

TEST_P(Routed, IsTheSumOverTheChosenExperts) {
  for (const size_t rows : {1, 2, 7, 40}) {
    const std::vector<float> x = random_rows(rows), delta(x.size(), 0.5f);
    const std::vector<double> want = plain(x, static_cast<size_t>(GetParam()));
    for (const bool deterministic : {false, true}) {
      const auto got = add_experts(*load_experts(GetParam(), Type::kFloat32, deterministic), x, delta);
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_NEAR(got[i], 0.5 + want[i], 1e-4 * std::max(1.0, std::abs(want[i]))) << rows << " rows, element " << i;
      }
    }
  }
}

TEST_P(Routed, DeterministicRowsDoNotDependOnOthers) {
  for (const Type type : {Type::kFloat32, Type::kBFloat16, Type::kFloat16}) {
    const auto model = load_experts(GetParam(), type, true);
    const std::vector<float> x = random_rows(19), delta(x.size(), 0.25f);
    const auto together = add_experts(*model, x, delta);
    for (size_t r = 0; r < 19; ++r) {
      const auto begin = x.begin() + static_cast<std::ptrdiff_t>(r * kHidden);
      const auto alone = add_experts(*model, {begin, begin + kHidden}, std::vector<float>(kHidden, 0.25f));
      EXPECT_TRUE(std::equal(alone.begin(), alone.end(), together.begin() + static_cast<std::ptrdiff_t>(r * kHidden)))
          << name_of(type) << ", row " << r;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(PerToken, Routed, ::testing::Values(1, 2, 4));

TEST(RoutedScores, WithoutAWinnerStayWithinBounds) {
  const std::vector<float> x(kHidden, 0.0f);  // equal scores; every output is 0
  const auto got = add_experts(*load_experts(2, Type::kFloat32, false), x, std::vector<float>(kHidden, 3.0f));
  EXPECT_EQ(got, std::vector<float>(kHidden, 3.0f));
  // Scores that are no numbers choose somebody, within bounds.
  const std::vector<float> nan(kHidden, NAN);
  for (const float value : add_experts(*load_experts(2, Type::kFloat32, false), nan, nan))
    EXPECT_TRUE(std::isnan(value));
}

TEST(PaddedCounts, AreFewAndLittleLarger) {
  std::vector<int64_t> counts;
  for (int64_t rows = 1; rows <= 512; ++rows) {
    const int64_t padded = Products::padded(rows);
    EXPECT_GE(padded, rows);
    EXPECT_LE(4 * (padded - rows), rows) << rows;
    EXPECT_EQ(Products::padded(padded), padded);
    if (counts.empty() || counts.back() != padded) counts.push_back(padded);
  }
  EXPECT_TRUE(std::is_sorted(counts.begin(), counts.end()));
  EXPECT_LE(counts.size(), 32u);
}

}  // namespace
}  // namespace kvplug::model
