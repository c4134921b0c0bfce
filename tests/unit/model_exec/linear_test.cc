// SPDX-License-Identifier: Apache-2.0
// All sides of the linear seam against plain sums, for shapes with awkward sizes and packing in several pieces.
#include "model/exec/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "model/exec/kernels.h"
#include "model/exec/packed_model.h"

namespace kvplug::model {
namespace {

struct Problem {
  LinearShape shape;
  std::vector<float> x, weight, bias;  // rounded to the type
};

std::vector<float> rounded(size_t n, Type type, std::mt19937& rng) {
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> x(n);
  for (float& value : x) value = normal(rng);
  std::vector<char> bytes(n * size_of(type));
  kernels(type).from_float(x.data(), bytes.data(), static_cast<int64_t>(n));
  kernels(type).to_float(bytes.data(), x.data(), static_cast<int64_t>(n));
  return x;
}

std::vector<char> stored(const std::vector<float>& x, Type type) {
  std::vector<char> bytes(x.size() * size_of(type));
  kernels(type).from_float(x.data(), bytes.data(), static_cast<int64_t>(x.size()));
  return bytes;
}

Problem make_problem(const LinearShape& shape, int64_t rows) {
  std::mt19937 rng(17);
  return {shape, rounded(static_cast<size_t>(rows * shape.in), shape.type, rng),
          rounded(static_cast<size_t>(shape.out * shape.in), shape.type, rng),
          rounded(static_cast<size_t>(shape.out), shape.type, rng)};
}

Buffer pack(const LinearKind& kind, const Problem& problem) {
  Buffer packed(kind.packed_bytes());
  const auto plain = stored(problem.weight, problem.shape.type);
  for (int64_t first = 0; first < problem.shape.out; first += kind.pack_rows()) {
    kind.pack(offset(plain.data(), first * problem.shape.in, problem.shape.type), first,
              std::min(kind.pack_rows(), problem.shape.out - first), packed.data());
  }
  return packed;
}

std::vector<float> multiply(const LinearKind& kind, const Problem& problem, const Buffer& packed, int64_t rows) {
  const Type type = problem.shape.type;
  Scratchpad scratchpad;
  const auto product = kind.product(rows, scratchpad);
  const auto x = stored(problem.x, type), bias = stored(problem.bias, type);
  std::vector<char> y(static_cast<size_t>(rows * problem.shape.out) * size_of(type));
  product->run(x.data(), packed.data(), problem.shape.bias ? bias.data() : nullptr, y.data());
  std::vector<float> out(static_cast<size_t>(rows * problem.shape.out));
  kernels(type).to_float(y.data(), out.data(), static_cast<int64_t>(out.size()));
  return out;
}

void expect_product(const std::vector<float>& got, const Problem& problem, int64_t rows) {
  const auto [in, out, bias, type] = problem.shape;
  const double unit = type == Type::kFloat32 ? 1e-5 : type == Type::kBFloat16 ? 8e-3 : 2e-3;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t n = 0; n < out; ++n) {
      double want = bias ? problem.bias[static_cast<size_t>(n)] : 0;
      for (int64_t k = 0; k < in; ++k) {
        want += double{problem.x[static_cast<size_t>(r * in + k)]} * problem.weight[static_cast<size_t>(n * in + k)];
      }
      ASSERT_NEAR(got[static_cast<size_t>(r * out + n)], want,
                  unit * std::sqrt(static_cast<double>(in)) + unit * std::abs(want))
          << r << " " << n;
    }
  }
}

using Case = std::tuple<Type, bool>;
class Linears : public ::testing::TestWithParam<Case> {};

TEST_P(Linears, EveryBackendIsThePlainSum) {
  const auto [type, bias] = GetParam();
  for (const LinearShape shape :
       {LinearShape{64, 96, bias, type}, LinearShape{100, 37, bias, type}, LinearShape{48, 3333, bias, type}}) {
    for (const int64_t rows : {1, 3, 40}) {
      const Problem problem = make_problem(shape, rows);
      for (const auto& kind : {make_linear(shape, {}), make_torch_linear(shape), make_widened_linear(shape),
                               make_linear(shape, {.fixed_rows = rows})}) {
        if (!kind) continue;  // there is nothing to widen in float32
        SCOPED_TRACE(std::string(kind->backend()) + " " + kind->implementation(rows) + " rows " + std::to_string(rows));
        EXPECT_NE(kind->implementation(rows).substr(0, 3), "ref");
        expect_product(multiply(*kind, problem, pack(*kind, problem), rows), problem, rows);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, Linears,
                         ::testing::Combine(::testing::Values(Type::kFloat32, Type::kBFloat16, Type::kFloat16),
                                            ::testing::Bool()),
                         [](const auto& one) {
                           return std::string(name_of(std::get<0>(one.param))) +
                                  (std::get<1>(one.param) ? "_bias" : "");
                         });

TEST(LinearSeam, LargeOutputsArePackedPieceByPiece) {
  const auto kind = make_linear({64, 49152, false, Type::kFloat32}, {});
  EXPECT_LT(kind->pack_rows(), 49152);
}

TEST(LinearSeam, AFixedBlockGivesARowTheSameBitsInEveryPlace) {
  for (const Type type : {Type::kFloat32, Type::kBFloat16, Type::kFloat16}) {
    const LinearShape shape{576, 960, false, type};
    const auto kind = make_linear(shape, {.fixed_rows = kFixedRows});
    Problem problem = make_problem(shape, kFixedRows);
    for (int64_t r = 1; r < kFixedRows; ++r) {
      std::copy_n(problem.x.begin(), shape.in, problem.x.begin() + r * shape.in);
    }
    const auto y = multiply(*kind, problem, pack(*kind, problem), kFixedRows);
    for (int64_t r = 1; r < kFixedRows; ++r) {
      EXPECT_TRUE(std::equal(y.begin(), y.begin() + shape.out, y.begin() + r * shape.out)) << name_of(type) << " " << r;
    }
  }
}

}  // namespace
}  // namespace kvplug::model
