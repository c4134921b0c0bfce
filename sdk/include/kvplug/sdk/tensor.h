// SPDX-License-Identifier: Apache-2.0
// Tensors of the ABI: names and sizes of types, making dense ones, checking what a caller passed.
#pragma once

#include <kvplug/sdk/status.h>

#include <cstddef>
#include <string>

namespace kvplug::sdk {

inline constexpr kvp_dtype kFloat32{KVP_DTYPE_FLOAT, 32, 1};
inline constexpr kvp_dtype kFloat16{KVP_DTYPE_FLOAT, 16, 1};
inline constexpr kvp_dtype kBFloat16{KVP_DTYPE_BFLOAT, 16, 1};

inline bool same_dtype(kvp_dtype a, kvp_dtype b) noexcept {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}
inline kvp_dtype dtype_of(const kvp_tensor& t) noexcept { return {t.dtype_code, t.dtype_bits, t.dtype_lanes}; }
inline int64_t element_bytes(kvp_dtype dtype) noexcept { return int64_t{dtype.bits} * dtype.lanes / 8; }
// The types in which keys and values are kept plain.
inline bool is_plain_float(kvp_dtype dtype) noexcept {
  return same_dtype(dtype, kFloat32) || same_dtype(dtype, kFloat16) || same_dtype(dtype, kBFloat16);
}

inline std::string name_of(kvp_dtype dtype) {
  if (same_dtype(dtype, kFloat32)) return "float32";
  if (same_dtype(dtype, kFloat16)) return "float16";
  if (same_dtype(dtype, kBFloat16)) return "bfloat16";
  return "dtype(code " + std::to_string(dtype.code) + ", bits " + std::to_string(dtype.bits) + ", lanes " +
         std::to_string(dtype.lanes) + ")";
}

inline std::string shape_text(const int64_t* shape, int32_t ndim) {
  std::string out = "[";
  for (int32_t i = 0; i < ndim; ++i) out += (i == 0 ? "" : ", ") + (shape[i] < 0 ? "any" : std::to_string(shape[i]));
  return out + "]";
}

// A dense CPU tensor over `data`.
template <size_t N>
kvp_tensor dense_tensor(void* data, kvp_dtype dtype, const int64_t (&shape)[N]) noexcept {
  static_assert(N <= KVP_MAX_DIMS);
  kvp_tensor t{};
  t.data = data;
  t.device_type = KVP_DEVICE_CPU;
  t.ndim = static_cast<int32_t>(N);
  t.dtype_code = dtype.code;
  t.dtype_bits = dtype.bits;
  t.dtype_lanes = dtype.lanes;
  int64_t stride = 1;
  for (size_t i = N; i-- > 0;) {
    t.shape[i] = shape[i];
    t.strides[i] = stride;
    stride *= shape[i];
  }
  return t;
}

inline std::byte* at(const kvp_tensor& t, int64_t i0, int64_t i1 = 0, int64_t i2 = 0) noexcept {
  const int64_t offset = i0 * t.strides[0] + i1 * t.strides[1] + i2 * t.strides[2];
  return static_cast<std::byte*>(t.data) + offset * element_bytes(dtype_of(t));
}

// Throws INVALID_ARGUMENT, naming the tensor, unless it lies on the device with this type, this shape (-1: any) and
// last stride 1.
template <size_t N>
void check_tensor(const char* name, const kvp_tensor* t, kvp_dtype dtype, const int64_t (&shape)[N],
                  int32_t device = KVP_DEVICE_CPU) {
  const auto n = static_cast<int32_t>(N);
  if (t == nullptr) fail(KVP_INVALID_ARGUMENT, name, " is missing");
  if (t->device_type != device) {
    fail(KVP_INVALID_ARGUMENT, name, " lies on a device of type ", t->device_type, "; expected ",
         device == KVP_DEVICE_CPU ? "the CPU" : "type " + std::to_string(device));
  }
  bool same = t->ndim == n;
  bool zero = false;
  for (int32_t i = 0; same && i < n; ++i) {
    same = shape[i] < 0 ? t->shape[i] >= 0 : t->shape[i] == shape[i];
    zero = zero || t->shape[i] == 0;
  }
  if (!same) {
    const int32_t shown = t->ndim >= 0 && t->ndim <= KVP_MAX_DIMS ? t->ndim : 0;
    fail(KVP_INVALID_ARGUMENT, name, " has shape ", shape_text(t->shape, shown), "; expected ", shape_text(shape, n));
  }
  if (!same_dtype(dtype_of(*t), dtype)) {
    fail(KVP_INVALID_ARGUMENT, name, " is ", name_of(dtype_of(*t)), "; expected ", name_of(dtype));
  }
  if (zero) return;
  if (t->shape[n - 1] > 1 && t->strides[n - 1] != 1) {
    fail(KVP_INVALID_ARGUMENT, name, " has last stride ", t->strides[n - 1], "; expected 1");
  }
  if (t->data == nullptr) fail(KVP_INVALID_ARGUMENT, name, " has no data");
}

// `t` seen as [shape], stride 0 where it is broadcast; axes are matched from the last. Throws INVALID_ARGUMENT.
template <size_t N>
kvp_tensor broadcast(const char* name, const kvp_tensor& t, kvp_dtype dtype, const int64_t (&shape)[N],
                     int32_t device = KVP_DEVICE_CPU) {
  const auto n = static_cast<int32_t>(N);
  bool fits = t.ndim >= 0 && t.ndim <= n;
  kvp_tensor out = t;
  out.ndim = n;
  for (int32_t i = 0; fits && i < n; ++i) {
    const int32_t from = i - (n - t.ndim);
    const int64_t size = from < 0 ? 1 : t.shape[from];
    fits = size == 1 || size == shape[i];
    out.shape[i] = shape[i];
    out.strides[i] = size == 1 ? 0 : t.strides[from];
  }
  if (!fits) {
    const int32_t shown = t.ndim >= 0 && t.ndim <= KVP_MAX_DIMS ? t.ndim : 0;
    fail(KVP_INVALID_ARGUMENT, name, " has shape ", shape_text(t.shape, shown), "; expected one that broadcasts to ",
         shape_text(shape, n));
  }
  if (t.device_type != device || !same_dtype(dtype_of(t), dtype)) {
    fail(KVP_INVALID_ARGUMENT, name, " must be ", name_of(dtype), " on ",
         device == KVP_DEVICE_CPU ? "the CPU" : "a device of type " + std::to_string(device));
  }
  return out;
}

}  // namespace kvplug::sdk
