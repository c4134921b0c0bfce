// SPDX-License-Identifier: Apache-2.0
// Memory of a benchmark, in whole pages, and tensors in it.
#pragma once

#include <kvplug/tensor.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace kvplug::bench {

struct Buffer {
  unsigned char* data;
  explicit Buffer(size_t bytes)
      : data(static_cast<unsigned char*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096))) {
    std::memset(data, 0, bytes);
  }
  ~Buffer() { std::free(data); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
};

inline kvp_tensor tensor_of(void* data, kvp_dtype t, std::initializer_list<int64_t> shape) {
  kvp_tensor out = {};
  out.data = data, out.device_type = KVP_DEVICE_CPU;
  out.dtype_code = t.code, out.dtype_bits = t.bits, out.dtype_lanes = t.lanes;
  out.ndim = static_cast<int32_t>(shape.size());
  std::copy(shape.begin(), shape.end(), out.shape);
  int64_t stride = 1;
  for (int i = out.ndim - 1; i >= 0; stride *= out.shape[i--]) out.strides[i] = stride;
  return out;
}

}  // namespace kvplug::bench
