// SPDX-License-Identifier: Apache-2.0
// PackedDevice on CUDA.
#include <kvplug/sdk/packed_device.h>

#include "attend.h"
#include "packed_kv.h"

namespace kvplug::sdk {
namespace cuda {
namespace {

class CudaPacked final : public PackedDevice {
 public:
  int upload(int device, void* stream, void* to, const void* from, size_t bytes) const override {
    const Current current(device);
    return upload_bytes(stream, to, from, bytes);
  }
  int attend(int device, void* stream, const AttendShape& s, const AttendCall& call, const PackedCall& packed,
             const DeviceRow* rows, int64_t longest, void* partials) const override {
    const Current current(device);
    const AttendParams p = attend_params(s, call, rows, longest, partials);
    PackedKv kv = {};
    kv.k = packed.k;
    kv.v = packed.v;
    kv.pages = packed.args->device_pages;
    return by_type(s.dtype,
                   [&](auto type) { return launch_attend<decltype(type)>(p, kv, s.batch, stream); });
  }
  size_t partial_bytes(const AttendShape& s) const override { return attend_partial_bytes(s); }
  const char* error_text(int error) const override { return error_name(error); }
};

}  // namespace
}  // namespace cuda

const PackedDevice* cuda_packed_device() noexcept {
  static const cuda::CudaPacked device;
  return &device;
}

}  // namespace kvplug::sdk
