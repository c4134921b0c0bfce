// SPDX-License-Identifier: Apache-2.0
#include "core/parallel.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "core/thread_pool.h"

namespace kvplug {
namespace {

std::atomic<const kvp_host_parallel*> g_pool{nullptr};
std::atomic<int32_t> g_workers{0};  // 0 until somebody asks

const kvp_host_parallel* own_pool() {
  static ThreadPool& pool = *new ThreadPool(0);  // Never destroyed: a plugin may call until the process ends.
  return pool.table();
}

const kvp_host_parallel* pool() {
  const kvp_host_parallel* given = g_pool.load(std::memory_order_acquire);
  return given != nullptr ? given : own_pool();
}

int32_t fixed_workers() {
  int32_t workers = g_workers.load(std::memory_order_acquire);
  if (workers == 0) {
    const kvp_host_parallel* now = pool();
    const int32_t least = current_host_parallel() == nullptr ? kLeastWorkers : 1;
    const int32_t asked = std::max(least, now->workers(now->ctx));
    if (g_workers.compare_exchange_strong(workers, asked)) workers = asked;
  }
  return workers;
}

// Hands the numbers 0 .. workers-1 to at most that many threads at once; a nested call keeps its thread's number.
class Numbers {
 public:
  explicit Numbers(int32_t workers)
      : workers_(workers), taken_(new std::atomic<bool>[static_cast<size_t>(workers)]()) {}

  void run(kvp_parallel_fn fn, void* arg, int64_t begin, int64_t end) {
    if (t_number >= 0) return fn(arg, begin, end, t_number);
    int32_t number = 0;
    while (taken_[static_cast<size_t>(number)].exchange(true, std::memory_order_acquire)) {
      if (++number == workers_) {
        number = 0;
        std::this_thread::yield();
      }
    }
    t_number = number;
    fn(arg, begin, end, number);
    t_number = -1;
    taken_[static_cast<size_t>(number)].store(false, std::memory_order_release);
  }

 private:
  static thread_local int32_t t_number;
  const int32_t workers_;
  std::unique_ptr<std::atomic<bool>[]> taken_;
};
thread_local int32_t Numbers::t_number = -1;

struct Renumbered {
  kvp_parallel_fn fn;
  void* arg;
  Numbers* numbers;
};

int32_t forward(void*, int64_t n, int64_t grain, kvp_parallel_fn fn, void* arg) {
  const kvp_host_parallel* now = pool();
  const int32_t workers = fixed_workers();
  if (now->workers(now->ctx) <= workers) return now->parallel_for(now->ctx, n, grain, fn, arg);
  static Numbers& numbers = *new Numbers(workers);
  Renumbered job{fn, arg, &numbers};
  return now->parallel_for(
      now->ctx, n, grain,
      [](void* self, int64_t begin, int64_t end, int32_t) {
        auto* renumbered = static_cast<Renumbered*>(self);
        renumbered->numbers->run(renumbered->fn, renumbered->arg, begin, end);
      },
      &job);
}

constexpr kvp_host_parallel kTable = {sizeof(kvp_host_parallel), nullptr, [](void*) { return fixed_workers(); },
                                      forward};

}  // namespace

const kvp_host_parallel* host_parallel_table() { return &kTable; }
void set_host_parallel(const kvp_host_parallel* given) { g_pool.store(given, std::memory_order_release); }
const kvp_host_parallel* current_host_parallel() { return g_pool.load(std::memory_order_acquire); }

}  // namespace kvplug
