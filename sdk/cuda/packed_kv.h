// SPDX-License-Identifier: Apache-2.0
// The source of attend_kernel whose K and V are packed: codes are unpacked in registers, four a word, once for all
// query heads of a K/V head. Positions count from a row's first packed token; the 64 of a step are four tiles, each
// wherever its page lies. DeviceRow: `list` is the row's first page, `first_block` how many it has.
#pragma once

#include "../kernels/packed_job.h"
#include "kernels.h"
#include "packed_codes.h"

namespace kvplug::sdk::cuda {

struct PackedKv {
  static constexpr int kTiles = kTokens / kTile;
  struct Tile {
    const uint8_t* data = nullptr;  // NULL: beyond the row
    const char* scale = nullptr;
    const char* zero = nullptr;  // of the block
    int token = 0;               // of the tile in its block
  };

  PackedSide k, v;
  const kvp_qpage* pages;
  Tile k_tiles[kTiles], v_tiles[kTiles];  // of the positions at hand

  KVP_DEVICE_CODE static Tile tile_of(const PackedSide& s, const kvp_qpage& page, int64_t token, int64_t kv_head) {
    const int inside = static_cast<int>(token), block = inside / static_cast<int>(s.block);
    Tile tile;
    tile.token = inside - block * static_cast<int>(s.block);
    const auto part = [&](int i) {
      return static_cast<const char*>(page.parts[s.first_part + i]) + kv_head * s.head_stride[i] +
             block * s.block_stride[i];
    };
    tile.data = reinterpret_cast<const uint8_t*>(part(0)) + tile.token / kTile * s.tile_bytes;
    tile.scale = part(1);
    if (s.form.format == KVP_FORMAT_AFFINE) tile.zero = part(2);
    return tile;
  }

  KVP_DEVICE_CODE void enter(const DeviceRow& row, int64_t kv_head, int64_t start) {
    int64_t low = row.list, high = row.list + row.first_block;
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (pages[middle].position - row.origin <= start ? low : high) = middle;
    }
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const int64_t token = start + j * kTile;
      k_tiles[j] = v_tiles[j] = Tile();
      if (token >= row.kv_end) continue;
      while (token >= pages[low].position - row.origin + pages[low].count) ++low;
      const kvp_qpage& page = pages[low];
      const int64_t inside = token - (page.position - row.origin);
      k_tiles[j] = tile_of(k, page, inside, kv_head);
      v_tiles[j] = tile_of(v, page, inside, kv_head);
    }
  }

  // Scale and offset of a token and dim; tokens of a tile of groups along TOKENS share theirs.
  KVP_DEVICE_CODE static int group_of(const PackedSide& s, const Tile& tile, int t, int d) {
    const int size = static_cast<int>(s.form.group_size);
    if (s.form.group_dim == KVP_GROUP_TOKENS) return tile.token / size * static_cast<int>(s.form.head_dim) + d;
    return d / size * kTile + t;
  }
  KVP_DEVICE_CODE static float value_of(const PackedSide& s, const Tile& tile, int t, int d, uint32_t code) {
    const int group = group_of(s, tile, t, d);
    const float x = number_of(s.form.format, code) * load_plain(s.form.scale_dtype, tile.scale, group);
    return tile.zero == nullptr ? x : x + load_plain(s.form.scale_dtype, tile.zero, group);
  }

  KVP_DEVICE_CODE void keys(int c, int width, int low, int high, float* to) const {
    const int dim = static_cast<int>(k.form.head_dim);
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const Tile tile = k_tiles[j];
      for (int i = static_cast<int>(threadIdx.x); i < kTile * (kChunk / 4); i += kThreads) {
        const int lane = i % kTile, first = i / kTile * 4, t = j * kTile + lane;
        const bool there = tile.data != nullptr && t >= low && t < high && first < width;
        const uint32_t quad = there ? quad_of(k.form.bits, k.high_plane, tile.data, (c + first) / 4, lane) : 0u;
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          const int d = c + first + m;
          to[t * (kChunk + 1) + first + m] = there && d < dim ? value_of(k, tile, lane, d, quad >> 8 * m & 255u) : 0.0f;
        }
      }
    }
  }

  template <class F>
  KVP_DEVICE_CODE void each_value(int d, int low, int high, const F& f) const {
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const Tile tile = v_tiles[j];
      if (tile.data == nullptr) continue;
      for (int q = 0; q < kTile / 4; ++q) {
        const uint32_t quad = quad_of(v.form.bits, v.high_plane, tile.data, d / kTile * 4 + q, d % kTile);
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          const int lane = 4 * q + m, t = j * kTile + lane;
          if (t >= low && t < high) f(t, value_of(v, tile, lane, d, quad >> 8 * m & 255u));
        }
      }
    }
  }
};

}  // namespace kvplug::sdk::cuda
