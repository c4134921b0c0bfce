// SPDX-License-Identifier: Apache-2.0
// Device on CUDA: from a cache's words to launches. The tests compile this same file as C++ with the emulator.
#include <cmath>

#include "attend.h"

namespace kvplug::sdk {
namespace cuda {
namespace {

// One thread a row.
KVP_KERNEL void clock_kernel(DeviceClock clock, int64_t batch, int64_t queries, DeviceRow* rows) {
  const int64_t b = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (b >= batch) return;
  const int64_t pad = clock.row_pad[b], position = clock.row_seen[b] - pad;
  rows[b] = {b * clock.columns, 0, 0, position + queries, position, queries, pad};
}

AppendParams append_params(const kvp_tensor& k, const kvp_tensor& v) {
  AppendParams p = {};
  p.k = k.data;
  p.v = v.data;
  p.k_stride = strides_of(k);
  p.v_stride = strides_of(v);
  p.key_dim = static_cast<int32_t>(k.shape[3]);
  p.value_dim = static_cast<int32_t>(v.shape[3]);
  return p;
}

// body(Bits{}) with the unsigned type as wide as an element.
template <class Body>
int by_width(const kvp_tensor& t, const Body& body) {
  return t.dtype_bits == 32 ? body(uint32_t{}) : body(uint16_t{});
}

class CudaDevice final : public Device {
 public:
  int upload(int device, void* stream, void* to, const void* from, size_t bytes) const override {
    if (bytes == 0) return 0;
    const Current current(device);
    return upload_bytes(stream, to, from, bytes);
  }

  int copy(int device, void* stream, const DeviceCopy& c) const override {
    if (c.bytes == 0 || c.rows == 0) return 0;
    const Current current(device);
    return copy_bytes(stream, c.to, c.from, c.bytes, c.pitch, c.rows);
  }

  int append(int device, void* stream, const DeviceSegment* segments, int64_t n, const kvp_tensor& k,
             const kvp_tensor& v) const override {
    const Current current(device);
    AppendParams p = append_params(k, v);
    for (int64_t first = 0; first < n; first += kSegments) {
      const int64_t count = n - first < kSegments ? n - first : kSegments;
      for (int64_t i = 0; i < count; ++i) p.segments[i] = segments[first + i];
      const int error = by_width(k, [&](auto bits) {
        return launch(append_kernel<decltype(bits)>, grid_of(count, k.shape[1], 1), kThreads, 0, stream, p);
      });
      if (error != 0) return error;
    }
    return 0;
  }

  int view(int device, void* stream, const DeviceRow* rows, const KvBlock* blocks, bool keys, int64_t,
           const kvp_tensor& out) const override {
    const int64_t kv_len = out.shape[2];
    if (out.shape[0] == 0 || kv_len == 0) return 0;
    const Current current(device);
    return by_width(out, [&](auto bits) {
      using Bits = decltype(bits);
      return launch(view_kernel<Bits>, grid_of((kv_len + kTokens - 1) / kTokens, out.shape[1], out.shape[0]), kThreads,
                    0, stream, rows, blocks, keys ? 1 : 0, kv_len, static_cast<int>(out.shape[3]),
                    static_cast<Bits*>(out.data));
    });
  }

  int attend(int device, void* stream, const AttendShape& s, const AttendCall& call, const DeviceRow* rows,
             const KvBlock* blocks, int64_t longest, void* scratch) const override {
    if (s.batch == 0 || s.max_query == 0) return 0;
    const Current current(device);
    const AttendParams p = attend_params(s, call, rows, longest, scratch);
    return by_type(s.dtype, [&](auto type) {
      using T = decltype(type);
      return launch_attend<T>(p, PlainKv<T>{blocks}, s.batch, stream);
    });
  }

  int clock_rows(int device, void* stream, const DeviceClock& clock, int64_t batch, int64_t queries,
                 DeviceRow* rows) const override {
    const Current current(device);
    return launch(clock_kernel, grid_of((batch + kThreads - 1) / kThreads, 1, 1), kThreads, 0, stream, clock, batch,
                  queries, rows);
  }

  int clock_append(int device, void* stream, const DeviceRow* rows, const KvBlock* blocks, const kvp_tensor& k,
                   const kvp_tensor& v) const override {
    const Current current(device);
    const AppendParams p = append_params(k, v);
    return by_width(k, [&](auto bits) {
      return launch(clock_append_kernel<decltype(bits)>, grid_of(k.shape[0], k.shape[1], 1), kThreads, 0, stream, rows,
                    blocks, p, k.shape[2]);
    });
  }

  size_t attend_scratch_bytes(const AttendShape& s) const override {
    return attend_partial_bytes(s);
  }

  int make_stream(int device, void** out) const override {
    const Current current(device);
    return stream_create(out);
  }
  void drop_stream(int device, void* stream) const override {
    const Current current(device);
    stream_destroy(stream);
  }
  int make_event(int device, void** out) const override {
    const Current current(device);
    return event_create(out);
  }
  void drop_event(int device, void* event) const override {
    const Current current(device);
    event_destroy(event);
  }
  int record(int device, void* stream, void* event) const override {
    const Current current(device);
    return event_record(stream, event);
  }
  int wait(int device, void* stream, void* event) const override {
    const Current current(device);
    return event_wait(stream, event);
  }
  int move(int device, void* stream, void* to, const void* from, size_t bytes) const override {
    if (bytes == 0) return 0;
    const Current current(device);
    return move_bytes(stream, to, from, bytes);
  }
  int synchronize(int device, void* stream) const override {
    const Current current(device);
    return stream_synchronize(stream);
  }

  const char* error_text(int error) const override { return error_name(error); }
};

}  // namespace
}  // namespace cuda

const Device* cuda_device() noexcept {
  static const cuda::CudaDevice device;
  return &device;
}

}  // namespace kvplug::sdk
