// SPDX-License-Identifier: Apache-2.0
// attend(): every SIMD level against a reference in double precision, and the rules about bits: what must not change a
// row's result does not change one bit of it.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "attention_random.h"

namespace kvplug::test {
namespace {

using sdk::attend_level;
using sdk::set_attend_level;

std::vector<Result> run_ok(const Problem& p, const Presentation& how = {},
                           const kvp_host_parallel* parallel = nullptr) {
  kvp_status status = -1;
  bool clean = false;
  auto results = run(p, how, parallel, &status, &clean);
  EXPECT_EQ(status, KVP_OK);
  EXPECT_TRUE(clean) << "a padding query was not out 0, lse -inf";
  return results;
}

class Attention : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (!set_attend_level(GetParam())) GTEST_SKIP() << "this CPU lacks " << GetParam();
    ASSERT_STREQ(attend_level(), GetParam());
  }
  void TearDown() override { set_attend_level(nullptr); }
};

TEST_P(Attention, EqualsTheReference) {
  for (uint64_t n = 0; n < 60; ++n) {
    Random random(n);
    const Problem p = random_problem(&random);
    SCOPED_TRACE("case " + std::to_string(n) + ": " + describe(p));
    const auto got = run_ok(p);
    ASSERT_EQ(got.size(), p.rows.size());
    for (size_t b = 0; b < got.size(); ++b) expect_near(got[b], reference(p, p.rows[b]), tolerance(p.out_dtype));
    if (HasFailure()) return;
  }
}

TEST_P(Attention, NothingButTheRowChangesItsBits) {
  for (uint64_t n = 0; n < 25; ++n) {
    Random random(1000 + n);
    const Problem p = random_problem(&random);
    SCOPED_TRACE("case " + std::to_string(n) + ": " + describe(p));
    const auto base = run_ok(p);
    for (const int32_t workers : {1, 2, 7}) {
      Cutter cutter(workers, n);
      Presentation how;
      how.blocks = random.pick({Presentation::kContiguous, Presentation::kTokenMajor, Presentation::kScattered});
      how.right = random.below(40);
      how.spare_blocks = random.chance(50);
      how.seed = n + 17;
      const auto got = run_ok(p, how, &cutter.table);
      for (size_t b = 0; b < base.size(); ++b) expect_same(got[b], base[b]);
    }
    for (size_t b = 0; b < base.size(); ++b) {  // alone
      Problem one = p;
      one.rows = {p.rows[b]};
      expect_same(run_ok(one)[0], base[b]);
    }
    if (HasFailure()) return;
  }
}

TEST_P(Attention, LeftPaddingChangesNoBit) {
  for (uint64_t n = 0; n < 20; ++n) {
    Random random(2000 + n);
    Problem p = random_problem(&random);
    for (Row& r : p.rows) {
      r.kv_end = r.kv_end - r.q_position;
      r.kv_end = std::max<int64_t>(r.kv_end, 0);
      r.kv_begin = 0;
      r.q_position = 0;
      fill_row(&random, p, &r, !r.bias.empty());
    }
    SCOPED_TRACE("case " + std::to_string(n) + ": " + describe(p));
    const auto base = run_ok(p);
    Presentation how;
    how.left = 1 + random.below(70);
    how.right = random.below(3);
    const auto got = run_ok(p, how);
    for (size_t b = 0; b < base.size(); ++b) expect_same(got[b], base[b]);
    if (HasFailure()) return;
  }
}

// The last queries of a long prompt, asked for by themselves, as after a prefix hit.
TEST_P(Attention, AQueryIsItsOwnInPrefill) {
  for (uint64_t n = 0; n < 12; ++n) {
    Random random(3000 + n);
    Problem p = random_problem(&random);
    Row whole;
    whole.q_count = random.between(60, 300);
    whole.kv_end = whole.q_count;
    p.rows = {};
    fill_row(&random, p, &whole, random.chance(20));
    Row tail = whole;
    tail.q_position = random.between(1, whole.q_count - 17);
    tail.q_count = whole.q_count - tail.q_position;
    tail.q.clear();
    tail.bias.clear();
    for (int64_t h = 0; h < p.shape.q_heads; ++h) {
      const auto cut = [&](const std::vector<float>& from, std::vector<float>* to, int64_t width) {
        const auto begin = from.begin() + (h * whole.q_count + tail.q_position) * width;
        if (!from.empty()) to->insert(to->end(), begin, begin + tail.q_count * width);
      };
      cut(whole.q, &tail.q, p.shape.key_dim);
      cut(whole.bias, &tail.bias, whole.kv_end);
    }
    p.rows = {whole};
    SCOPED_TRACE("case " + std::to_string(n) + ": " + describe(p));
    const Result all = run_ok(p)[0];
    p.rows = {tail};
    const Result part = run_ok(p)[0];
    for (int64_t h = 0; h < p.shape.q_heads; ++h) {
      for (int64_t i = 0; i < tail.q_count; ++i) {
        const int64_t a = h * whole.q_count + tail.q_position + i, b = h * tail.q_count + i, dv = p.shape.value_dim;
        ASSERT_EQ(std::memcmp(&all.lse[static_cast<size_t>(a)], &part.lse[static_cast<size_t>(b)], 4), 0);
        ASSERT_EQ(std::memcmp(&all.out[static_cast<size_t>(a * dv)], &part.out[static_cast<size_t>(b * dv)],
                              static_cast<size_t>(dv) * 4),
                  0);
      }
    }
  }
}

// Little scratch means many waves; scratch itself does not know the length.
TEST_P(Attention, WavesChangeNoBit) {
  Random random(4000);
  Problem p;
  p.shape = {0, 6, 2, 0, 64, 64, kB16};
  p.scale = 0.125f;
  for (const int64_t length : {1500, 1, 700}) {
    Row row;
    row.q_position = length - 1, row.kv_end = length, row.q_count = 1;
    fill_row(&random, p, &row, false);
    p.rows.push_back(std::move(row));
  }
  const auto base = run_ok(p);
  for (size_t b = 0; b < base.size(); ++b) expect_near(base[b], reference(p, p.rows[b]), tolerance(kF32));
  kvp_status status = KVP_OK;
  int worked = 0;
  for (size_t bytes = 0; bytes < 60000; bytes = bytes * 5 / 4 + 704) {
    bool clean = false;
    const auto got = run(p, {}, nullptr, &status, &clean, bytes);
    if (status != KVP_OK) {
      ASSERT_EQ(status, KVP_INVALID_ARGUMENT);
      ASSERT_EQ(worked, 0);
      continue;
    }
    ++worked;
    for (size_t b = 0; b < base.size(); ++b) expect_same(got[b], base[b]);
  }
  EXPECT_GT(worked, 3);
}

TEST_P(Attention, SegmentsMergeByLogSumExp) {
  for (uint64_t n = 0; n < 20; ++n) {
    Random random(5000 + n);
    Problem p = random_problem(&random);
    p.out_dtype = kF32;
    p.rows.resize(1);
    Row& row = p.rows[0];
    row.kv_begin = 0;
    SCOPED_TRACE("case " + std::to_string(n) + ": " + describe(p));
    const Result whole = run_ok(p)[0];
    Problem first = p, second = p;
    const int64_t cut = random.below(row.kv_end + 1);
    second.rows[0].kv_begin = cut;
    second.sinks.clear();
    Row& head = first.rows[0];
    head.kv_end = cut;
    const auto keep = [&](std::vector<float>* x, int64_t outer, int64_t width) {
      std::vector<float> kept;
      for (int64_t h = 0; h < outer && !x->empty(); ++h) {
        kept.insert(kept.end(), x->begin() + h * row.kv_end * width, x->begin() + (h * row.kv_end + cut) * width);
      }
      *x = kept;
    };
    keep(&head.k, p.shape.kv_heads, p.shape.key_dim);
    keep(&head.v, p.shape.kv_heads, p.shape.value_dim);
    if (!head.bias.empty()) keep(&head.bias, p.shape.q_heads * row.q_count, 1);
    const Result a = run_ok(first)[0], b = run_ok(second)[0];
    Result merged;
    for (size_t i = 0; i < a.lse.size(); ++i) {
      const double top = std::max(a.lse[i], b.lse[i]);
      const double x = top == -HUGE_VAL ? 0 : std::exp(static_cast<double>(a.lse[i]) - top);
      const double y = top == -HUGE_VAL ? 0 : std::exp(static_cast<double>(b.lse[i]) - top);
      merged.lse.push_back(static_cast<float>(x + y > 0 ? top + std::log(x + y) : -HUGE_VAL));
      for (int64_t d = 0; d < p.shape.value_dim; ++d) {
        const size_t at = i * static_cast<size_t>(p.shape.value_dim) + static_cast<size_t>(d);
        merged.out.push_back(static_cast<float>(
            x + y > 0 ? (x * static_cast<double>(a.out[at]) + y * static_cast<double>(b.out[at])) / (x + y) : 0));
      }
    }
    expect_near(merged, whole, tolerance(kF32));
    if (HasFailure()) return;
  }
}

TEST_P(Attention, LargeScoresStayFinite) {
  for (const int64_t queries : {1, 40}) {
    Random random(6000);
    Problem p;
    p.shape = {0, 4, 2, 0, 64, 64, kF32};
    p.scale = 40.0f;  // scores of thousands: weights are 0 or 1
    Row row;
    row.q_count = queries, row.q_position = 600, row.kv_end = 600 + queries;
    fill_row(&random, p, &row, false);
    p.rows = {row};
    const Result got = run_ok(p)[0];
    for (float x : got.out) ASSERT_TRUE(std::isfinite(x));
    for (float x : got.lse) ASSERT_TRUE(std::isfinite(x));
    expect_near(got, reference(p, row), 2e-3);
  }
}

// A key that is NaN spoils the whole result of who sees it, and nobody else's.
TEST_P(Attention, ANanKeyIsNeverSilent) {
  for (const kvp_dtype type : {kF32, kF16, kB16}) {
    for (const int64_t queries : {1, 40}) {
      Random random(8000);
      Problem p;
      p.shape = {0, 4, 2, 0, 64, 64, type};
      p.scale = 0.1f;
      Row row;
      row.q_count = queries, row.q_position = 600, row.kv_end = 600 + queries;
      fill_row(&random, p, &row, false);
      row.k[static_cast<size_t>((row.kv_end + 450) * 64 + 3)] = kNan;  // of K/V head 1
      p.rows = {row};
      const Result seen = run_ok(p)[0];
      for (size_t i = 0; i < seen.out.size(); ++i) ASSERT_EQ(std::isnan(seen.out[i]), i >= seen.out.size() / 2) << i;
      p.window = 100;
      const Result unseen = run_ok(p)[0];
      for (const float x : unseen.out) ASSERT_FALSE(std::isnan(x));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Levels, Attention, testing::Values("scalar", "avx2", "avx512", "avx512_vnni"),
                         [](const auto& level) { return std::string(level.param); });

TEST(AttentionLevels, Agree) {
  for (uint64_t n = 0; n < 20; ++n) {
    Random random(7000 + n);
    Problem p = random_problem(&random);
    p.out_dtype = kF32;
    ASSERT_TRUE(set_attend_level("scalar"));
    const auto want = run_ok(p);
    for (const char* level : {"avx2", "avx512", "avx512_vnni"}) {
      if (!set_attend_level(level)) continue;
      SCOPED_TRACE(std::string(level) + " case " + std::to_string(n) + ": " + describe(p));
      const auto got = run_ok(p);
      for (size_t b = 0; b < got.size(); ++b) expect_near(got[b], want[b], 1e-4);
    }
    set_attend_level(nullptr);
  }
  EXPECT_FALSE(set_attend_level("mmx"));
}

// Real threads, for the race detector too.
TEST(AttentionThreads, SameBits) {
  Random random(8000);
  Problem p;
  p.shape = {0, 6, 2, 0, 80, 80, kB16};
  p.scale = 0.1f;
  for (const int64_t queries : {1, 300}) {
    Row row;
    row.q_count = queries, row.q_position = 900, row.kv_end = 900 + queries;
    fill_row(&random, p, &row, false);
    p.rows.push_back(std::move(row));
  }
  kvp_host_parallel threads = {};
  threads.struct_size = sizeof threads;
  threads.workers = [](void*) -> int32_t { return 4; };
  threads.parallel_for = [](void*, int64_t n, int64_t, kvp_parallel_fn fn, void* arg) -> int32_t {
    std::vector<std::thread> pool;
    for (int32_t w = 0; w < 4; ++w) {
      pool.emplace_back([=] {
        if (n * w / 4 < n * (w + 1) / 4) fn(arg, n * w / 4, n * (w + 1) / 4, w);
      });
    }
    for (std::thread& t : pool) t.join();
    return KVP_OK;
  };
  const auto base = run_ok(p), got = run_ok(p, {}, &threads);
  for (size_t b = 0; b < base.size(); ++b) expect_same(got[b], base[b]);
}

TEST(AttentionErrors, RefusesAndWritesNothing) {
  float q[8] = {}, out[8] = {7};
  kvp_tensor tq = tensor_of(q, kF32, {1, 2, 1, 4}), tout = tensor_of(out, kF32, {1, 2, 1, 4});
  const sdk::KvBlock block = {q, q, 4, 4, 4, 4};
  const sdk::AttendRow row = {&block, 0, 0, 1, 0, 1, 0};
  sdk::AttendCall call = {};
  call.q = &tq, call.out = &tout, call.rows = &row, call.scale = 1;
  const sdk::AttendShape shape = {1, 2, 1, 1, 4, 4, kF32};
  alignas(64) static unsigned char scratch[8 << 20];
  ASSERT_LE(sdk::attend_scratch_bytes(shape, 1), sizeof scratch);
  const auto status = [&](const sdk::AttendShape& s) { return sdk::attend(s, call, nullptr, scratch, sizeof scratch); };

  sdk::AttendShape bad = shape;
  bad.dtype = {KVP_DTYPE_FLOAT, 64, 1};
  EXPECT_EQ(status(bad), KVP_UNSUPPORTED);
  EXPECT_EQ(sdk::attend_scratch_bytes(bad, 1), 0u);
  bad = shape, bad.kv_heads = 0;
  EXPECT_EQ(status(bad), KVP_INVALID_ARGUMENT);
  bad = shape, bad.key_dim = 5;
  EXPECT_EQ(status(bad), KVP_INVALID_ARGUMENT);
  bad = shape, bad.batch = 0;  // smaller than the call
  EXPECT_EQ(status(bad), KVP_INVALID_ARGUMENT);
  EXPECT_EQ(sdk::attend(shape, call, nullptr, nullptr, sizeof scratch), KVP_INVALID_ARGUMENT);
  EXPECT_EQ(sdk::attend(shape, call, nullptr, scratch, 64), KVP_INVALID_ARGUMENT);
  tout.strides[3] = 2;
  EXPECT_EQ(status(shape), KVP_INVALID_ARGUMENT);
  tout.strides[3] = 1;
  EXPECT_EQ(out[0], 7);
  EXPECT_EQ(status(shape), KVP_OK);
  EXPECT_EQ(out[0], 0);
}

}  // namespace
}  // namespace kvplug::test
