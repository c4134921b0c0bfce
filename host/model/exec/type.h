// SPDX-License-Identifier: Apache-2.0
// The three element types a model computes in, and tensor descriptions over memory of this room.
#pragma once

#include <kvplug/abi.h>

#include <cstdint>
#include <initializer_list>

namespace kvplug::model {

enum class Type { kFloat32, kBFloat16, kFloat16 };

// Throws kUnsupported for any other element type.
Type type_of(kvp_dtype dtype);

inline size_t size_of(Type type) { return type == Type::kFloat32 ? 4 : 2; }
inline kvp_dtype dtype_of(Type type) {
  if (type == Type::kBFloat16) return {KVP_DTYPE_BFLOAT, 16, 1};
  return {KVP_DTYPE_FLOAT, static_cast<uint8_t>(type == Type::kFloat32 ? 32 : 16), 1};
}
inline const char* name_of(Type type) {
  return type == Type::kFloat32 ? "float32" : type == Type::kBFloat16 ? "bfloat16" : "float16";
}

inline char* offset(void* base, int64_t elements, Type type) {
  return static_cast<char*>(base) + elements * static_cast<int64_t>(size_of(type));
}
inline const char* offset(const void* base, int64_t elements, Type type) {
  return static_cast<const char*>(base) + elements * static_cast<int64_t>(size_of(type));
}

// A [batch, heads, tokens, dim] window into rows of `row` elements, one row a token; heads lie side by side in a row.
inline kvp_tensor head_view(void* data, Type type, int64_t batch, int64_t heads, int64_t tokens, int64_t dim,
                            int64_t row) {
  kvp_tensor t{};
  const kvp_dtype dtype = dtype_of(type);
  t.data = data;
  t.device_type = KVP_DEVICE_CPU;
  t.ndim = 4;
  t.dtype_code = dtype.code;
  t.dtype_bits = dtype.bits;
  t.dtype_lanes = dtype.lanes;
  t.shape[0] = batch, t.shape[1] = heads, t.shape[2] = tokens, t.shape[3] = dim;
  t.strides[0] = tokens * row, t.strides[1] = dim, t.strides[2] = row, t.strides[3] = 1;
  return t;
}

}  // namespace kvplug::model
