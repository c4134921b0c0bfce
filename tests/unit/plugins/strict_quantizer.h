// SPDX-License-Identifier: Apache-2.0
// A quantizer of whole tensors (KVP_Q_STRICT) for tests of hf_compat = "strict": it keeps values as they are, or off by
// a number of the test's choice; refuses lengths and fails when it is told to; remembers what it was given last. With
// `appends` it has a SHARED part, which the first call sets and later ones must give back.
#pragma once

#include <gtest/gtest.h>

#include "values.h"

namespace kvplug::test {

struct WholeQuantizer {
  kvp_dtype dtype = kF32;
  uint32_t flags = KVP_Q_STRICT;
  bool appends = false;
  float off = 0;         // added when it unpacks
  int64_t multiple = 1;  // refuses tensors whose tokens of all rows and heads are none of it
  int64_t token_block = 0;
  int64_t pack_fails = 0, unpack_fails = 0;  // the call, from 1, that answers IO
  Values last;                               // what was packed last

  kvp_qhandle handle() { return {sizeof(kvp_qhandle), table(), reinterpret_cast<kvp_quantizer*>(this), "whole"}; }

 private:
  static constexpr uint8_t kMark = 77;
  static WholeQuantizer& of(kvp_quantizer* self) { return *reinterpret_cast<WholeQuantizer*>(self); }
  static int32_t answer(kvp_error* err, int32_t status, const char* words) {
    if (err != nullptr && err->cap > 0) std::strncpy(err->buf, words, err->cap - 1);
    return status;
  }
  static int32_t describe(kvp_quantizer* self, kvp_qspec* out, kvp_error*) {
    kvp_qspec spec{};
    spec.struct_size = sizeof spec;
    spec.format = of(self).appends ? KVP_FORMAT_FP8_E4M3 : KVP_FORMAT_AFFINE;
    spec.group_size = of(self).multiple;
    spec.out_dtype = of(self).dtype;
    spec.flags = of(self).flags;
    *out = spec;
    return KVP_OK;
  }
  static int32_t plan(kvp_quantizer* self, int64_t batch, int64_t heads, int64_t tokens, int64_t dim, kvp_qplan* out,
                      kvp_error* err) {
    const WholeQuantizer& q = of(self);
    if (batch * heads * tokens % q.multiple != 0) return answer(err, KVP_INVALID_ARGUMENT, "the length fits no groups");
    kvp_qplan p{};
    p.struct_size = sizeof p;
    p.token_block = q.token_block;
    p.n_parts = q.appends ? 2 : 1;
    p.workspace_bytes = static_cast<uint64_t>(tokens * 8);
    p.parts[0] = {KVP_PART_DATA, 0,
                  q.appends ? tensor_of(nullptr, q.dtype, {batch, heads, tokens, dim})
                            : tensor_of(nullptr, q.dtype, {batch * heads * tokens * dim})};
    p.parts[1] = {KVP_PART_SCALE, KVP_QPART_SHARED, tensor_of(nullptr, {KVP_DTYPE_UINT, 8, 1}, {1, 1, 1, 1})};
    *out = p;
    return KVP_OK;
  }
  // Element (b, h, t, d) of the DATA part.
  static std::byte* element(const WholeQuantizer& q, const kvp_qpart& data, const kvp_tensor& whole, int64_t b,
                            int64_t h, int64_t t, int64_t d) {
    const int64_t* s = whole.shape;
    const int64_t at = q.appends ? b * data.t.strides[0] + h * data.t.strides[1] + t * data.t.strides[2] + d
                                 : ((b * s[1] + h) * s[2] + t) * s[3] + d;
    return static_cast<std::byte*>(data.t.data) + at * (q.dtype.bits / 8);
  }
  template <class Body>
  static void for_each(const kvp_tensor& whole, Body&& body) {
    const int64_t* s = whole.shape;
    for (int64_t b = 0; b < s[0]; ++b) {
      for (int64_t h = 0; h < s[1]; ++h) {
        for (int64_t t = 0; t < s[2]; ++t) {
          for (int64_t d = 0; d < s[3]; ++d) body(b, h, t, d);
        }
      }
    }
  }
  static int32_t quantize(kvp_quantizer* self, const kvp_call*, const kvp_tensor* in, uint32_t how,
                          const kvp_qpart* parts, uint32_t, void* workspace, kvp_error* err) {
    WholeQuantizer& q = of(self);
    if (q.pack_fails > 0 && --q.pack_fails == 0) return answer(err, KVP_IO, "the test said no");
    EXPECT_NE(workspace, nullptr);
    std::memset(workspace, 0xee, static_cast<size_t>(in->shape[2] * 8));
    const Values from{nullptr, *in};
    q.last = make(q.dtype, {in->shape[0], in->shape[1], in->shape[2], in->shape[3]});
    for_each(*in, [&](int64_t b, int64_t h, int64_t t, int64_t d) {
      const auto bytes = static_cast<size_t>(q.dtype.bits / 8);
      std::memcpy(element(q, parts[0], *in, b, h, t, d), from.at(b, h, t, d), bytes);
      std::memcpy(q.last.at(b, h, t, d), from.at(b, h, t, d), bytes);
    });
    if (!q.appends) return KVP_OK;
    auto* mark = static_cast<uint8_t*>(parts[1].t.data);
    if ((how & KVP_Q_KEEP_SCALE) == 0) *mark = kMark;
    EXPECT_EQ(*mark, kMark) << "the shared part is lost";
    return KVP_OK;
  }
  static int32_t dequantize(kvp_quantizer* self, const kvp_call*, const kvp_qpart* parts, uint32_t, kvp_tensor* out,
                            kvp_error* err) {
    WholeQuantizer& q = of(self);
    if (q.unpack_fails > 0 && --q.unpack_fails == 0) return answer(err, KVP_IO, "the test said no");
    const Values to{nullptr, *out};
    for_each(*out, [&](int64_t b, int64_t h, int64_t t, int64_t d) {
      to.set(load(element(q, parts[0], *out, b, h, t, d), q.dtype) + q.off, b, h, t, d);
    });
    if (!q.appends) return KVP_OK;
    EXPECT_EQ(*static_cast<uint8_t*>(parts[1].t.data), kMark) << "the shared part is lost";
    return KVP_OK;
  }
  static int32_t error_bound(kvp_quantizer* self, double* out, kvp_error*) {
    *out = static_cast<double>(of(self).off);
    return KVP_OK;
  }
  static const kvp_quantizer_iface* table() {
    static const kvp_quantizer_iface it = [] {
      kvp_quantizer_iface t{};
      t.struct_size = sizeof t;
      t.describe = describe;
      t.plan = plan;
      t.quantize = quantize;
      t.dequantize = dequantize;
      t.error_bound = error_bound;
      return t;
    }();
    return &it;
  }
};

}  // namespace kvplug::test
