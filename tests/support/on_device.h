// SPDX-License-Identifier: Apache-2.0
// What tests of device code need from where they run: the emulator, or with KVPLUG_TEST_ON_DEVICE a real device; where
// there is none they skip, with the reason.
#pragma once

#include <kvplug/sdk/device.h>

#include <cstddef>

#include "needs_device.h"

#if !defined(KVPLUG_TEST_ON_DEVICE)
#include "cuda_emulator.h"
#endif

namespace kvplug::test {

#if defined(KVPLUG_TEST_ON_DEVICE)
inline void reverse_threads(bool) {}
#else
inline void reverse_threads(bool reverse) { sdk::cuda::Emulator::get().reverse = reverse; }
#endif

class OnDevice : public NeedsDevice {
 protected:
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
