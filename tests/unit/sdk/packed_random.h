// SPDX-License-Identifier: Apache-2.0
// Random problems of attention over packed K/V (packed_problem.h), and holding an answer against their bounds.
#pragma once

#include <gtest/gtest.h>

#include <numeric>
#include <string>

#include "attention_random.h"
#include "packed_problem.h"

namespace kvplug::test {

// All codes but NaN, equally often, in every other tile only those above the lowest exponents (kernels take those
// apart); scales so that the largest is 1 to 4.
inline PackedTensor float8_tensor(Random* random, const sdk::PackedForm& form, int64_t kv_heads, int64_t tokens) {
  PackedTensor x = {form, kv_heads, tokens, {}, {}, {}};
  const float largest = form.format == KVP_FORMAT_FP8_E4M3 ? 448 : 57344;
  for (int64_t i = 0; i < kv_heads * tokens; ++i) {
    x.scale.push_back(round_to(form.scale_dtype, (1 + std::min(3.0f, std::fabs(random->normal()))) / largest));
    x.offset.push_back(0);
    for (int64_t d = 0; d < form.head_dim; ++d) {
      uint8_t code;
      do code = static_cast<uint8_t>(random->below(256));
      while (std::isnan(x.number(code)) || (i / 16 % 2 == 1 && (code & 0x7f) < 16));
      x.codes.push_back(code);
    }
  }
  return x;
}

inline sdk::PackedForm float8_form(int32_t role, int32_t format, int64_t dim, kvp_dtype scales = kF32) {
  return {role, 8, KVP_GROUP_HEAD_DIM, dim, dim, scales, format};
}

// Quantizes normal values to the form: the group's range in equal steps.
inline PackedTensor normal_tensor(Random* random, const sdk::PackedForm& form, int64_t kv_heads, int64_t tokens) {
  PackedTensor x = {form, kv_heads, tokens, {}, {}, {}};
  if (form.float8()) return float8_tensor(random, form, kv_heads, tokens);
  const int64_t block = form.token_block(), dim = form.head_dim, top = (1 << form.bits) - 1;
  const size_t groups = static_cast<size_t>(kv_heads * (tokens / block) * form.groups());
  std::vector<float> value(static_cast<size_t>(kv_heads * tokens * dim)), low(groups, kInf), high(groups, -kInf);
  x.codes.resize(value.size());
  const auto each = [&](auto&& f) {
    for (int64_t h = 0; h < kv_heads; ++h) {
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t d = 0; d < dim; ++d) f(x.code_at(h, t, d), x.group_at(h, t, d));
      }
    }
  };
  each([&](size_t i, size_t g) {
    value[i] = random->normal();
    low[g] = std::min(low[g], value[i]);
    high[g] = std::max(high[g], value[i]);
  });
  for (size_t g = 0; g < groups; ++g) {
    if (low[g] > high[g]) low[g] = high[g] = 0;
    x.scale.push_back(round_to(form.scale_dtype, (high[g] - low[g]) / static_cast<float>(top) + 1e-3f));
    x.offset.push_back(round_to(form.scale_dtype, low[g]));
  }
  each([&](size_t i, size_t g) {
    const float code = std::nearbyint((value[i] - x.offset[g]) / x.scale[g]);
    x.codes[i] = static_cast<uint8_t>(std::clamp(code, 0.0f, static_cast<float>(top)));
  });
  return x;
}

inline void add_row(Random* random, PackedProblem* p, int64_t position, int64_t tokens, int64_t behind) {
  PackedRow row;
  row.position = position, row.tokens = tokens, row.q_position = position + tokens + behind;
  row.k = normal_tensor(random, p->k, p->kv_heads, tokens);
  row.v = normal_tensor(random, p->v, p->kv_heads, tokens);
  row.q.resize(static_cast<size_t>(p->q_heads * p->queries * p->k.head_dim));
  for (float& x : row.q) x = round_to(p->q_dtype, random->normal());
  p->rows.push_back(std::move(row));
}

inline int64_t block_of(const PackedProblem& p) { return std::lcm(p.k.token_block(), p.v.token_block()); }

struct Answer {
  kvp_status status = KVP_OK;
  std::vector<float> out, lse;  // [batch][q_heads][queries][value_dim]
};

inline std::string name(const sdk::PackedForm& f) {
  if (f.float8()) return (f.format == KVP_FORMAT_FP8_E4M3 ? "e4m3, dim " : "e5m2, dim ") + std::to_string(f.head_dim);
  return std::to_string(f.bits) + " bits, groups of " + std::to_string(f.group_size) +
         (f.group_dim == KVP_GROUP_TOKENS ? " tokens" : " channels") + ", dim " + std::to_string(f.head_dim);
}

inline void expect_within_bound(const PackedProblem& p, const std::vector<PackedExpected>& want, const Answer& got,
                                const std::string& what) {
  ASSERT_EQ(got.status, KVP_OK) << what;
  const size_t outs = static_cast<size_t>(p.q_heads * p.queries * p.v.head_dim);
  const size_t rows = static_cast<size_t>(p.q_heads * p.queries);
  for (size_t b = 0; b < p.rows.size(); ++b) {
    for (size_t i = 0; i < outs; ++i) {
      ASSERT_LE(std::fabs(static_cast<double>(got.out[b * outs + i]) - want[b].out[i]), want[b].out_bound[i] + 1e-30)
          << what << "; row " << b << " element " << i << " expected " << want[b].out[i] << " got "
          << got.out[b * outs + i];
    }
    for (size_t i = 0; i < rows; ++i) {
      if (want[b].lse[i] == -HUGE_VAL) {
        ASSERT_EQ(got.lse[b * rows + i], -kInf) << what;
      } else {
        ASSERT_LE(std::fabs(static_cast<double>(got.lse[b * rows + i]) - want[b].lse[i]), want[b].lse_bound[i]) << what;
      }
    }
  }
}

inline PackedProblem problem(const sdk::PackedForm& k, const sdk::PackedForm& v, int64_t q_heads, int64_t kv_heads,
                             int64_t queries) {
  PackedProblem p;
  p.k = k, p.v = v;
  p.q_heads = q_heads, p.kv_heads = kv_heads, p.queries = queries;
  p.scale = 1 / std::sqrt(static_cast<float>(k.head_dim));
  return p;
}

// Any forms, masks, shapes and rows.
inline PackedProblem random_packed_problem(uint64_t seed) {
  Random random(seed);
  const auto form = [&](int32_t role) {
    if (random.chance(25)) {
      return float8_form(role, random.pick({KVP_FORMAT_FP8_E4M3, KVP_FORMAT_FP8_E5M2}),
                         random.pick<int64_t>({8, 16, 33, 64, 80, 96, 128}), random.pick({kF32, kB16, kF16}));
    }
    return sdk::PackedForm{role,
                           random.pick({1, 2, 3, 4, 8}),
                           random.pick({KVP_GROUP_HEAD_DIM, KVP_GROUP_TOKENS}),
                           random.pick<int64_t>({16, 32, 48, 64}),
                           random.pick<int64_t>({8, 16, 33, 64, 80, 96, 128}),
                           random.pick({kF32, kB16, kF16})};
  };
  const int64_t kv_heads = random.pick<int64_t>({1, 2, 3}), group = random.pick<int64_t>({1, 2, 3, 4, 5, 7, 8, 17});
  const int64_t queries = group > 4 ? 1 : random.pick<int64_t>({1, 1, 1, 2, 3, 20});
  PackedProblem p = problem(form(KVP_ROLE_KEY), form(KVP_ROLE_VALUE), kv_heads * group, kv_heads, queries);
  p.q_dtype = random.pick({kF32, kB16, kF16});
  if (random.chance(30)) p.window = 1 + random.below(200);
  if (random.chance(30)) p.chunk = 1 + random.below(300);
  if (random.chance(30)) p.softcap = 2;
  const int64_t block = block_of(p);
  for (int64_t count = 1 + random.below(3); count > 0; --count) {
    if (random.chance(15)) {  // no packed tokens, maybe padding queries
      add_row(&random, &p, 0, 0, random.below(5) - 3);
    } else {
      add_row(&random, &p, random.below(40), block * (1 + random.below(600 / block + 1)), random.below(100));
    }
  }
  return p;
}

}  // namespace kvplug::test
