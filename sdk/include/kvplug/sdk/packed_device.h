// SPDX-License-Identifier: Apache-2.0
// What an accelerator does for attention over packed K/V (packed_attention.h). Work is queued on the stream; nothing
// waits, and what comes from host memory has been read when a function returns.
#pragma once

#include <kvplug/sdk/device.h>

namespace kvplug::sdk {

struct PackedCall;

class PackedDevice {
 public:
  virtual ~PackedDevice() = default;
  // Each returns 0 or the device's error number. Addresses are the device's, except where said.
  virtual int upload(int device, void* stream, void* to, const void* from_host, size_t bytes) const = 0;
  // rows: position 0 is the first packed token; list and first_block: first and number of the row's pages.
  virtual int attend(int device, void* stream, const AttendShape& shape, const AttendCall& call,
                     const PackedCall& packed, const DeviceRow* rows, int64_t longest, void* partials) const = 0;
  virtual size_t partial_bytes(const AttendShape& shape) const = 0;
  virtual const char* error_text(int error) const = 0;
};

// NULL in a build without CUDA kernels.
const PackedDevice* cuda_packed_device() noexcept;

}  // namespace kvplug::sdk
