// SPDX-License-Identifier: Apache-2.0
// Blocks of an affine quantizer on a device, of the plugin's method (quant/method-inl.h): a plugin includes this, then
// its method, and hands out affine_device<Method>().
//
// Packing takes two kernels: one thread a group solves it and leaves codes, one a byte, [block][token][dim] in the
// workspace, behind the panels; then one thread a word gathers them into tiles. Unpacking is one thread a value.
#pragma once

#define KVP_DEVICE_LANES
#include <kvplug/sdk/affine_device.h>

#include "packed_codes.h"
#include "quant/method-inl.h"

namespace kvplug::sdk::cuda {

struct BlockParams {
  const void* plain;  // what is packed or unpacked into
  uint8_t* data;
  void* scale;
  void* zero;
  float* panels;
  uint8_t* codes;
  int64_t plain_stride[3], data_stride[3], scale_stride[3], zero_stride[3];  // batch, head, token or block; elements
  int64_t token_block, dim, groups, tile_bytes, high_plane, panel_floats;
  int32_t bits, role, along_tokens, group_size, kv_heads, blocks;
  kvp_dtype plain_dtype;
};

struct BlockAt {
  int64_t b, head, block;
  KVP_DEVICE_CODE int64_t in(const int64_t* stride) const {
    return b * stride[0] + head * stride[1] + block * stride[2];
  }
};
KVP_DEVICE_CODE BlockAt block_at(const BlockParams& p, int64_t i) {
  return {i / (int64_t{p.kv_heads} * p.blocks), i / p.blocks % p.kv_heads, i % p.blocks};
}

template <class T>
struct ElementOf {
  using type = T;
};
template <>
struct ElementOf<float> {
  using type = F32;
};

// grid: (blocks of all heads and rows, groups of a block / kPanelPitch).
template <class Method, class T>
KVP_KERNEL void solve_kernel(BlockParams p) {
  using Element = typename ElementOf<T>::type;
  using Bits = typename Element::Bits;
  const int64_t unit = blockIdx.x;
  const BlockAt at = block_at(p, unit);
  const int64_t group = static_cast<int64_t>(blockIdx.y) * kPanelPitch + threadIdx.x;
  if (group >= p.groups) return;
  // A group is a channel of group_size tokens, or channels of a token.
  const int64_t size = p.group_size;
  const int64_t t = p.along_tokens ? group / p.dim * size : group % kTile;
  const int64_t c = p.along_tokens ? group % p.dim : group / kTile * size;
  const int64_t n = p.along_tokens || p.dim - c > size ? size : p.dim - c;
  const int64_t first[3] = {p.plain_stride[0], p.plain_stride[1], p.plain_stride[2] * p.token_block};
  const Bits* const from = static_cast<const Bits*>(p.plain) + at.in(first) + t * p.plain_stride[2] + c;
  const int64_t step = p.along_tokens ? p.plain_stride[2] : 1;
  Panel panel = {};
  panel.x = p.panels + unit * p.panel_floats + static_cast<int64_t>(blockIdx.y) * kPanelPitch * size + threadIdx.x;
  panel.n = n;
  panel.codes = p.codes + (unit * p.token_block + t) * p.dim + c;
  panel.stride = p.along_tokens ? p.dim : 1;
  panel.lanes = 1;
  for (int64_t i = 0; i < n; ++i) panel.put(i, all(Element::load(from[i * step])));
  Method::template solve<T>(panel, p.bits);
  static_cast<Bits*>(p.scale)[at.in(p.scale_stride) + group] = Element::store(panel.scale.v[0]);
  static_cast<Bits*>(p.zero)[at.in(p.zero_stride) + group] = Element::store(panel.offset.v[0]);
}

// `bits` of the codes from bit `from` on, of the rows that share word `word` of a plane.
KVP_DEVICE_CODE uint32_t word_of(const BlockParams& p, const uint8_t* codes, int word, int bits, int from) {
  const int rows = 1 << log_rows(bits), lane = word % kTile;
  uint32_t out = 0;
  for (int r = 0; r < rows; ++r) {
    const int row = word / kTile * rows + r;
    for (int m = 0; m < 4; ++m) {
      const int t = p.role == KVP_ROLE_KEY ? lane : row % 4 * 4 + m;
      const int d = p.role == KVP_ROLE_KEY ? 4 * row + m : row / 4 * kTile + lane;
      if (d >= p.dim) continue;
      out |= (static_cast<uint32_t>(codes[t * p.dim + d]) >> from & ((1u << bits) - 1)) << (8 * m + r * bits);
    }
  }
  return out;
}

// grid: (blocks of all heads and rows, tiles of a block).
template <class Method>
KVP_KERNEL void tile_kernel(BlockParams p) {
  const int64_t unit = blockIdx.x, tile = blockIdx.y;
  const BlockAt at = block_at(p, unit);
  const uint8_t* const codes = p.codes + (unit * p.token_block + tile * kTile) * p.dim;
  uint32_t* const to = reinterpret_cast<uint32_t*>(p.data + at.in(p.data_stride) + tile * p.tile_bytes);
  const int words = static_cast<int>(p.tile_bytes / 4), high = static_cast<int>(p.high_plane / 4);
  for (int w = static_cast<int>(threadIdx.x); w < words; w += kPanelPitch) {
    to[w] = p.bits != 3 ? word_of(p, codes, w, p.bits, 0)
            : w < high  ? word_of(p, codes, w, 2, 0)
                        : word_of(p, codes, w - high, 1, 2);
  }
}

// grid: (blocks of all heads and rows, tiles of a block).
template <class Method, class T>
KVP_KERNEL void unpack_kernel(BlockParams p) {
  using Element = typename ElementOf<T>::type;
  using Bits = typename Element::Bits;
  const BlockAt at = block_at(p, blockIdx.x);
  const int64_t first = static_cast<int64_t>(blockIdx.y) * kTile;
  const uint8_t* const tile = p.data + at.in(p.data_stride) + static_cast<int64_t>(blockIdx.y) * p.tile_bytes;
  const Bits* const scale = static_cast<const Bits*>(p.scale) + at.in(p.scale_stride);
  const Bits* const zero = static_cast<const Bits*>(p.zero) + at.in(p.zero_stride);
  const int64_t row[3] = {p.plain_stride[0], p.plain_stride[1], p.plain_stride[2] * p.token_block};
  const int64_t to = at.in(row) + first * p.plain_stride[2];
  const int dim = static_cast<int>(p.dim);
  const float largest = Limits<T>::largest;
  for (int i = static_cast<int>(threadIdx.x); i < kTile * dim; i += kPanelPitch) {
    const int t = i / dim, d = i % dim;
    const bool key = p.role == KVP_ROLE_KEY;
    const uint32_t quad = quad_of(p.bits, p.high_plane, tile, key ? d / 4 : d / kTile * 4 + t / 4, key ? t : d % kTile);
    const uint32_t code = quad >> 8 * (key ? d % 4 : t % 4) & 255u;
    const int64_t group = p.along_tokens ? (first + t) / p.group_size * dim + d : d / p.group_size * kTile + t;
    const L y = Method::template value<T>(all(static_cast<float>(code)), all(Element::load(scale[group])),
                                          all(Element::load(zero[group])));
    store_plain(p.plain_dtype, const_cast<void*>(p.plain), to + t * p.plain_stride[2] + d,
                round_to<T>(at_least(at_most(y, all(largest)), all(-largest))).v[0]);
  }
}

inline int64_t panel_floats(const PackedForm& form) {
  const int64_t groups = (form.groups() + kPanelPitch - 1) / kPanelPitch * kPanelPitch;
  return groups * form.group_size;
}

inline BlockParams block_params(const PackedForm& form, const kvp_tensor& plain, const kvp_qpart* parts,
                                void* workspace) {
  BlockParams p = {};
  p.plain = plain.data;
  p.plain_dtype = {plain.dtype_code, plain.dtype_bits, plain.dtype_lanes};
  p.data = static_cast<uint8_t*>(parts[0].t.data);
  p.scale = parts[1].t.data;
  if (form.parts() == 3) p.zero = parts[2].t.data;
  for (int i = 0; i < 3; ++i) {
    p.plain_stride[i] = plain.strides[i];
    p.data_stride[i] = parts[0].t.strides[i];
    p.scale_stride[i] = parts[1].t.strides[i];
    if (form.parts() == 3) p.zero_stride[i] = parts[2].t.strides[i];
  }
  p.token_block = form.token_block();
  p.dim = form.head_dim;
  p.groups = form.groups();
  p.tile_bytes = form.tile_bytes();
  p.high_plane = form.high_plane();
  p.panel_floats = panel_floats(form);
  p.bits = form.bits;
  p.role = form.role;
  p.along_tokens = form.group_dim == KVP_GROUP_TOKENS ? 1 : 0;
  p.group_size = static_cast<int32_t>(form.group_size);
  p.kv_heads = static_cast<int32_t>(plain.shape[1]);
  p.blocks = static_cast<int32_t>(plain.shape[2] / p.token_block);
  p.panels = static_cast<float*>(workspace);
  const int64_t units = plain.shape[0] * plain.shape[1] * p.blocks;
  p.codes = reinterpret_cast<uint8_t*>(p.panels + units * p.panel_floats);
  return p;
}

// body(float()), body(Bf16()) or body(F16()).
template <class Body>
int by_plain(kvp_dtype dtype, const Body& body) {
  if (dtype.bits == 32) return body(float());
  return dtype.code == KVP_DTYPE_BFLOAT ? body(Bf16()) : body(F16());
}

template <class Method>
AffineDevice affine_device() {
  return {[](int device, void* stream, const PackedForm& form, const kvp_tensor& in, const kvp_qpart* parts,
             void* workspace) {
            const Current current(device);
            const BlockParams p = block_params(form, in, parts, workspace);
            const auto units = static_cast<unsigned>(in.shape[0] * in.shape[1] * p.blocks);
            const int error = by_plain(form.scale_dtype, [&](auto type) {
              return launch(solve_kernel<Method, decltype(type)>,
                            dim3(units, static_cast<unsigned>((p.groups + kPanelPitch - 1) / kPanelPitch)), kPanelPitch,
                            0, stream, p);
            });
            if (error != 0) return error;
            return launch(tile_kernel<Method>, dim3(units, static_cast<unsigned>(p.token_block / kTile)), kPanelPitch,
                          0, stream, p);
          },
          [](int device, void* stream, const PackedForm& form, const kvp_qpart* parts, const kvp_tensor& out) {
            const Current current(device);
            const BlockParams p = block_params(form, out, parts, nullptr);
            const auto units = static_cast<unsigned>(out.shape[0] * out.shape[1] * p.blocks);
            return by_plain(form.scale_dtype, [&](auto type) {
              return launch(unpack_kernel<Method, decltype(type)>,
                            dim3(units, static_cast<unsigned>(p.token_block / kTile)), kPanelPitch, 0, stream, p);
            });
          },
          [](const PackedForm& form, int64_t heads_and_blocks) {
            return heads_and_blocks * (panel_floats(form) * 4 + form.token_block() * form.head_dim);
          }};
}

}  // namespace kvplug::sdk::cuda
