// SPDX-License-Identifier: Apache-2.0
// A quantizer that loses nothing: DATA holds the values as they are, in blocks of a size of the test's choice, and an
// empty-handed SCALE of one byte a block. With it a quantized cache can be held against exact ones. Two tables: one
// unpacks only, the other has kvp.quant-attend/1 too, written plainly in double precision.
#pragma once

#include <kvplug/abi.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "guarded_memory.h"
#include "values.h"

namespace kvplug::test {

struct ExactQuantizer {
  int64_t token_block = 1;
  kvp_dtype dtype = kF32;
  bool attends = false;
  bool fails = false;  // quantize answers IO

  kvp_qhandle handle() {
    return {sizeof(kvp_qhandle), table(attends), reinterpret_cast<kvp_quantizer*>(this), "exact"};
  }

 private:
  static ExactQuantizer& of(kvp_quantizer* self) { return *reinterpret_cast<ExactQuantizer*>(self); }
  static int32_t describe(kvp_quantizer* self, kvp_qspec* out, kvp_error*) {
    kvp_qspec spec{};
    spec.struct_size = sizeof spec;
    spec.format = KVP_FORMAT_AFFINE;
    spec.group_dim = KVP_GROUP_HEAD_DIM;
    spec.out_dtype = of(self).dtype;
    *out = spec;
    return KVP_OK;
  }
  static int32_t plan(kvp_quantizer* self, int64_t batch, int64_t heads, int64_t tokens, int64_t dim, kvp_qplan* out,
                      kvp_error*) {
    const ExactQuantizer& q = of(self);
    kvp_qplan p{};
    p.struct_size = sizeof p;
    p.token_block = q.token_block;
    p.n_parts = 2;
    const int64_t blocks = tokens / q.token_block;
    p.parts[0] = {KVP_PART_DATA, 0, tensor_of(nullptr, q.dtype, {batch, heads, blocks, q.token_block * dim})};
    p.parts[1] = {KVP_PART_SCALE, 0, tensor_of(nullptr, {KVP_DTYPE_UINT, 8, 1}, {batch, heads, blocks, 1})};
    *out = p;
    return KVP_OK;
  }
  static std::byte* token(const ExactQuantizer& q, const kvp_qpart& data, int64_t head, int64_t t, int64_t dim) {
    const int64_t at = head * data.t.strides[1] + t / q.token_block * data.t.strides[2] + t % q.token_block * dim;
    return static_cast<std::byte*>(data.t.data) + at * q.dtype.bits / 8;
  }
  static int32_t quantize(kvp_quantizer* self, const kvp_call*, const kvp_tensor* in, uint32_t, const kvp_qpart* parts,
                          uint32_t n_parts, void*, kvp_error* err) {
    const GuardedMemory::Open device_side;
    const ExactQuantizer& q = of(self);
    if (q.fails) {
      if (err != nullptr && err->cap > 0) std::strncpy(err->buf, "the test said no", err->cap - 1);
      return KVP_IO;
    }
    const Values from{nullptr, *in};
    const int64_t dim = in->shape[3];
    if (n_parts != 2 || in->shape[0] != 1 || in->shape[2] % q.token_block != 0 ||
        parts[0].t.shape[2] * q.token_block != in->shape[2]) {
      return KVP_INVALID_ARGUMENT;
    }
    for (int64_t h = 0; h < in->shape[1]; ++h) {
      for (int64_t t = 0; t < in->shape[2]; ++t) {
        std::memcpy(token(q, parts[0], h, t, dim), from.at(0, h, t), static_cast<size_t>(dim * q.dtype.bits / 8));
        static_cast<uint8_t*>(parts[1].t.data)[h * parts[1].t.strides[1] + t / q.token_block] = 1;
      }
    }
    return KVP_OK;
  }
  static int32_t dequantize(kvp_quantizer* self, const kvp_call*, const kvp_qpart* parts, uint32_t, kvp_tensor* out,
                            kvp_error*) {
    const GuardedMemory::Open device_side;
    const ExactQuantizer& q = of(self);
    const Values to{nullptr, *out};
    const int64_t dim = out->shape[3];
    for (int64_t h = 0; h < out->shape[1]; ++h) {
      for (int64_t t = 0; t < out->shape[2]; ++t) {
        for (int64_t d = 0; d < dim; ++d) {
          to.set(load(token(q, parts[0], h, t, dim) + d * q.dtype.bits / 8, q.dtype), 0, h, t, d);
        }
      }
    }
    return KVP_OK;
  }
  static int32_t error_bound(kvp_quantizer*, double* out, kvp_error*) {
    *out = 0;
    return KVP_OK;
  }
  static int32_t probe(kvp_quantizer*, const kvp_qhandle*, const kvp_qattend_desc*, uint64_t* bytes, kvp_error*) {
    *bytes = 64;
    return KVP_OK;
  }
  static int32_t attend(kvp_quantizer* self, const kvp_qhandle* v, const kvp_call*, const kvp_qattend_args* args,
                        kvp_tensor* out, kvp_tensor* lse, kvp_error*) {
    const GuardedMemory::Open device_side;
    const ExactQuantizer &kq = of(self), &vq = of(v->self);
    const Values q{nullptr, *args->q}, to{nullptr, *out}, to_lse{nullptr, *lse};
    const int64_t kv_heads = args->k_parts[0].t.shape[1], dim = q.t.shape[3], value_dim = out->shape[3];
    const int64_t group = q.t.shape[1] / kv_heads;
    for (int64_t i = 0; i < args->n_pages; ++i) {
      const kvp_qpage& page = args->pages[i];
      if (page.position + page.count - 1 > args->q_position[page.row]) return KVP_INVALID_ARGUMENT;  // newer than it
    }
    for (int64_t b = 0; b < q.t.shape[0]; ++b) {
      for (int64_t h = 0; h < q.t.shape[1]; ++h) {
        for (int64_t i = 0; i < q.t.shape[2]; ++i) {
          const int64_t at = args->q_position[b] + i;
          std::vector<double> score, sum(static_cast<size_t>(value_dim), 0.0);
          std::vector<const std::byte*> value;
          double most = -std::numeric_limits<double>::infinity(), total = 0;
          for (int64_t n = 0; n < args->n_pages; ++n) {
            const kvp_qpage& page = args->pages[n];
            kvp_qpart k_data = args->k_parts[0], v_data = args->v_parts[0];
            k_data.t.data = page.parts[0];
            v_data.t.data = page.parts[args->n_k_parts];
            for (int64_t t = 0; page.row == b && t < page.count; ++t) {
              const int64_t j = page.position + t;
              if (args->window > 0 && j <= at - args->window) continue;
              if (args->chunk > 0 && (at < 0 || j / args->chunk != at / args->chunk)) continue;
              double s = 0;
              const std::byte* key = token(kq, k_data, h / group, t, dim);
              for (int64_t d = 0; d < dim; ++d) {
                s += static_cast<double>(q.get(b, h, i, d)) *
                     static_cast<double>(load(key + d * kq.dtype.bits / 8, kq.dtype));
              }
              s *= static_cast<double>(args->scale);
              if (args->softcap > 0)
                s = static_cast<double>(args->softcap) * std::tanh(s / static_cast<double>(args->softcap));
              score.push_back(s);
              value.push_back(token(vq, v_data, h / group, t, value_dim));
              most = std::max(most, s);
            }
          }
          for (size_t n = 0; n < score.size(); ++n) {
            const double w = std::exp(score[n] - most);
            total += w;
            for (int64_t d = 0; d < value_dim; ++d) {
              sum[static_cast<size_t>(d)] += w * static_cast<double>(load(value[n] + d * vq.dtype.bits / 8, vq.dtype));
            }
          }
          for (int64_t d = 0; d < value_dim; ++d) {
            to.set(score.empty() ? 0 : static_cast<float>(sum[static_cast<size_t>(d)] / total), b, h, i, d);
          }
          to_lse.set(
              score.empty() ? -std::numeric_limits<float>::infinity() : static_cast<float>(most + std::log(total)), b,
              h, i);
        }
      }
    }
    return KVP_OK;
  }

  static const kvp_quantizer_iface* table(bool attends) {
    static const kvp_qattend_ext ext = {sizeof(kvp_qattend_ext), probe, attend};
    static const auto make = [](bool with) {
      kvp_quantizer_iface t{};
      t.struct_size = sizeof t;
      t.describe = describe;
      t.plan = plan;
      t.quantize = quantize;
      t.dequantize = dequantize;
      t.error_bound = error_bound;
      if (with) {
        t.get_extension = [](const char* id) -> const void* {
          return std::string_view(id) == KVP_EXT_QUANT_ATTEND ? &ext : nullptr;
        };
      }
      return t;
    };
    static const kvp_quantizer_iface plain = make(false), fused = make(true);
    return attends ? &fused : &plain;
  }
};

}  // namespace kvplug::test
