// SPDX-License-Identifier: Apache-2.0
#include "core/thread_pool.h"

#include <algorithm>

namespace kvplug {
namespace {

// The pool and number under which this thread is running a chunk.
thread_local const ThreadPool* t_pool = nullptr;
thread_local int32_t t_worker = 0;

}  // namespace

ThreadPool::ThreadPool(int32_t workers)
    : workers_(workers > 0 ? workers : std::max(1, static_cast<int32_t>(std::thread::hardware_concurrency()))),
      table_{sizeof(kvp_host_parallel), this, [](void* ctx) { return static_cast<ThreadPool*>(ctx)->workers(); },
             [](void* ctx, int64_t n, int64_t grain, kvp_parallel_fn fn, void* arg) -> int32_t {
               static_cast<ThreadPool*>(ctx)->parallel_for(n, grain, fn, arg);
               return 0;
             }} {}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::start_threads() {
  for (int32_t worker = 1; worker < workers_; ++worker) {
    try {
      threads_.emplace_back([this, worker] { run_worker(worker); });
    } catch (const std::exception&) {
      return;  // The system gives no more threads: the ones there are, and the caller, do the work.
    }
  }
}

void ThreadPool::take_chunks(int32_t worker) {
  const ThreadPool* const outer_pool = t_pool;
  const int32_t outer_worker = t_worker;
  t_pool = this;
  t_worker = worker;
  for (;;) {
    const int64_t begin = next_.fetch_add(chunk_, std::memory_order_relaxed);
    if (begin >= n_) break;
    fn_(arg_, begin, std::min(begin + chunk_, n_), worker);
  }
  t_pool = outer_pool;
  t_worker = outer_worker;
}

void ThreadPool::run_worker(int32_t worker) {
  uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [&] { return stop_ || generation_ != seen; });
    if (stop_) return;
    seen = generation_;
    if (next_.load(std::memory_order_relaxed) >= n_) continue;  // Woke after the work was gone.
    ++busy_;
    lock.unlock();
    take_chunks(worker);
    lock.lock();
    if (--busy_ == 0) done_.notify_one();
  }
}

void ThreadPool::parallel_for(int64_t n, int64_t grain, kvp_parallel_fn fn, void* arg) {
  if (n <= 0) return;
  grain = std::max<int64_t>(grain, 1);
  if (t_pool == this) return fn(arg, 0, n, t_worker);
  std::unique_lock one_call(one_call_, std::defer_lock);
  if (n <= grain || workers_ == 1 || !one_call.try_lock()) return fn(arg, 0, n, 0);

  if (threads_.empty()) start_threads();
  // A few chunks a worker, so that one that wakes late or is interrupted costs little.
  const int64_t grains = (n - 1) / grain + 1, pieces = int64_t{workers_} * 4;
  {
    const std::lock_guard lock(mutex_);
    fn_ = fn;
    arg_ = arg;
    n_ = n;
    chunk_ = ((grains - 1) / pieces + 1) * grain;
    next_.store(0, std::memory_order_relaxed);
    ++generation_;
  }
  wake_.notify_all();
  take_chunks(0);
  // All chunks are taken; wait for those that others still run.
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return busy_ == 0; });
}

}  // namespace kvplug
