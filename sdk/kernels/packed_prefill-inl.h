// SPDX-License-Identifier: Apache-2.0
// Many queries against packed K/V: a block of tokens is unpacked to float32 once for a tile of q vectors, the rest is
// prefill-inl.h.
#pragma once

#include "packed_decode-inl.h"
#include "prefill-inl.h"

namespace kvplug::sdk {
namespace {

template <class F>
inline void float8_row(const uint8_t* codes, int64_t dim, float scale, float* to) {
  int64_t d = 0;
  for (; d < dim; d += kLanes) store(to + d, mul(float8_values<F>(codes + d), set1(scale)));
  for (; d-- > dim;) to[d] = 0;  // whatever lies behind the codes may read as NaN
}

// Tokens [begin, end) of block `block` of the row as rows of float32, zeros around them. spare: codes of a tile, then
// scales and offsets of it.
inline void unpack_rows(const PackedCall& call, const PackedSide& side, int64_t row, int64_t kv_head, int64_t block,
                        int64_t begin, int64_t end, int64_t pad, float* rows, float* spare) {
  const int64_t dim = side.form.head_dim, step = side.form.group_size;
  const bool channels = along_tokens(side);
  uint8_t* codes = reinterpret_cast<uint8_t*>(spare);
  float* scale = spare + kTileTokens * pad / 4;
  float* offset = scale + 16 * pad;
  PageCursor cursor(call, row, block * kBlockTokens + begin / kTileTokens * kTileTokens);
  for (int64_t t = begin / kTileTokens * kTileTokens; t < end; t += kTileTokens) {
    int64_t inside;
    const kvp_qpage& page = cursor.seek(block * kBlockTokens + t, &inside);
    const PackedTile tile = PageSide(side, page, kv_head).tile(inside);
    unpack_tile(side.form, reinterpret_cast<const std::byte*>(tile.data), codes);
    if (side.form.float8()) {
      load_floats(side.form.scale_dtype, tile.scale, 0, kTileTokens, scale);
    } else if (channels) {
      load_channels(side, tile.scale, tile.token, scale);
      load_channels(side, tile.zero, tile.token, offset);
    } else {
      load_groups(side, &tile, 1, &PackedTile::scale, scale);
      load_groups(side, &tile, 1, &PackedTile::zero, offset);
    }
    for (int64_t i = 0; i < kTileTokens; ++i) {
      float* to = rows + (t + i) * pad;
      if (side.form.float8()) {
        const bool e4m3 = side.form.format == KVP_FORMAT_FP8_E4M3;
        (e4m3 ? float8_row<E4m3> : float8_row<E5m2>)(codes + i * dim, dim, scale[i], to);
        continue;
      }
      for (int64_t d = 0; d < dim; d += kLanes) {  // the codes of the last row end in scratch
        const int64_t g = channels ? 0 : d / step * kPackedChunk + i;
        const V s = channels ? load(scale + d) : set1(scale[g]), o = channels ? load(offset + d) : set1(offset[g]);
        store(to + d, mul_add(to_float(load_codes(codes + i * dim + d)), s, o));
      }
    }
  }
  memset(rows, 0, static_cast<size_t>(begin * pad) * sizeof(float));
  memset(rows + end * pad, 0, static_cast<size_t>((kBlockTokens - end) * pad) * sizeof(float));
}

template <class T>
void packed_prefill_typed(const AttendJob& job, int64_t b, int64_t kv_head, int64_t first_vector, float* work) {
  const PackedCall& call = *job.packed;
  prefill_tile<T>(job, b, kv_head, first_vector, work,
                  [&](int64_t block, int64_t begin, int64_t end, float* k_buffer, float* v_buffer, float* spare) {
                    unpack_rows(call, call.k, b, kv_head, block, begin, end, job.key_pad, k_buffer, spare);
                    unpack_rows(call, call.v, b, kv_head, block, begin, end, job.value_pad, v_buffer, spare);
                    return BlockRows{k_buffer, v_buffer, job.key_pad, job.value_pad};
                  });
}

void packed_prefill(const AttendJob& job, int64_t b, int64_t kv_head, int64_t first_vector, float* work) {
  if (job.shape.dtype.bits == 32) return packed_prefill_typed<float>(job, b, kv_head, first_vector, work);
  if (job.shape.dtype.code == KVP_DTYPE_BFLOAT) {
    return packed_prefill_typed<Bf16>(job, b, kv_head, first_vector, work);
  }
  packed_prefill_typed<F16>(job, b, kv_head, first_vector, work);
}

}  // namespace
}  // namespace kvplug::sdk
