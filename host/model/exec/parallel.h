// SPDX-License-Identifier: Apache-2.0
// The one pool of computing threads at run level: LibTorch's (OpenMP), for our loops, oneDNN and the plugins alike.
#pragma once

#include <kvplug/abi.h>

#include <cstdint>

namespace kvplug::model {

// kvp_host_parallel over at::parallel_for; static storage. workers() is fixed at the first call: the CPUs of the
// machine, at least 4, so that a thread count can be tried which the machine lacks.
const kvp_host_parallel* torch_parallel();

// Threads of parallel work started by the calling thread; 0 = physical cores. At most torch_parallel's workers().
// Cheap when nothing changes. Returns the number taken.
int use_threads(int threads);

// Rows of `width` elements that are worth a second thread in the operations between the products.
constexpr int64_t row_grain(int64_t width) {
  constexpr int64_t kElements = 1 << 15;
  return width < kElements ? kElements / width : 1;
}

// fn(begin, end) over 0..n-1, in pieces of at least `grain`; runs in the calling thread when one piece is enough.
template <class F>
void parallel_for(int64_t n, int64_t grain, const F& fn) {
  if (n <= grain) {
    if (n > 0) fn(int64_t{0}, n);
    return;
  }
  const kvp_host_parallel* pool = torch_parallel();
  pool->parallel_for(
      pool->ctx, n, grain,
      [](void* arg, int64_t begin, int64_t end, int32_t) { (*static_cast<const F*>(arg))(begin, end); },
      const_cast<F*>(&fn));
}

}  // namespace kvplug::model
