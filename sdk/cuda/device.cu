// SPDX-License-Identifier: Apache-2.0
// Device on CUDA: from a cache's words to launches. The tests compile this same file as C++ with the emulator.
#include <cmath>

#include "kernels.h"

namespace kvplug::sdk {
namespace cuda {
namespace {

Strides strides_of(const kvp_tensor& t) { return {t.strides[0], t.strides[1], t.strides[2]}; }

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

dim3 grid_of(int64_t x, int64_t y, int64_t z) {
  return dim3(static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z));
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
    AttendParams p = {};
    p.q = call.q->data;
    p.out = call.out->data;
    p.q_stride = strides_of(*call.q);
    p.out_stride = strides_of(*call.out);
    if (call.lse != nullptr) {
      p.lse = static_cast<float*>(call.lse->data);
      p.lse_stride = strides_of(*call.lse);
    }
    if (call.bias != nullptr) {
      p.bias = static_cast<const float*>(call.bias->data);
      p.bias_stride = strides_of(*call.bias);
      p.bias_column = call.bias->strides[3];
    }
    if (call.sinks != nullptr) p.sinks = static_cast<const float*>(call.sinks->data);
    p.rows = rows;
    p.blocks = blocks;
    p.window = call.window;
    p.chunk = call.chunk;
    p.queries = static_cast<int32_t>(s.max_query);
    p.kv_heads = static_cast<int32_t>(s.kv_heads);
    p.group = static_cast<int32_t>(s.q_heads / s.kv_heads);
    p.key_dim = static_cast<int32_t>(s.key_dim);
    p.value_dim = static_cast<int32_t>(s.value_dim);
    p.causal = call.causal ? 1 : 0;
    p.float_out = call.out->dtype_bits == 32 ? 1 : 0;
    p.scale = call.scale;
    p.softcap = call.softcap;
    if (splits(s)) {
      p.partials = static_cast<float*>(scratch);
      const int64_t parts = (longest + kPartTokens - 1) / kPartTokens + 1;  // a window may begin inside a part
      p.parts = static_cast<int32_t>(parts < kMaxParts ? parts : kMaxParts);
    }
    if (s.dtype.bits == 32) return launch_attend<F32>(p, s.batch, stream);
    return s.dtype.code == KVP_DTYPE_BFLOAT ? launch_attend<BF16>(p, s.batch, stream)
                                            : launch_attend<F16>(p, s.batch, stream);
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
    AttendShape one = s;
    one.max_query = 1;
    if (!splits(one)) return 0;
    return static_cast<size_t>(s.batch * s.q_heads * kMaxParts * (s.value_dim + 2)) * sizeof(float);
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

 private:
  static bool splits(const AttendShape& s) { return s.max_query == 1 && s.q_heads / s.kv_heads <= kVectors; }

  template <class T>
  static int launch_attend(const AttendParams& p, int64_t batch, void* stream) {
    const int64_t tiles = (int64_t{p.queries} * p.group + kVectors - 1) / kVectors;
    const size_t shared = static_cast<size_t>(shared_floats(p.key_dim, p.value_dim)) * sizeof(float);
    const int error = launch(attend_kernel<T>, grid_of(p.partials != nullptr ? p.parts : tiles, p.kv_heads, batch),
                             kThreads, shared, stream, p);
    if (error != 0 || p.partials == nullptr) return error;
    return launch(fold_kernel<T>, grid_of(p.group, p.kv_heads, batch), kThreads,
                  static_cast<size_t>(p.value_dim) * sizeof(float), stream, p);
  }
};

}  // namespace
}  // namespace cuda

const Device* cuda_device() noexcept {
  static const cuda::CudaDevice device;
  return &device;
}

}  // namespace kvplug::sdk
