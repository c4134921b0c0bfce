// SPDX-License-Identifier: Apache-2.0
// What tests of device code need from where they run: the emulator, whose device memory is host memory, or with
// KVPLUG_TEST_ON_DEVICE a real one, which must reach host memory (pageable access); without either they skip.
#pragma once

#include <gtest/gtest.h>
#include <kvplug/sdk/device.h>

#include <cstddef>

#if defined(KVPLUG_TEST_ON_DEVICE)
#include <cuda_runtime.h>
#else
#include "cuda_emulator.h"
#endif

namespace kvplug::test {

#if defined(KVPLUG_TEST_ON_DEVICE)
inline std::string missing_device() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) return std::string("no CUDA device: ") + cudaGetErrorString(error);
  if (count == 0) return "no CUDA device: the driver reports none";
  int reaches = 0;
  cudaDeviceGetAttribute(&reaches, cudaDevAttrPageableMemoryAccess, 0);
  if (reaches == 0) return "the CUDA device cannot read pageable host memory, in which these tests keep their tensors";
  return "";
}
inline void finish_device() {
  const cudaError_t error = cudaDeviceSynchronize();
  EXPECT_EQ(error, cudaSuccess) << cudaGetErrorString(error);
}
inline void reverse_threads(bool) {}
#else
inline std::string missing_device() { return ""; }
inline void finish_device() {}
inline void reverse_threads(bool reverse) { sdk::cuda::Emulator::get().reverse = reverse; }
#endif

class OnDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = missing_device(); !why.empty()) GTEST_SKIP() << why;
  }
  void TearDown() override { reverse_threads(false); }
};

class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes) : bytes_(bytes) {
#if defined(KVPLUG_TEST_ON_DEVICE)
    EXPECT_EQ(cudaMalloc(&data_, bytes + 1), cudaSuccess);
#else
    data_ = std::malloc(bytes + 1);
#endif
  }
  ~DeviceMemory() {
#if defined(KVPLUG_TEST_ON_DEVICE)
    cudaFree(data_);
#else
    std::free(data_);
#endif
  }
  DeviceMemory(const DeviceMemory&) = delete;
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_;
};

}  // namespace kvplug::test
