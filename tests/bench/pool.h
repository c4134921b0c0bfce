// SPDX-License-Identifier: Apache-2.0
// A clock, and threads that spin for work, so that waking them is not what is measured.
#pragma once

#include <kvplug/abi.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvplug::bench {

inline double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

class Pool {
 public:
  explicit Pool(int32_t n) : count_(n), table_{sizeof(kvp_host_parallel), this, workers, parallel_for} {
    for (int32_t w = 1; w < n; ++w) threads_.emplace_back([this, w] { serve(w); });
    parallel_for(this, 0, 1, nullptr, nullptr);  // until all of them spin
  }
  ~Pool() {
    stop_ = true;
    ++round_;
    for (std::thread& t : threads_) t.join();
  }
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;
  const kvp_host_parallel* table() const { return &table_; }

 private:
  static int32_t workers(void* self) { return static_cast<Pool*>(self)->count_; }
  static int32_t parallel_for(void* self, int64_t n, int64_t, kvp_parallel_fn fn, void* arg) {
    if (worker_ >= 0) {  // a nested call keeps its thread's number
      fn(arg, 0, n, worker_);
      return KVP_OK;
    }
    Pool& p = *static_cast<Pool*>(self);
    p.n_ = n, p.fn_ = fn, p.arg_ = arg;
    p.left_ = p.count_ - 1;
    ++p.round_;
    p.share(0);
    while (p.left_ != 0) relax();
    return KVP_OK;
  }
  void share(int32_t w) {
    const int64_t begin = n_ * w / count_, end = n_ * (w + 1) / count_;
    worker_ = w;
    if (begin < end) fn_(arg_, begin, end, w);
    worker_ = -1;
  }
  void serve(int32_t w) {
    for (int seen = 0;; ++seen) {
      while (round_ == seen) relax();
      if (stop_) return;
      share(w);
      --left_;
    }
  }

  static inline thread_local int32_t worker_ = -1;  // while it works

  int32_t count_;
  kvp_host_parallel table_;
  std::vector<std::thread> threads_;
  std::atomic<int> round_{0}, left_{0};
  std::atomic<bool> stop_{false};
  int64_t n_ = 0;
  kvp_parallel_fn fn_ = nullptr;
  void* arg_ = nullptr;
};

}  // namespace kvplug::bench
