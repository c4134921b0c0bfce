// SPDX-License-Identifier: Apache-2.0
// A small thread pool behind kvp.host.parallel/1, for embedders that bring no pool of their own.
//
// The caller is worker 0 and works along; threads 1 .. workers-1 start with the first call that has work for them and
// sleep between calls. A call made inside a call runs inline under the worker's own number, and so does a call that
// finds the pool busy with another thread's work (as worker 0): nobody ever waits for the pool itself.
#pragma once

#include <kvplug/host.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace kvplug {

class ThreadPool {
 public:
  explicit ThreadPool(int32_t workers);  // the calling thread included; 0 = as many as the machine runs at once
  ~ThreadPool();                         // no call may be running
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int32_t workers() const { return workers_; }
  void parallel_for(int64_t n, int64_t grain, kvp_parallel_fn fn, void* arg);  // as the contract in kvplug/host.h
  const kvp_host_parallel* table() const { return &table_; }                   // lives as long as the pool

 private:
  void start_threads();
  void run_worker(int32_t worker);
  void take_chunks(int32_t worker);

  const int32_t workers_;
  kvp_host_parallel table_;

  std::mutex one_call_;  // held by the call that uses the threads

  std::mutex mutex_;  // guards the three below, and the job's hand-over
  std::condition_variable wake_, done_;
  uint64_t generation_ = 0;
  int32_t busy_ = 0;
  bool stop_ = false;

  // The job: written by the caller before the generation changes.
  kvp_parallel_fn fn_ = nullptr;
  void* arg_ = nullptr;
  int64_t n_ = 0, chunk_ = 0;
  std::atomic<int64_t> next_{0};

  std::vector<std::thread> threads_;
};

}  // namespace kvplug
