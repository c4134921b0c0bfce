// SPDX-License-Identifier: Apache-2.0
// What the driver and the kernels share when K and V are packed (packed.h): where a tile of 16 tokens lies.
//
// Token numbers are relative to the row's first packed token, so that whatever is cut (partitions, chunks of one
// quantized weight vector, tiles) is cut by the row's own tokens, wherever its pages begin.
#pragma once

#include <kvplug/sdk/packed.h>

#include "attention_job.h"

namespace kvplug::sdk {

inline constexpr int64_t kPackedPartition = 512;                    // tokens of one decode item
inline constexpr int64_t kPackedChunk = 64;                         // tokens whose weights are quantized together
inline constexpr int64_t kTilesAhead = kPackedChunk / kTileTokens;  // asked for while this one is read

// Parts in the order DATA, SCALE, ZERO (float8: without); strides in bytes.
struct PackedSide {
  PackedForm form;
  int64_t block, tile_bytes, high_plane, groups;  // groups along the head dimension; TOKENS: 1
  int64_t first_part;
  int64_t head_stride[3], block_stride[3];
};

struct PackedCall {
  PackedSide k, v;
  const kvp_qattend_args* args;
  const int64_t* first_page;  // [batch + 1]
};

struct PackedTile {
  const uint8_t* data;
  const char *scale, *zero;  // of the block
  int64_t token;             // in the block
};

namespace {

inline bool along_tokens(const PackedSide& s) { return s.form.group_dim == KVP_GROUP_TOKENS; }
inline int64_t units_of(int64_t dim) { return (dim + 15) / 16; }

// One side of a page, of one K/V head.
class PageSide {
 public:
  PageSide(const PackedSide& side, const kvp_qpage& page, int64_t kv_head) : side_(side) {
    for (int i = 0; i < (side.form.float8() ? 2 : 3); ++i) {
      parts_[i] = static_cast<const char*>(page.parts[side.first_part + i]) + kv_head * side.head_stride[i];
    }
  }
  PackedTile tile(int64_t token) const {
    const uint32_t at = static_cast<uint32_t>(token), size = static_cast<uint32_t>(side_.block);
    const int64_t block = size == 16 ? at / 16 : at / size, inside = token - block * side_.block;
    const auto part = [&](int i) { return parts_[i] + block * side_.block_stride[i]; };
    return {reinterpret_cast<const uint8_t*>(part(0)) + inside / kTileTokens * side_.tile_bytes, part(1),
            parts_[2] == nullptr ? nullptr : part(2), inside};
  }

 private:
  const PackedSide& side_;
  const char* parts_[3] = {};
};

// Walks the pages of a row.
struct PageCursor {
  const kvp_qpage* page;
  int64_t origin;  // position of the row's first packed token

  PageCursor(const PackedCall& call, int64_t row, int64_t token) {
    const kvp_qpage* pages = call.args->pages;
    int64_t low = call.first_page[row], high = call.first_page[row + 1];
    origin = pages[low].position;
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (pages[middle].position - origin <= token ? low : high) = middle;
    }
    page = pages + low;
  }
  // The page of `token`, which is not before the last one asked for; *inside: its number there.
  const kvp_qpage& seek(int64_t token, int64_t* inside) {
    while (token >= page->position - origin + page->count) ++page;
    *inside = token - (page->position - origin);
    return *page;
  }
};

inline int64_t packed_decode_floats(int64_t n, int64_t key_pad, int64_t value_pad) {
  const int64_t groups = (key_pad > value_pad ? key_pad : value_pad) / 16;
  return n * (key_pad + kPackedPartition + 16)  // q, scores
         + n * key_pad / 2                      // q in 16 bits
         + n * groups * (32 + 6)                // weights in 16 bits; three numbers a group, keys and values
         + n * kPackedChunk                     // float8: weights
         + 2 * (16 + kPackedChunk) * groups     // scales and offsets
         + key_pad + kPackedChunk + 128;
}
inline int64_t packed_prefill_floats(int64_t key_pad, int64_t value_pad) {
  return kTileTokens * (key_pad > value_pad ? key_pad : value_pad) / 4 + 2 * 16 * (key_pad + value_pad);
}

}  // namespace
}  // namespace kvplug::sdk
