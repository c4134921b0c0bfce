// SPDX-License-Identifier: Apache-2.0
// What a quantized cache has kernels for on a device, beside those of paged caches and of its quantizers (engine.h).
// Each queues on the stream and returns 0 or the device's error number.
#pragma once

#include <kvplug/sdk/device.h>

namespace kvplug::quantized {

struct DeviceKernels {
  int (*fill)(int device, void* stream, void* to, size_t bytes, uint32_t pattern);
  int (*show)(int device, void* stream, const sdk::KvBlock* blocks, int64_t first_block, int64_t from, int64_t to,
              bool keys, const kvp_tensor& out);
  int (*convert)(int device, void* stream, const kvp_tensor& from, const kvp_tensor& to, bool turn);
  int (*merge)(int device, void* stream, float* sum, float* sum_lse, const float* part, const float* part_lse,
               int64_t vectors, int64_t dim);
  int (*finish)(int device, void* stream, const sdk::DeviceRow* rows, const float* sum, const float* sum_lse,
                const kvp_tensor& out, const kvp_tensor* lse);
};

const DeviceKernels& cuda_kernels() noexcept;

}  // namespace kvplug::quantized
