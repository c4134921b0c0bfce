// SPDX-License-Identifier: Apache-2.0
// Memory of tests that the device under test can reach: ordinary memory where that is the CPU or the emulator, managed
// memory where tests/cuda is built (KVPLUG_TEST_ON_DEVICE), as not every device reaches what malloc gives.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "guarded_memory.h"

#if defined(KVPLUG_TEST_ON_DEVICE)
#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <new>
#endif

namespace kvplug::test {

#if defined(KVPLUG_TEST_ON_DEVICE)
// Empty, or why nothing can be tested on a device here.
inline std::string missing_device() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return std::string("no CUDA device: ") + cudaGetErrorString(error);
  if (count == 0) return "no CUDA device: the driver reports none";
  int shares = 0;
  cudaDeviceGetAttribute(&shares, cudaDevAttrConcurrentManagedAccess, 0);
  if (shares == 0)
    return "the CUDA device does not share managed memory with the CPU, in which these tests keep tensors";
  return "";
}
inline void finish_device() {
  const cudaError_t error = cudaDeviceSynchronize();
  EXPECT_EQ(error, cudaSuccess) << cudaGetErrorString(error);
}
inline void fetch_device(void* to, const void* from, size_t bytes) {
  EXPECT_EQ(cudaMemcpy(to, from, bytes, cudaMemcpyDefault), cudaSuccess);
}
// Memory of the device alone, every byte 0xff.
inline void* take_device(size_t bytes) {
  void* data = nullptr;
  if (cudaMalloc(&data, bytes) != cudaSuccess || cudaMemset(data, 0xff, bytes) != cudaSuccess) throw std::bad_alloc();
  return data;
}
inline void give_device(void* data, size_t) { cudaFree(data); }
// Host memory that the device copies from and to by itself.
inline void* take_pinned(size_t bytes) {
  void* data = nullptr;
  if (cudaMallocHost(&data, bytes) != cudaSuccess) throw std::bad_alloc();
  return data;
}
inline void give_pinned(void* data) { cudaFreeHost(data); }

// Without a device, as where tests are only about to be skipped, what malloc gives.
template <class T>
struct ReachableAllocator {
  using value_type = T;
  ReachableAllocator() = default;
  template <class Other>
  explicit(false) ReachableAllocator(const ReachableAllocator<Other>&) {}
  static bool there() {
    static const bool is = missing_device().empty();
    return is;
  }
  T* allocate(size_t n) {
    if (!there()) return static_cast<T*>(::operator new(n * sizeof(T)));
    void* data = nullptr;
    if (cudaMallocManaged(&data, n * sizeof(T)) != cudaSuccess) throw std::bad_alloc();
    return static_cast<T*>(data);
  }
  void deallocate(T* data, size_t) {
    if (!there()) {
      ::operator delete(data);
    } else {
      cudaFree(data);  // once the device is done
    }
  }
  template <class Other>
  bool operator==(const ReachableAllocator<Other>&) const {
    return true;
  }
};
template <class T>
using Reachable = std::vector<T, ReachableAllocator<T>>;
#else
inline std::string missing_device() { return ""; }
inline void finish_device() {}
inline void fetch_device(void* to, const void* from, size_t bytes) {
  const GuardedMemory::Open device_side;
  if (bytes > 0) std::memcpy(to, from, bytes);
}
inline void* take_device(size_t bytes) { return GuardedMemory::get().take(bytes); }
inline void give_device(void* data, size_t bytes) { GuardedMemory::get().give(data, bytes); }
inline void* take_pinned(size_t bytes) { return std::aligned_alloc(256, (bytes + 255) / 256 * 256); }
inline void give_pinned(void* data) { std::free(data); }
template <class T>
using Reachable = std::vector<T>;
#endif

}  // namespace kvplug::test
