// SPDX-License-Identifier: Apache-2.0
// From the words of an attention call to launches, for whatever source K and V come from (kernels.h).
#pragma once

#include <cmath>

#include "kernels.h"

namespace kvplug::sdk::cuda {

inline Strides strides_of(const kvp_tensor& t) { return {t.strides[0], t.strides[1], t.strides[2]}; }

inline dim3 grid_of(int64_t x, int64_t y, int64_t z) {
  return dim3(static_cast<unsigned>(x), static_cast<unsigned>(y), static_cast<unsigned>(z));
}

// body(F32{}), body(BF16{}) or body(F16{}).
template <class Body>
int by_type(kvp_dtype dtype, const Body& body) {
  if (dtype.bits == 32) return body(F32{});
  return dtype.code == KVP_DTYPE_BFLOAT ? body(BF16{}) : body(F16{});
}

inline bool splits(const AttendShape& s) { return s.max_query == 1 && s.q_heads / s.kv_heads <= kVectors; }

// Bytes of the partial results of calls up to `s`.
inline size_t attend_partial_bytes(const AttendShape& s) {
  AttendShape one = s;
  one.max_query = 1;
  if (!splits(one)) return 0;
  return static_cast<size_t>(s.batch * s.q_heads * kMaxParts * (s.value_dim + 2)) * sizeof(float);
}

// longest: the most tokens that a row of the call shows. partials: attend_partial_bytes().
inline AttendParams attend_params(const AttendShape& s, const AttendCall& call, const DeviceRow* rows, int64_t longest,
                                  void* partials) {
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
    p.partials = static_cast<float*>(partials);
    const int64_t parts = (longest + kPartTokens - 1) / kPartTokens + 1;  // a window may begin inside a part
    p.parts = static_cast<int32_t>(parts < kMaxParts ? parts : kMaxParts);
  }
  return p;
}

template <class T, class Kv>
int launch_attend(const AttendParams& p, const Kv& kv, int64_t batch, void* stream) {
  const int64_t tiles = (int64_t{p.queries} * p.group + kVectors - 1) / kVectors;
  const size_t shared = static_cast<size_t>(shared_floats(p.key_dim, p.value_dim)) * sizeof(float);
  const int error = launch(attend_kernel<T, Kv>, grid_of(p.partials != nullptr ? p.parts : tiles, p.kv_heads, batch),
                           kThreads, shared, stream, p, kv);
  if (error != 0 || p.partials == nullptr) return error;
  return launch(fold_kernel<T>, grid_of(p.group, p.kv_heads, batch), kThreads,
                static_cast<size_t>(p.value_dim) * sizeof(float), stream, p);
}

}  // namespace kvplug::sdk::cuda
