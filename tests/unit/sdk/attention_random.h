// SPDX-License-Identifier: Apache-2.0
// Random attention problems, and how near a result has to be.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "attention_problem.h"

namespace kvplug::test {

inline uint64_t base_seed() {
  static const uint64_t seed = [] {
    const char* text = std::getenv("KVPLUG_TEST_SEED");
    const uint64_t value = text != nullptr ? std::strtoull(text, nullptr, 10) : 20240229;
    std::printf("KVPLUG_TEST_SEED=%llu\n", static_cast<unsigned long long>(value));
    return value;
  }();
  return seed;
}

struct Random {
  std::mt19937_64 engine;
  explicit Random(uint64_t salt) : engine(base_seed() * 1000003 + salt) {}
  int64_t below(int64_t n) { return static_cast<int64_t>(engine() % static_cast<uint64_t>(n)); }
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  bool chance(int percent) { return below(100) < percent; }
  template <class T>
  T pick(std::initializer_list<T> list) {
    return *(list.begin() + below(static_cast<int64_t>(list.size())));
  }
  float normal() { return std::normal_distribution<float>()(engine); }
  void fill(std::vector<float>* to, int64_t n, kvp_dtype type, float size) {
    to->resize(static_cast<size_t>(n));
    for (float& x : *to) x = round_to(type, size * normal());
  }
};

inline void fill_row(Random* random, const Problem& p, Row* row, bool biased) {
  random->fill(&row->q, p.shape.q_heads * row->q_count * p.shape.key_dim, p.shape.dtype, 1.5f);
  random->fill(&row->k, p.shape.kv_heads * row->kv_end * p.shape.key_dim, p.shape.dtype, 1);
  random->fill(&row->v, p.shape.kv_heads * row->kv_end * p.shape.value_dim, p.shape.dtype, 1);
  if (biased) {
    random->fill(&row->bias, p.shape.q_heads * row->q_count * row->kv_end, kF32, 1);
    for (float& x : row->bias) {
      if (random->chance(30)) x = -kInf;
    }
    for (int64_t j = 0; j < row->kv_end && row->q_count > 0; ++j)
      row->bias[static_cast<size_t>(j)] = -kInf;  // the first query sees nothing
  }
}

inline Problem random_problem(Random* random) {
  Problem p;
  const int64_t group = random->pick<int64_t>({1, 1, 2, 3, 4, 8, 20});
  p.shape.kv_heads = random->between(1, group > 4 ? 1 : 3);
  p.shape.q_heads = p.shape.kv_heads * group;
  p.shape.key_dim = random->pick<int64_t>({16, 32, 64, 64, 80, 96, 128, 192, 256, 1, 7, 33, 71});
  p.shape.value_dim = random->chance(60) ? p.shape.key_dim : random->pick<int64_t>({16, 64, 80, 96, 128, 5, 49});
  p.shape.dtype = random->pick({kF32, kB16, kF16});
  p.out_dtype = random->chance(50) ? kF32 : p.shape.dtype;
  p.scale = 1.0f / std::sqrt(static_cast<float>(p.shape.key_dim));
  if (random->chance(30)) p.window = random->pick<int64_t>({1, 5, 64, 100, 300});
  if (random->chance(25)) p.chunk = random->pick<int64_t>({3, 64, 100, 256});
  if (random->chance(25)) p.softcap = random->pick({5.0f, 30.0f});
  p.causal = random->chance(80);
  if (random->chance(25)) random->fill(&p.sinks, p.shape.q_heads, kF32, 2);
  const bool biased = random->chance(25);
  const int64_t batch = random->between(1, 4);
  for (int64_t b = 0; b < batch; ++b) {
    Row row;
    row.q_count = random->pick<int64_t>({0, 1, 1, 1, 2, 4, 5, 17, random->between(1, 130)});
    row.q_position = random->chance(30) ? 0 : random->below(random->pick<int64_t>({70, 700}));
    row.kv_end = row.q_position + row.q_count;
    if (random->chance(15)) row.kv_end = random->below(row.kv_end + 40);
    if (random->chance(25)) row.kv_begin = random->below(row.kv_end + 1);
    fill_row(random, p, &row, biased);
    p.rows.push_back(std::move(row));
  }
  return p;
}

inline std::string describe(const Problem& p) {
  std::string s = "heads " + std::to_string(p.shape.q_heads) + "/" + std::to_string(p.shape.kv_heads) + " dims " +
                  std::to_string(p.shape.key_dim) + "/" + std::to_string(p.shape.value_dim) + " dtype " +
                  std::to_string(p.shape.dtype.code) + ":" + std::to_string(p.shape.dtype.bits) + " window " +
                  std::to_string(p.window) + " chunk " + std::to_string(p.chunk) + " softcap " +
                  std::to_string(p.softcap) + (p.causal ? " causal" : "") + (p.sinks.empty() ? "" : " sinks");
  for (const Row& r : p.rows) {
    s += " [kv " + std::to_string(r.kv_begin) + ".." + std::to_string(r.kv_end) + " q " + std::to_string(r.q_position) +
         "+" + std::to_string(r.q_count) + (r.bias.empty() ? "]" : " bias]");
  }
  return s;
}

// One unit of the output type's last place, besides what float32 sums lose.
inline double tolerance(kvp_dtype type) {
  return type.bits == 32 ? 3e-5 : type.code == KVP_DTYPE_BFLOAT ? 1.0 / 128 : 1.0 / 1024;
}

inline void expect_near(const Result& got, const Result& want, double tol) {
  ASSERT_EQ(got.out.size(), want.out.size());
  ASSERT_EQ(got.lse.size(), want.lse.size());
  for (size_t i = 0; i < got.out.size(); ++i) {
    const double allowed = tol * std::max(0.25, std::fabs(static_cast<double>(want.out[i])));
    ASSERT_LE(std::fabs(static_cast<double>(got.out[i]) - static_cast<double>(want.out[i])), allowed) << "out " << i;
  }
  for (size_t i = 0; i < got.lse.size(); ++i) {
    if (want.lse[i] == -kInf) {
      ASSERT_EQ(got.lse[i], -kInf) << "lse " << i;
    } else {
      ASSERT_LE(std::fabs(got.lse[i] - want.lse[i]), 3e-5f * std::max(1.0f, std::fabs(want.lse[i]))) << "lse " << i;
    }
  }
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}
inline void expect_same(const Result& a, const Result& b) {
  EXPECT_TRUE(same_bits(a.out, b.out));
  EXPECT_TRUE(same_bits(a.lse, b.lse));
}

}  // namespace kvplug::test
