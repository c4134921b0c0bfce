// SPDX-License-Identifier: Apache-2.0
// Packed K/V of an affine quantizer: x = code * scale + offset, codes of 1, 2, 3, 4 or 8 bits, or x = float8 * scale,
// laid out so that attention reads them packed (packed_attention.h). What the codes, scales and offsets are is the
// quantizer's affair; where they lie is said here, once, for every quantizer plugin of this form.
//
// The unit is the block: token_block() consecutive tokens of one K/V head, in three parts of a kvp_qplan:
//   DATA   uint8  [batch, kv_heads, blocks, data_bytes()]  codes in tiles of kTileTokens tokens
//   SCALE  scale_dtype [batch, kv_heads, blocks, groups()]
//   ZERO   scale_dtype [batch, kv_heads, blocks, groups()]  the offset: what code 0 stands for;
//                                                                 none for float8
// A tile is a list of rows of 64 codes, four for every 16 dims; dims past head_dim are 0. Keys: row i holds dims
// 4i .. 4i + 3 of 16 tokens, 4 bytes a token; values: row 4i + j holds dims 16i .. 16i + 15 of tokens 4j .. 4j + 3, 4
// bytes a dim. So a lane of 32 bits is one token (one dim), and integer dot products need no sum over lanes. Fewer than
// 8 bits: 8 / bits rows share 64 bytes, row i in bits i % (8 / bits) * bits and up; 3 bits: a plane of the low two bits
// of all rows, then one of the high bits.
// Groups are ordered so that attention loads them as vectors: along HEAD_DIM [channel group][token], along TOKENS
// [token group][channel].
#pragma once

#include <kvplug/abi.h>

#include <cstddef>
#include <cstdint>

namespace kvplug::sdk {

inline constexpr int64_t kTileTokens = 16;

// How one role (keys or values) is grouped and stored.
struct PackedForm {
  int32_t role = KVP_ROLE_KEY;
  int32_t bits = 4;                        // 1, 2, 3, 4, 8
  int32_t group_dim = KVP_GROUP_HEAD_DIM;  // KVP_GROUP_HEAD_DIM: channels of one token; KVP_GROUP_TOKENS: one channel
  int64_t group_size = 64;                 // along group_dim; HEAD_DIM: the last group of a head may be shorter
  int64_t head_dim = 0;
  kvp_dtype scale_dtype{};             // of scales and offsets: f32, f16, bf16
  int32_t format = KVP_FORMAT_AFFINE;  // or FP8_E4M3, FP8_E5M2: 8 bits, one group a head

  bool float8() const noexcept { return format != KVP_FORMAT_AFFINE; }
  uint32_t parts() const noexcept { return float8() ? 2 : 3; }
  // HEAD_DIM: one tile. TOKENS: whole groups and whole tiles.
  int64_t token_block() const noexcept;
  // Scales of one head's block.
  int64_t groups() const noexcept;
  // Bytes of one head's block, padding of odd dims included: tile after tile.
  int64_t data_bytes() const noexcept;
  int64_t tile_bytes() const noexcept;
  // 3 bits: where in a tile the plane of the high bits begins; else 0.
  int64_t high_plane() const noexcept;
  // Where the scale of `token` (of the block) and `channel` lies.
  int64_t group_of(int64_t token, int64_t channel) const noexcept;
};

// codes: [token_block][head_dim], one a byte. data: data_bytes().
void pack_block(const PackedForm& form, const uint8_t* codes, std::byte* data) noexcept;
void unpack_block(const PackedForm& form, const std::byte* data, uint8_t* codes) noexcept;
// One tile: codes [kTileTokens][head_dim].
void unpack_tile(const PackedForm& form, const std::byte* tile, uint8_t* codes) noexcept;

}  // namespace kvplug::sdk
