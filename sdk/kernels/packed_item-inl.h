// SPDX-License-Identifier: Apache-2.0
// What decoding over packed K/V has in common, whatever the codes are: the work item, its scratch, floats of any type.
#pragma once

#include "decode-inl.h"
#include "packed_dot-inl.h"

namespace kvplug::sdk {
namespace {

inline constexpr int64_t kPackedStride = kPackedPartition + 16;

// One call's view of a work item.
struct PackedItem {
  const PackedCall* call;
  int64_t row, kv_head, n;     // q vectors
  int64_t origin, begin, end;  // of the partition; whole tiles in it that are looked at
  // Tiles of [begin, end), then kTilesAhead that are only asked for: K is followed by V.
  PackedTile k[kPackedPartition / kTileTokens + kTilesAhead], v[kPackedPartition / kTileTokens + kTilesAhead];

  void find_tiles() {
    PageCursor cursor(*call, row, origin + begin);
    PackedTile *to_k = k, *to_v = v;
    for (int64_t t = begin; t < end;) {
      int64_t inside;
      const kvp_qpage& page = cursor.seek(origin + t, &inside);
      const PageSide k_side(call->k, page, kv_head), v_side(call->v, page, kv_head);
      for (; inside < page.count && t < end; inside += kTileTokens, t += kTileTokens) {
        *to_k++ = k_side.tile(inside);
        *to_v++ = v_side.tile(inside);
      }
    }
    for (int64_t i = 0; i < kTilesAhead; ++i) to_v[i] = to_v[-1];
    for (int64_t i = 0; i < kTilesAhead; ++i) to_k[i] = v[i];
  }
};

// A carver of the worker's scratch.
struct Carver {
  float* at;
  float* take(int64_t n) {
    float* p = at;
    at += round_up(n, 16);
    return p;
  }
};

// f(p), p: the numbers at `from` as what they are.
template <class F>
inline void with_floats(kvp_dtype type, const void* from, F&& f) {
  if (type.bits == 32) return f(static_cast<const float*>(from));
  if (type.code == KVP_DTYPE_BFLOAT) return f(static_cast<const Bf16*>(from));
  f(static_cast<const F16*>(from));
}

inline void load_floats(kvp_dtype type, const void* from, int64_t at, int64_t n, float* to) {
  with_floats(type, from, [&](const auto* p) {
    for (int64_t i = 0; i < n; i += kLanes) {
      store(to + i, n - i >= kLanes ? load(p + at + i) : load_first(p + at + i, n - i));
    }
  });
}

}  // namespace
}  // namespace kvplug::sdk
