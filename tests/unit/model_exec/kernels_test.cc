// SPDX-License-Identifier: Apache-2.0
// The elementwise kernels against plain arithmetic, and every instruction set against the baseline, bit for bit.
#include "model/exec/kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace kvplug::model {
namespace {

constexpr Type kTypes[] = {Type::kFloat32, Type::kBFloat16, Type::kFloat16};

// Values of a type, kept with the floats they stand for.
struct Values {
  std::vector<char> stored;
  std::vector<float> floats;
};

Values stored(const std::vector<float>& x, Type type) {
  Values v{std::vector<char>(x.size() * size_of(type)), std::vector<float>(x.size())};
  const Kernels& k = *kernels_of("baseline", type);
  k.from_float(x.data(), v.stored.data(), static_cast<int64_t>(x.size()));
  k.to_float(v.stored.data(), v.floats.data(), static_cast<int64_t>(x.size()));
  return v;
}
Values stored(std::vector<char> bytes, Type type) {
  Values v{std::move(bytes), {}};
  v.floats.resize(v.stored.size() / size_of(type));
  kernels_of("baseline", type)->to_float(v.stored.data(), v.floats.data(), static_cast<int64_t>(v.floats.size()));
  return v;
}

Values random_values(size_t n, Type type, uint32_t seed, float width = 3.0f) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, width);
  std::vector<float> x(n);
  for (float& value : x) value = normal(rng);
  return stored(x, type);
}

float unit(Type type) { return type == Type::kFloat32 ? 1e-6f : type == Type::kBFloat16 ? 8e-3f : 1e-3f; }

class EveryLevel : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (kernels_of(GetParam(), Type::kFloat32) == nullptr) GTEST_SKIP() << "this CPU lacks " << GetParam();
  }
  static const Kernels& of(Type type) { return *kernels_of(GetParam(), type); }
};

TEST_P(EveryLevel, EveryHalfAndBfloatSurvivesTheRoundTrip) {
  std::vector<uint16_t> all(65536), back(65536);
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  std::vector<float> wide(all.size());
  for (const Type type : {Type::kBFloat16, Type::kFloat16}) {
    of(type).to_float(all.data(), wide.data(), 65536);
    of(type).from_float(wide.data(), back.data(), 65536);
    for (size_t i = 0; i < all.size(); ++i) {
      if (std::isnan(wide[i])) {
        float again = 0;
        of(type).to_float(&back[i], &again, 1);
        EXPECT_TRUE(std::isnan(again)) << i;
      } else {
        EXPECT_EQ(all[i], back[i]) << name_of(type);
      }
    }
  }
  float one = 0;
  const uint16_t half = 0x3555, bfloat = 0x3eab;
  of(Type::kFloat16).to_float(&half, &one, 1);
  EXPECT_EQ(one, 0.333251953125f);
  of(Type::kBFloat16).to_float(&bfloat, &one, 1);
  EXPECT_EQ(one, 0.333984375f);
}

TEST_P(EveryLevel, RoundsToTheNearestEven) {
  // 1 + 1/256 is half way between two bfloat16; 1 + 3/256 too.
  const std::vector<float> x = {1.00390625f, 1.01171875f, 1.004f, -1.00390625f, 3.4e38f};
  const std::vector<float> expected = {1.0f, 1.015625f, 1.0078125f, -1.0f, INFINITY};
  std::vector<uint16_t> bits(x.size());
  std::vector<float> back(x.size());
  of(Type::kBFloat16).from_float(x.data(), bits.data(), 5);
  of(Type::kBFloat16).to_float(bits.data(), back.data(), 5);
  EXPECT_EQ(back, expected);
  const std::vector<float> h = {2049.0f, 2051.0f, 65520.0f, 65519.0f, 2.9802322e-8f, 8.9406967e-8f};
  const std::vector<float> expected_h = {2048.0f, 2052.0f, INFINITY, 65504.0f, 0.0f, 1.1920929e-7f};
  std::vector<uint16_t> half(h.size());
  std::vector<float> back_h(h.size());
  of(Type::kFloat16).from_float(h.data(), half.data(), 6);
  of(Type::kFloat16).to_float(half.data(), back_h.data(), 6);
  EXPECT_EQ(back_h, expected_h);
}

TEST_P(EveryLevel, RmsNormIsTheFormula) {
  for (const Type type : kTypes) {
    for (const int64_t n : {1, 16, 48, 255, 576, 1000}) {
      const Values x = random_values(static_cast<size_t>(3 * n), type, 1),
                   weight = random_values(static_cast<size_t>(n), type, 2);
      std::vector<char> y(x.stored.size()), base(x.stored.size());
      of(type).rms_norm(x.stored.data(), weight.floats.data(), 1e-5f, y.data(), 3, n);
      kernels_of("baseline", type)->rms_norm(x.stored.data(), weight.floats.data(), 1e-5f, base.data(), 3, n);
      EXPECT_EQ(y, base);
      const Values out = stored(y, type);
      for (int64_t r = 0; r < 3; ++r) {
        double sum = 0;
        for (int64_t i = 0; i < n; ++i) sum += std::pow(x.floats[static_cast<size_t>(r * n + i)], 2.0);
        const double inverse = 1 / std::sqrt(sum / static_cast<double>(n) + 1e-5);
        for (int64_t i = 0; i < n; ++i) {
          const auto at = static_cast<size_t>(r * n + i);
          const double want = x.floats[at] * inverse * weight.floats[static_cast<size_t>(i)];
          EXPECT_NEAR(out.floats[at], want, unit(type) * std::max(1.0, std::abs(want))) << name_of(type) << " " << n;
        }
      }
    }
  }
}

TEST_P(EveryLevel, AddRmsNormAddsFirstAndMayWriteInPlace) {
  for (const Type type : kTypes) {
    const int64_t rows = 2, n = 300;
    const Values x = random_values(600, type, 3), delta = random_values(600, type, 4),
                 weight = random_values(300, type, 5);
    std::vector<float> sum(600);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = x.floats[i] + delta.floats[i];
    const Values added = stored(sum, type);
    std::vector<char> want(added.stored.size()), got = x.stored, apart(want.size()), residual = x.stored;
    of(type).rms_norm(added.stored.data(), weight.floats.data(), 1e-6f, want.data(), rows, n);
    of(type).add_rms_norm(residual.data(), delta.stored.data(), weight.floats.data(), 1e-6f, apart.data(), rows, n);
    of(type).add_rms_norm(got.data(), delta.stored.data(), weight.floats.data(), 1e-6f, got.data(), rows, n);
    EXPECT_EQ(residual, added.stored);
    EXPECT_EQ(apart, want);
    EXPECT_EQ(got, want);
  }
}

TEST_P(EveryLevel, RopeRotatesHalvesWithRoundingAfterEachProduct) {
  for (const Type type : kTypes) {
    const int64_t rows = 3, heads = 2, dim = 48, stride = 150;
    const Values x = random_values(static_cast<size_t>(rows * stride), type, 6);
    const Values cos = random_values(static_cast<size_t>(rows * dim / 2), type, 7, 0.5f);
    const Values sin = random_values(static_cast<size_t>(rows * dim / 2), type, 8, 0.5f);
    std::vector<char> y = x.stored;
    of(type).rope(y.data(), stride, rows, heads, dim, cos.floats.data(), sin.floats.data(), nullptr, 0);
    const auto round = [&](float value) { return stored(std::vector<float>{value}, type).floats[0]; };
    std::vector<float> want = x.floats;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t i = 0; i < dim / 2; ++i) {
          const auto a = static_cast<size_t>(r * stride + h * dim + i), b = a + static_cast<size_t>(dim / 2);
          const float c = cos.floats[static_cast<size_t>(r * dim / 2 + i)],
                      s = sin.floats[static_cast<size_t>(r * dim / 2 + i)];
          want[a] = round(round(x.floats[a] * c) - round(x.floats[b] * s));
          want[b] = round(round(x.floats[b] * c) + round(x.floats[a] * s));
        }
      }
    }
    EXPECT_EQ(stored(y, type).floats, want) << name_of(type);
  }
}

TEST_P(EveryLevel, RopeNormalisesEachHeadFirstWhenAsked) {
  const Type type = Type::kBFloat16;
  const int64_t heads = 4, dim = 64;
  const Values x = random_values(heads * dim, type, 9), weight = random_values(dim, type, 10);
  std::vector<char> y = x.stored, want(x.stored.size());
  of(type).rope(y.data(), heads * dim, 1, heads, dim, nullptr, nullptr, weight.floats.data(), 1e-6f);
  of(type).rms_norm(x.stored.data(), weight.floats.data(), 1e-6f, want.data(), heads, dim);
  EXPECT_EQ(y, want);
}

TEST_P(EveryLevel, SiluMulIsTheFormula) {
  for (const Type type : kTypes) {
    const int64_t width = 333;
    Values x = random_values(2 * 2 * width, type, 11, 8.0f);
    std::vector<char> y(2 * width * size_of(type)), base = y;
    of(type).silu_mul(x.stored.data(), y.data(), 2, width);
    kernels_of("baseline", type)->silu_mul(x.stored.data(), base.data(), 2, width);
    EXPECT_EQ(y, base);
    const Values out = stored(y, type);
    for (size_t r = 0; r < 2; ++r) {
      for (size_t i = 0; i < static_cast<size_t>(width); ++i) {
        const double gate = x.floats[r * 2 * width + i], up = x.floats[r * 2 * width + width + i];
        const double want = gate / (1 + std::exp(-gate)) * up;
        EXPECT_NEAR(out.floats[r * width + i], want, 2 * unit(type) * std::max(1e-3, std::abs(want))) << gate;
      }
    }
  }
}

TEST_P(EveryLevel, SiluAtTheEnds) {
  const std::vector<float> gate_up = {-1e30f, -200.0f, -0.0f, 200.0f, 1e30f, NAN, 1, 1, 1, 1, 1, 1};
  std::vector<float> y(6);
  of(Type::kFloat32).silu_mul(gate_up.data(), y.data(), 1, 6);
  EXPECT_LE(std::abs(y[0]), 1e-7f);
  EXPECT_LE(std::abs(y[1]), 1e-30f);
  EXPECT_EQ(y[2], 0.0f);
  EXPECT_EQ(y[3], 200.0f);
  EXPECT_EQ(y[4], 1e30f);
  EXPECT_TRUE(std::isnan(y[5]));
}

INSTANTIATE_TEST_SUITE_P(Levels, EveryLevel, ::testing::Values("baseline", "avx2", "avx512"),
                         [](const auto& one) { return std::string(one.param); });

}  // namespace
}  // namespace kvplug::model
