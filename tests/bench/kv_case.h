// SPDX-License-Identifier: Apache-2.0
// Ways to hold the K/V of a layer that quant_attention_bench measures beside each other: as they are, and packed. Each
// checks its answer.
#pragma once

#include <kvplug/sdk/attention.h>
#include <kvplug/sdk/packed_attention.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "buffer.h"

namespace kvplug::bench {

inline constexpr kvp_dtype kF32 = {KVP_DTYPE_FLOAT, 32, 1}, kB16 = {KVP_DTYPE_BFLOAT, 16, 1},
                           kU8 = {KVP_DTYPE_UINT, 8, 1};
inline constexpr kvp_dtype kF16 = {KVP_DTYPE_FLOAT, 16, 1};
inline constexpr int64_t kPageTokens = 1024;

inline uint64_t mix(uint64_t i) {
  i = (i + 1) * 0x9e3779b97f4a7c15ull;
  return (i ^ (i >> 29)) * 0xbf58476d1ce4e5b9ull;
}
inline float value_at(uint64_t i) { return static_cast<float>(static_cast<int64_t>(mix(i) >> 57) - 64) / 64; }

struct Shape {
  int64_t q_heads, kv_heads, dim, context, queries;
};

// One way to hold K/V: runs one layer.
struct Case {
  virtual ~Case() = default;
  virtual bool attend(size_t layer, const kvp_host_parallel* parallel) = 0;
  virtual bool wake() { return true; }  // threads of its own, so that waking them is not what is measured
  virtual double worst() const = 0;     // of some outputs, from a plain computation, relative to the values' size
  std::string name;
  Shape s = {};
  size_t bytes = 0, layers = 1;  // of a layer; laid out
  bool own_threads = false;      // ours must not spin meanwhile
  const Case* ours = nullptr;    // of a peer: the case of ours that holds as much
};

// Worst difference over two heads and queries; value(is_v, head, token, d).
template <class Value>
double worst_of(const Shape& s, const float* q, const float* out, Value value) {
  double bad = 0;
  const int64_t group = s.q_heads / s.kv_heads;
  for (int64_t h = 0; h < s.q_heads; h += std::max<int64_t>(1, s.q_heads - 1)) {
    for (int64_t i = 0; i < s.queries; i += std::max<int64_t>(1, s.queries - 1)) {
      const int64_t at = (h * s.queries + i) * s.dim;
      std::vector<double> o(static_cast<size_t>(s.dim));
      double sum = 0;
      for (int64_t t = 0; t < s.context; ++t) {
        double score = 0;
        for (int64_t d = 0; d < s.dim; ++d) score += static_cast<double>(q[at + d]) * value(false, h / group, t, d);
        const double w = std::exp(score / std::sqrt(static_cast<double>(s.dim)));
        sum += w;
        for (int64_t d = 0; d < s.dim; ++d) o[static_cast<size_t>(d)] += w * value(true, h / group, t, d);
      }
      for (int64_t d = 0; d < s.dim; ++d) {
        bad = std::max(bad, std::fabs(static_cast<double>(out[at + d]) - o[static_cast<size_t>(d)] / sum));
      }
    }
  }
  return bad;
}

struct Common : Case {
  Buffer q, out, lse;
  explicit Common(const Shape& shape)
      : q(static_cast<size_t>(shape.q_heads * shape.queries * shape.dim * 4)),
        out(static_cast<size_t>(shape.q_heads * shape.queries * shape.dim * 4)),
        lse(static_cast<size_t>(shape.q_heads * shape.queries * 4)) {
    s = shape;
    for (int64_t i = 0; i < s.q_heads * s.queries * s.dim; ++i) {
      reinterpret_cast<float*>(q.data)[i] = value_at(static_cast<uint64_t>(i * 3 + 7));
    }
  }
  float scale() const { return 1 / std::sqrt(static_cast<float>(s.dim)); }
};

struct Plain : Common {
  kvp_dtype type;
  Buffer kv, q16;
  sdk::AttendShape shape;
  Buffer scratch;
  size_t scratch_bytes;

  static size_t layer_bytes(const Shape& s) { return static_cast<size_t>(2 * s.kv_heads * s.context * s.dim * 2); }
  uint16_t narrow(float x) const {  // exact: multiples of 1/64 below 1
    uint32_t u;
    std::memcpy(&u, &x, 4);
    if (type.code == KVP_DTYPE_BFLOAT) return static_cast<uint16_t>(u >> 16);
    return static_cast<uint16_t>(u == 0 ? 0 : (u >> 16 & 0x8000) | ((u & 0x7fffffff) - 0x38000000) >> 13);
  }
  Plain(const Shape& x, kvp_dtype t, size_t n, int32_t workers)
      : Common(x),
        type(t),
        kv(layer_bytes(x) * n),
        q16(static_cast<size_t>(x.q_heads * x.queries * x.dim * 2)),
        shape{1, x.q_heads, x.kv_heads, x.queries, x.dim, x.dim, t},
        scratch(sdk::attend_scratch_bytes(shape, workers)),
        scratch_bytes(sdk::attend_scratch_bytes(shape, workers)) {
    name = t.code == KVP_DTYPE_BFLOAT ? "bf16" : "f16";
    bytes = layer_bytes(x), layers = n;
    uint16_t* to = reinterpret_cast<uint16_t*>(kv.data);
    for (size_t i = 0; i < bytes / 2; ++i) to[i] = narrow(value_at(i));
    for (size_t l = 1; l < n; ++l) std::memcpy(kv.data + l * bytes, kv.data, bytes);
    for (int64_t i = 0; i < s.q_heads * s.queries * s.dim; ++i) {
      reinterpret_cast<uint16_t*>(q16.data)[i] = narrow(reinterpret_cast<float*>(q.data)[i]);
    }
  }
  bool attend(size_t layer, const kvp_host_parallel* parallel) override {
    const unsigned char* k = kv.data + layer * bytes;
    std::vector<sdk::KvBlock> blocks;
    for (int64_t t = 0; t < s.context; t += sdk::kBlockTokens) {
      const unsigned char* at = k + t * s.dim * 2;
      blocks.push_back({at, at + bytes / 2, s.context * s.dim, s.dim, s.context * s.dim, s.dim});
    }
    sdk::AttendRow row = {};
    row.blocks = blocks.data(), row.kv_end = s.context, row.q_position = s.context, row.q_count = s.queries;
    const kvp_tensor tq = tensor_of(q16.data, type, {1, s.q_heads, s.queries, s.dim});
    kvp_tensor tout = tensor_of(out.data, kF32, {1, s.q_heads, s.queries, s.dim});
    sdk::AttendCall call = {};
    call.q = &tq, call.out = &tout, call.rows = &row, call.scale = scale();
    return sdk::attend(shape, call, parallel, scratch.data, scratch_bytes) == KVP_OK;
  }
  double worst() const override { return worst_in(out); }
  double worst_in(const Buffer& answer) const {
    return worst_of(s, reinterpret_cast<const float*>(q.data), reinterpret_cast<const float*>(answer.data),
                    [&](bool v, int64_t h, int64_t t, int64_t d) {
                      const uint64_t i = static_cast<uint64_t>((h * s.context + t) * s.dim + d);
                      return static_cast<double>(value_at(v ? bytes / 4 + i : i));
                    });
  }
};

struct Packed : Common {
  sdk::PackedForm form[2];
  size_t page_bytes = 0;
  int per;  // parts of a side
  size_t part_at[6];
  kvp_qpart parts[6];
  std::unique_ptr<Buffer> kv, workspace;

  // Affine: any code. e4m3: those of values about evenly spread to both sides of zero, the largest of them 448, cut
  // off.
  uint8_t code(bool v, int64_t h, int64_t t, int64_t d) const {
    const uint64_t r =
        mix(static_cast<uint64_t>(((v * s.kv_heads + h) * kPageTokens + t % kPageTokens) * s.dim + d)) >> 40;
    if (!form[v].float8()) return static_cast<uint8_t>(r & ((1u << form[v].bits) - 1));
    int e;
    const double m = std::frexp(static_cast<double>(r >> 1 & 0xffff) / 0xffff * 448, &e);  // [0.5, 1)
    const int c = e < -5 ? static_cast<int>(std::ldexp(m, e + 9)) : static_cast<int>(m * 16) - 8 + (e + 6) * 8;
    return static_cast<uint8_t>(c | static_cast<int>(r & 1) << 7);
  }
  double value(bool v, int64_t h, int64_t t, int64_t d) const {
    const int c = code(v, h, t, d), e = c >> 3 & 15, m = c & 7;
    if (!form[v].float8()) return c * static_cast<double>(scale_of(v)) - 1;
    return std::ldexp(e == 0 ? m : m + 8, std::max(e, 1) - 10) * (c < 128 ? 1 : -1) * static_cast<double>(scale_of(v));
  }
  float scale_of(bool v) const { return form[v].float8() ? 0x1p-9f : 2.0f / static_cast<float>(1 << form[v].bits); }
  Packed(const Shape& x, int32_t bits, int32_t key_groups, size_t n, int32_t workers,
         int32_t format = KVP_FORMAT_AFFINE)
      : Common(x) {
    name = format == KVP_FORMAT_AFFINE
               ? std::to_string(bits) + "bit" + (key_groups == KVP_GROUP_TOKENS ? "/per-channel keys" : "")
               : "fp8 e4m3";
    layers = n;
    const int64_t size_of_group = format == KVP_FORMAT_AFFINE && x.dim % 64 == 0 ? 64 : x.dim;  // divides the head
    form[0] = {KVP_ROLE_KEY, bits, key_groups, key_groups == KVP_GROUP_TOKENS ? 64 : size_of_group,
               x.dim,        kB16, format};
    form[1] = {KVP_ROLE_VALUE, bits, KVP_GROUP_HEAD_DIM, size_of_group, x.dim, kB16, format};
    per = static_cast<int>(form[0].parts());
    for (int i = 0; i < 2 * per; ++i) {
      const sdk::PackedForm& f = form[i / per];
      const int64_t size = i % per == 0 ? f.data_bytes() : f.groups();
      parts[i] = {i % per == 0   ? KVP_PART_DATA
                  : i % per == 1 ? KVP_PART_SCALE
                                 : KVP_PART_ZERO,
                  0,
                  tensor_of(nullptr, i % per == 0 ? kU8 : kB16, {1, s.kv_heads, kPageTokens / f.token_block(), size})};
      part_at[i] = page_bytes;
      page_bytes += static_cast<size_t>(parts[i].t.strides[0] * parts[i].t.dtype_bits / 8);
    }
    const size_t pages = static_cast<size_t>(s.context / kPageTokens);
    bytes = page_bytes * pages;
    kv = std::make_unique<Buffer>(bytes * layers);
    for (int v = 0; v < 2; ++v) {
      const sdk::PackedForm& f = form[v];
      const int64_t block = f.token_block();
      std::vector<uint8_t> codes(static_cast<size_t>(block * s.dim));
      for (int64_t h = 0; h < s.kv_heads; ++h) {
        for (int64_t b = 0; b < kPageTokens / block; ++b) {
          for (int64_t i = 0; i < block * s.dim; ++i) {
            codes[static_cast<size_t>(i)] = code(v != 0, h, b * block + i / s.dim, i % s.dim);
          }
          const auto at = [&](int i) {
            const kvp_tensor& t = parts[per * v + i].t;
            return kv->data + part_at[per * v + i] + (h * t.strides[1] + b * t.strides[2]) * (t.dtype_bits / 8);
          };
          sdk::pack_block(f, codes.data(), reinterpret_cast<std::byte*>(at(0)));
          for (int64_t g = 0; g < f.groups(); ++g) {  // powers of two: exact
            const float x0 = scale_of(v != 0), x1 = -1;
            std::memcpy(at(1) + 2 * g, reinterpret_cast<const char*>(&x0) + 2, 2);
            if (per == 3) std::memcpy(at(2) + 2 * g, reinterpret_cast<const char*>(&x1) + 2, 2);
          }
        }
      }
    }
    for (size_t p = 1; p < pages * layers; ++p) std::memcpy(kv->data + p * page_bytes, kv->data, page_bytes);
    kvp_qattend_desc d = {};
    d.q_heads = static_cast<int32_t>(s.q_heads), d.kv_heads = static_cast<int32_t>(s.kv_heads);
    d.key_dim = d.value_dim = static_cast<int32_t>(s.dim), d.max_batch = 1, d.max_query = s.queries, d.q_dtype = kF32;
    workspace = std::make_unique<Buffer>(sdk::packed_attend_workspace(form[0], form[1], d, workers));
  }
  bool attend(size_t layer, const kvp_host_parallel* parallel) override {
    std::vector<void*> pointers;
    std::vector<kvp_qpage> pages;
    const int64_t n = s.context / kPageTokens;
    for (int64_t p = 0; p < n; ++p) {
      for (int i = 0; i < 2 * per; ++i) {
        pointers.push_back(kv->data + layer * bytes + static_cast<size_t>(p) * page_bytes + part_at[i]);
      }
    }
    for (int64_t p = 0; p < n; ++p)
      pages.push_back({0, p * kPageTokens, kPageTokens, &pointers[static_cast<size_t>(2 * per * p)]});
    const kvp_tensor tq = tensor_of(q.data, kF32, {1, s.q_heads, s.queries, s.dim});
    kvp_tensor tout = tensor_of(out.data, kF32, {1, s.q_heads, s.queries, s.dim});
    kvp_tensor tlse = tensor_of(lse.data, kF32, {1, s.q_heads, s.queries});
    kvp_qattend_args a = {};
    const int64_t position = s.context;
    a.struct_size = sizeof a, a.q = &tq, a.k_parts = parts, a.v_parts = parts + per;
    a.n_k_parts = a.n_v_parts = static_cast<uint32_t>(per);
    a.pages = pages.data(), a.n_pages = n, a.q_position = &position, a.workspace = workspace->data, a.scale = scale();
    return sdk::packed_attend(form[0], form[1], a, parallel, tout, tlse) == KVP_OK;
  }
  double worst() const override {
    return worst_of(s, reinterpret_cast<const float*>(q.data), reinterpret_cast<const float*>(out.data),
                    [&](bool v, int64_t h, int64_t t, int64_t d) { return value(v, h, t, d); });
  }
};

}  // namespace kvplug::bench
