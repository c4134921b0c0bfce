// SPDX-License-Identifier: Apache-2.0
#include "model/exec/parallel.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <thread>

#include "core/parallel.h"

namespace kvplug::model {
namespace {

int32_t workers(void*) {
  static const int32_t count = std::max(kLeastWorkers, static_cast<int32_t>(std::thread::hardware_concurrency()));
  return count;
}

int32_t run(void*, int64_t n, int64_t grain, kvp_parallel_fn fn, void* arg) {
  if (n <= 0) return KVP_OK;
  grain = std::max<int64_t>(grain, 1);
  if (at::get_num_threads() > workers(nullptr)) at::set_num_threads(workers(nullptr));
  // at::parallel_for cuts anywhere; over whole grains the cuts fall on multiples of `grain`.
  const int64_t grains = (n + grain - 1) / grain;
  at::parallel_for(0, grains, 1, [&](int64_t begin, int64_t end) {
    fn(arg, begin * grain, std::min(end * grain, n), at::get_thread_num());
  });
  return KVP_OK;
}

}  // namespace

const kvp_host_parallel* torch_parallel() {
  static const kvp_host_parallel table{sizeof(kvp_host_parallel), nullptr, workers, run};
  return &table;
}

int use_threads(int threads) {
  if (threads <= 0) threads = at::intraop_default_num_threads();
  threads = std::clamp(threads, 1, static_cast<int>(workers(nullptr)));
  if (at::get_num_threads() != threads) at::set_num_threads(threads);
  return threads;
}

}  // namespace kvplug::model
