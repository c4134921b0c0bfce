// SPDX-License-Identifier: Apache-2.0
// The thread pool that plugins use at run level: coverage, cuts at multiples of the grain, workers, nesting.
#include "model/exec/parallel.h"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <set>
#include <vector>

namespace kvplug::model {
namespace {

struct Seen {
  std::mutex mutex;
  std::vector<int> times;
  std::set<int32_t> running;
  int64_t n = 0, grain = 0;
};

void visit(void* arg, int64_t begin, int64_t end, int32_t worker) {
  auto& seen = *static_cast<Seen*>(arg);
  const std::lock_guard lock(seen.mutex);
  EXPECT_LT(worker, torch_parallel()->workers(torch_parallel()->ctx));
  EXPECT_EQ(begin % seen.grain, 0);
  EXPECT_TRUE(end == seen.n || end % seen.grain == 0);
  for (int64_t i = begin; i < end; ++i) ++seen.times[static_cast<size_t>(i)];
}

class Threads : public ::testing::TestWithParam<int> {
  void SetUp() override { EXPECT_EQ(use_threads(GetParam()), GetParam()); }
  void TearDown() override { use_threads(1); }
};

TEST_P(Threads, EveryItemOnceInPiecesOfTheGrain) {
  const kvp_host_parallel* pool = torch_parallel();
  for (const int64_t n : {0, 1, 7, 64, 1000}) {
    for (const int64_t grain : {1, 3, 64, 5000}) {
      Seen seen;
      seen.times.resize(static_cast<size_t>(n));
      seen.n = n, seen.grain = grain;
      EXPECT_EQ(pool->parallel_for(pool->ctx, n, grain, visit, &seen), KVP_OK);
      EXPECT_EQ(seen.times, std::vector<int>(static_cast<size_t>(n), 1)) << n << " " << grain;
    }
  }
}

TEST_P(Threads, ANestedCallRunsInline) {
  std::atomic<int> inner{0};
  parallel_for(8, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      int calls = 0;
      parallel_for(100, 10, [&](int64_t from, int64_t to) {
        ++calls;
        inner += static_cast<int>(to - from);
      });
      if (GetParam() > 1) {
        EXPECT_EQ(calls, 1);
      }
    }
  });
  EXPECT_EQ(inner, 800);
}

TEST_P(Threads, AnExceptionReachesTheCaller) {
  EXPECT_THROW(parallel_for(64, 1, [](int64_t, int64_t) { throw std::runtime_error("no"); }), std::runtime_error);
}

INSTANTIATE_TEST_SUITE_P(Counts, Threads, ::testing::Values(1, 2, 4));

TEST(Parallel, WorkersNeverChangeAndBoundTheThreads) {
  const kvp_host_parallel* pool = torch_parallel();
  const int32_t workers = pool->workers(pool->ctx);
  EXPECT_EQ(use_threads(100000), workers);
  EXPECT_EQ(pool->workers(pool->ctx), workers);
  EXPECT_GE(use_threads(0), 1);
  use_threads(1);
}

}  // namespace
}  // namespace kvplug::model
