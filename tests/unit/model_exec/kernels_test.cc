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

TEST_P(EveryLevel, RmsNormOnceRoundsAtTheEndAlone) {
  for (const Type type : kTypes) {
    const int64_t rows = 3, n = 300;
    const Values x = random_values(900, type, 21), delta = random_values(900, type, 22);
    std::vector<float> weight(300);  // 1 + w in float32, as Gemma has it: no value of a 16-bit type
    for (size_t i = 0; i < weight.size(); ++i) weight[i] = 1.0f + 1e-3f * static_cast<float>(i);
    std::vector<char> y(x.stored.size()), base = y, residual = x.stored, both = y, sum_only = y;
    of(type).rms_norm_once(x.stored.data(), weight.data(), 1e-6f, y.data(), rows, n);
    kernels_of("baseline", type)->rms_norm_once(x.stored.data(), weight.data(), 1e-6f, base.data(), rows, n);
    EXPECT_EQ(y, base);
    const Values out = stored(y, type);
    std::vector<float> want(900);
    for (size_t r = 0; r < 3; ++r) {
      double sum = 0;
      for (size_t i = 0; i < 300; ++i) sum += std::pow(x.floats[r * 300 + i], 2.0);
      const double inverse = 1 / std::sqrt(sum / 300 + 1e-6);
      for (size_t i = 0; i < 300; ++i) {
        want[r * 300 + i] = static_cast<float>(x.floats[r * 300 + i] * inverse * weight[i]);
      }
    }
    // The exact value rounded once: at most one step of float32 apart before it.
    const Values nearest = stored(want, type);
    int other = 0;
    for (size_t i = 0; i < want.size(); ++i) other += out.floats[i] != nearest.floats[i];
    if (type == Type::kFloat32) {
      for (size_t i = 0; i < want.size(); ++i)
        EXPECT_NEAR(out.floats[i], want[i], 1e-6 * std::max(1.0f, std::abs(want[i])));
    } else {
      EXPECT_LE(other, 2) << name_of(type);
    }
    of(type).add_rms_norm_once(residual.data(), delta.stored.data(), weight.data(), 1e-6f, both.data(), rows, n);
    of(type).rms_norm_once(residual.data(), weight.data(), 1e-6f, sum_only.data(), rows, n);
    EXPECT_EQ(both, sum_only);
  }
}

TEST_P(EveryLevel, RopePairsRotatesNeighboursAndRoundsOnce) {
  for (const Type type : kTypes) {
    const int64_t rows = 3, heads = 2, dim = 48, stride = 150, half = dim / 2;
    const Values x = random_values(static_cast<size_t>(rows * stride), type, 23);
    std::vector<float> cos(static_cast<size_t>(rows * half)), sin(cos.size());
    for (size_t i = 0; i < cos.size(); ++i) {
      cos[i] = std::cos(static_cast<float>(i));
      sin[i] = std::sin(static_cast<float>(i));
    }
    std::vector<char> y = x.stored;
    of(type).rope_pairs(y.data(), stride, rows, heads, dim, cos.data(), sin.data(), false, 0);
    std::vector<float> want = x.floats;
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t h = 0; h < heads; ++h) {
        for (int64_t i = 0; i < half; ++i) {
          const auto at = static_cast<size_t>(r * stride + h * dim + 2 * i);
          const float a = x.floats[at], b = x.floats[at + 1], c = cos[static_cast<size_t>(r * half + i)],
                      s = sin[static_cast<size_t>(r * half + i)];
          want[at] = a * c - b * s;
          want[at + 1] = a * s + b * c;
        }
      }
    }
    EXPECT_EQ(y, stored(want, type).stored) << name_of(type);

    // The norm is an RMS norm of each rotated head with weights of 1.
    std::vector<char> normed = x.stored, head(static_cast<size_t>(dim) * size_of(type));
    of(type).rope_pairs(normed.data(), stride, rows, heads, dim, cos.data(), sin.data(), true, 1e-5f);
    const std::vector<float> ones(static_cast<size_t>(dim), 1.0f);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t at = r * stride + h * dim;
        of(type).rms_norm_once(offset(y.data(), at, type), ones.data(), 1e-5f, head.data(), 1, dim);
        EXPECT_EQ(std::memcmp(offset(normed.data(), at, type), head.data(), head.size()), 0) << name_of(type);
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

TEST_P(EveryLevel, GeluMulIsTheTanhForm) {
  for (const Type type : kTypes) {
    const size_t width = 333;
    const Values x = random_values(2 * 2 * width, type, 24, 4.0f);
    std::vector<char> y(2 * width * size_of(type)), base = y;
    of(type).gelu_mul(x.stored.data(), y.data(), 2, 333);
    kernels_of("baseline", type)->gelu_mul(x.stored.data(), base.data(), 2, 333);
    EXPECT_EQ(y, base);
    const Values out = stored(y, type);
    for (size_t r = 0; r < 2; ++r) {
      for (size_t i = 0; i < width; ++i) {
        const double gate = x.floats[r * 2 * width + i], up = x.floats[r * 2 * width + width + i];
        const double curve = 0.5 * gate * (1 + std::tanh(std::sqrt(2 / M_PI) * (gate + 0.044715 * std::pow(gate, 3))));
        EXPECT_NEAR(out.floats[r * width + i], curve * up, 2 * unit(type) * std::max(1e-2, std::abs(curve * up)))
            << gate;
      }
    }
  }
  const std::vector<float> ends = {-1e30f, -200.0f, -0.0f, 200.0f, NAN, 1, 1, 1, 1, 1};
  std::vector<float> y(5);
  of(Type::kFloat32).gelu_mul(ends.data(), y.data(), 1, 5);
  EXPECT_LE(std::abs(y[0]), 1e-7f);
  EXPECT_LE(std::abs(y[1]), 1e-30f);
  EXPECT_EQ(y[2], 0.0f);
  EXPECT_EQ(y[3], 200.0f);
  EXPECT_TRUE(std::isnan(y[4]));
}

TEST_P(EveryLevel, SoftcapRoundsAfterEachStep) {
  for (const Type type : kTypes) {
    Values x = random_values(1000, type, 25, 30.0f);
    std::vector<char> y = x.stored, base = x.stored;
    of(type).softcap(y.data(), 30.0f, 1000);
    kernels_of("baseline", type)->softcap(base.data(), 30.0f, 1000);
    EXPECT_EQ(y, base);
    const Values out = stored(y, type);
    for (size_t i = 0; i < x.floats.size(); ++i) {
      const auto round = [&](double value) {
        return static_cast<double>(stored(std::vector<float>{static_cast<float>(value)}, type).floats[0]);
      };
      const double want = round(round(std::tanh(round(x.floats[i] / 30.0f))) * 30);
      // float32: units in the last place of our tanh. Else a close decision may fall the other way, one step.
      EXPECT_NEAR(out.floats[i], want, unit(type) * std::abs(want)) << x.floats[i];
    }
  }
  const std::vector<float> ends = {-INFINITY, INFINITY, -0.0f, 1e-20f, NAN, 0.6249f * 2, 0.6251f * 2};
  std::vector<float> y = ends;
  of(Type::kFloat32).softcap(y.data(), 2.0f, static_cast<int64_t>(y.size()));
  EXPECT_EQ(y[0], -2.0f);
  EXPECT_EQ(y[1], 2.0f);
  EXPECT_TRUE(y[2] == 0.0f && std::signbit(y[2]));
  EXPECT_EQ(y[3], 1e-20f);
  EXPECT_TRUE(std::isnan(y[4]));
  for (size_t i = 5; i < 7; ++i) EXPECT_NEAR(y[i], 2 * std::tanh(ends[i] / 2), 2.5e-7) << ends[i];
}

TEST_P(EveryLevel, ScaleAndSums) {
  for (const Type type : kTypes) {
    const size_t n = 300;
    const Values x = random_values(n, type, 26), more = random_values(n, type, 27), into = random_values(n, type, 28);
    std::vector<float> scaled(n), sum(n, 0.0f), total(n);
    for (size_t i = 0; i < n; ++i) scaled[i] = x.floats[i] * 0.3f;
    std::vector<char> y = x.stored;
    of(type).scale(y.data(), 0.3f, y.data(), 300);
    EXPECT_EQ(y, stored(scaled, type).stored);

    of(type).accumulate(sum.data(), x.stored.data(), 300);
    of(type).accumulate(sum.data(), more.stored.data(), 300);
    for (size_t i = 0; i < n; ++i) total[i] = x.floats[i] + more.floats[i];
    EXPECT_EQ(sum, total);
    y = into.stored;
    of(type).add_sum(y.data(), sum.data(), 300);
    total = stored(total, type).floats;
    for (size_t i = 0; i < n; ++i) total[i] += into.floats[i];
    EXPECT_EQ(y, stored(total, type).stored);
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, EveryLevel, ::testing::Values("baseline", "avx2", "avx512"),
                         [](const auto& one) { return std::string(one.param); });

}  // namespace
}  // namespace kvplug::model
