// SPDX-License-Identifier: Apache-2.0
// Rules about bits, NaN and refusals that attention over packed K/V keeps wherever it computes.
#pragma once

#include <functional>

#include "packed_random.h"

namespace kvplug::test {

// How many tokens page i of a row takes.
using Cut = std::function<int64_t(int64_t)>;
using Runner = std::function<Answer(const PackedProblem&, const Cut&)>;

inline Cut usual_cut(const PackedProblem& p) {
  return [n = 4 * block_of(p)](int64_t) { return n; };
}

// Neither how tokens are cut into pages, nor the rows beside a row, nor which of `runs` computes changes a bit.
inline void expect_same_bits(uint64_t seed, const std::vector<Runner>& runs) {
  Random random(seed + 1000);
  const int32_t bits = random.pick({1, 2, 3, 4, 8});
  const int64_t size = random.pick<int64_t>({16, 48, 64}), queries = random.pick<int64_t>({1, 2, 9});
  PackedProblem p = problem({KVP_ROLE_KEY, bits, random.pick({KVP_GROUP_HEAD_DIM, KVP_GROUP_TOKENS}), size, 64, kB16},
                            {KVP_ROLE_VALUE, bits, random.pick({KVP_GROUP_HEAD_DIM, KVP_GROUP_TOKENS}), size, 64, kB16},
                            12, 3, queries);
  if (random.chance(50)) p.window = 700;
  const int64_t block = block_of(p);
  for (int i = 0; i < 3; ++i) add_row(&random, &p, random.below(5), block * (1 + random.below(2000 / block)), 7);
  const Answer base = runs[0](p, usual_cut(p));
  ASSERT_EQ(base.status, KVP_OK);
  for (size_t which = 0; which < runs.size(); ++which) {
    for (int cut = 0; cut < 3; ++cut) {
      const Answer other = runs[which](p, [&](int64_t i) {
        return cut == 0 ? block : cut == 1 ? block * (1 + i % 3) : 4096 * block;
      });
      ASSERT_EQ(other.out, base.out) << "seed " << seed << " run " << which << " cut " << cut;
      ASSERT_EQ(other.lse, base.lse) << "seed " << seed << " run " << which << " cut " << cut;
    }
  }
  PackedProblem alone = p;
  alone.rows.erase(alone.rows.begin(), alone.rows.begin() + 2);
  const Answer single = runs[0](alone, usual_cut(alone));
  ASSERT_TRUE(
      std::equal(single.out.begin(), single.out.end(), base.out.end() - static_cast<std::ptrdiff_t>(single.out.size())))
      << "seed " << seed;
}

// A scale or an offset that is NaN reaches who sees its group and nobody else.
inline void expect_nan_where_seen(int32_t bits, int32_t group_dim, bool keys, bool in_scale, int64_t queries,
                                  const Runner& run) {
  Random random(9);
  PackedProblem p = problem({KVP_ROLE_KEY, bits, group_dim, 16, 32, kF32},
                            {KVP_ROLE_VALUE, bits, group_dim, 16, 32, kF32}, 4, 2, queries);
  add_row(&random, &p, 0, 640, 0);
  PackedTensor& x = keys ? p.rows[0].k : p.rows[0].v;
  (in_scale ? x.scale : x.offset)[x.group_at(1, 100, 3)] = kNan;
  const size_t half = static_cast<size_t>(2 * queries * 32);
  const Answer got = run(p, usual_cut(p));
  EXPECT_TRUE(std::isnan(got.out[half + 3]));
  if (keys) {
    EXPECT_TRUE(std::isnan(got.out.back()));
  }
  for (size_t i = 0; i < half; ++i) ASSERT_FALSE(std::isnan(got.out[i])) << "another K/V head";
  p.window = 300;
  for (const float o : run(p, usual_cut(p)).out) ASSERT_FALSE(std::isnan(o)) << "outside of the window";
}

inline void expect_contradictions_write_nothing(const Runner& run) {
  Random random(3);
  PackedProblem p = problem({KVP_ROLE_KEY, 4, KVP_GROUP_HEAD_DIM, 32, 32, kB16},
                            {KVP_ROLE_VALUE, 4, KVP_GROUP_HEAD_DIM, 32, 32, kB16}, 2, 1, 1);
  add_row(&random, &p, 0, 64, -2);  // a packed token is newer than the query
  const Answer got = run(p, usual_cut(p));
  EXPECT_EQ(got.status, KVP_INVALID_ARGUMENT);
  for (const float x : got.out) ASSERT_EQ(x, 123);
  p.rows[0].q_position = 64;
  EXPECT_EQ(run(p, usual_cut(p)).status, KVP_OK);
  EXPECT_EQ(run(p, [](int64_t) { return 24; }).status, KVP_INVALID_ARGUMENT);  // half a block
}

}  // namespace kvplug::test
