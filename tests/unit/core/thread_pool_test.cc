// SPDX-License-Identifier: Apache-2.0
// The contract of kvp.host.parallel/1, on our own pool and through the table that plugins get.
#include "core/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "core/parallel.h"

namespace kvplug {
namespace {

struct Cover {
  explicit Cover(int64_t n, int64_t grain_, int32_t workers_)
      : counts(static_cast<size_t>(n)), inside(static_cast<size_t>(workers_)), grain(grain_), workers(workers_) {}

  std::vector<std::atomic<int>> counts;
  std::vector<std::atomic<int>> inside;
  std::atomic<bool> broken{false};
  int64_t grain;
  int32_t workers;

  static void run(void* self, int64_t begin, int64_t end, int32_t worker) {
    auto& cover = *static_cast<Cover*>(self);
    const auto n = static_cast<int64_t>(cover.counts.size());
    const bool whole = (end - begin) % cover.grain == 0 || end == n;
    if (!whole || worker < 0 || worker >= cover.workers) {
      cover.broken = true;
      return;
    }
    if (cover.inside[static_cast<size_t>(worker)].fetch_add(1) != 0) cover.broken = true;
    for (int64_t i = begin; i < end; ++i) ++cover.counts[static_cast<size_t>(i)];
    cover.inside[static_cast<size_t>(worker)].fetch_sub(1);
  }

  void expect_whole() const {
    EXPECT_FALSE(broken);
    for (const auto& count : counts) EXPECT_EQ(count, 1);
  }
};

TEST(ThreadPool, CoversEverythingOnceInGrains) {
  for (const int32_t workers : {1, 2, 7}) {
    ThreadPool pool(workers);
    EXPECT_EQ(pool.workers(), workers);
    for (const int64_t n : {0, 1, 2, 63, 64, 1000, 4097}) {
      for (const int64_t grain : {1, 3, 64}) {
        Cover cover(n, grain, workers);
        pool.parallel_for(n, grain, Cover::run, &cover);
        cover.expect_whole();
      }
    }
  }
}

TEST(ThreadPool, NestedCallsRunInlineUnderTheSameWorker) {
  ThreadPool pool(3);
  struct Outer {
    ThreadPool& pool;
    std::atomic<int64_t> inner{0};
    std::atomic<bool> moved{false};
  } outer{pool};
  pool.parallel_for(
      20, 1,
      [](void* arg, int64_t begin, int64_t end, int32_t worker) {
        auto& o = *static_cast<Outer*>(arg);
        struct Inner {
          Outer& outer;
          int32_t worker;
          std::thread::id thread;
        } inner{o, worker, std::this_thread::get_id()};
        o.pool.parallel_for((end - begin) * 10, 1,
                            [](void* a, int64_t b, int64_t e, int32_t w) {
                              auto& in = *static_cast<Inner*>(a);
                              if (w != in.worker || std::this_thread::get_id() != in.thread) in.outer.moved = true;
                              in.outer.inner += e - b;
                            },
                            &inner);
      },
      &outer);
  EXPECT_EQ(outer.inner, 200);
  EXPECT_FALSE(outer.moved);
}

TEST(ThreadPool, ServesSeveralThreadsAtOnce) {
  ThreadPool pool(2);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&pool] {
      for (int i = 0; i < 200; ++i) {
        Cover cover(100, 1, 2);
        pool.parallel_for(100, 1, Cover::run, &cover);
        cover.expect_whole();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The table that plugins keep: workers() never changes, also when a larger pool comes later.
TEST(HostParallel, KeepsItsNumberOfWorkers) {
  ThreadPool small(2), large(7);
  set_host_parallel(&*small.table());
  const kvp_host_parallel* table = host_parallel_table();
  const int32_t workers = table->workers(table->ctx);
  for (const ThreadPool* pool : {&small, &large}) {
    set_host_parallel(pool->table());
    EXPECT_EQ(table->workers(table->ctx), workers);
    for (int i = 0; i < 50; ++i) {
      Cover cover(500, 1, workers);
      EXPECT_EQ(table->parallel_for(table->ctx, 500, 1, Cover::run, &cover), 0);
      cover.expect_whole();
    }
  }
  set_host_parallel(nullptr);
  Cover cover(500, 1, workers);
  EXPECT_EQ(table->parallel_for(table->ctx, 500, 1, Cover::run, &cover), 0);
  cover.expect_whole();
}

}  // namespace
}  // namespace kvplug
