// SPDX-License-Identifier: Apache-2.0
// What is asked for, and what the quantizers say of their parts, checked; and what follows from it:
// how many tokens of a row are packed, how many pages that takes, how much scratch a call needs.
#pragma once

#include <kvplug/sdk/paged_layer.h>

#include "create.h"
#include "engine.h"
#include "packed_pages.h"

namespace kvplug::quantized {

inline constexpr int64_t kPageTokens = 256;  // about; whole blocks
inline constexpr int64_t kTileQueries = 128;
inline constexpr int64_t kRunTokens = 64;  // of one quantize call, about; whole blocks. With SHARED parts: of a page

// One quantizer on one layer.
struct Side {
  kvp_qhandle handle{};
  int64_t dim = 0, token_block = 0;
  uint32_t n_parts = 0;
  kvp_qpart parts[KVP_MAX_PARTS] = {};  // of a page: [1, kv_heads, blocks, n], dense, data NULL; SHARED: as planned
  uint64_t workspace = 0;               // of quantizing one run
};

struct LayerForm {
  int32_t kind = KVP_LAYER_FULL;
  int64_t q_heads = 0, window = 0;
  sdk::PageLayout layout;
  Side k, v;
  int64_t token_block = 0, page_tokens = 0, run_tokens = 0;
  PageShape page;
  int64_t shared_bytes = 0;  // of a page's SHARED parts, of both sides

  int64_t kept(int64_t rollback) const noexcept { return sdk::PagedLayer::kept(window, rollback); }
};

// Offsets of a call's scratch for one layer, and its size.
struct Scratch {
  int64_t attend, acc, acc_lse, part, part_lse, more, more_lse, q, tile_k, tile_v, staging, staging_bytes, workspace,
      quant_workspace, bytes;
};

struct Form {
  explicit Form(const kvp_cache_create& create);

  Options options;
  std::vector<LayerForm> layers;
  kvp_dtype dtype{};
  int64_t rollback = 0;
  int32_t device_type = KVP_DEVICE_CPU, device_id = 0;

  int64_t residual() const noexcept { return std::max(options.residual, rollback); }
  // Tokens of a row of T that are packed by the formula.
  int64_t packed(const LayerForm& layer, int64_t tokens) const noexcept;
  // Tokens that the exact ring keeps: what it is made for, and what rollback adds.
  int64_t ring_base(const LayerForm& layer) const noexcept;
  int64_t ring_rollback(const LayerForm& layer) const noexcept;
  int64_t ring(const LayerForm& layer) const noexcept {
    return sdk::PagedLayer::kept(ring_base(layer) + 1, ring_rollback(layer));
  }
  // First page that a row keeps, and one beyond the last; equal if there is none.
  void page_range(const LayerForm& layer, int64_t begin, int64_t packed, int64_t& first, int64_t& end) const noexcept;
  // Pages held for a row once `tokens` are stored.
  int64_t most_pages(const LayerForm& layer, int64_t tokens) const noexcept;
  int64_t list_columns(int64_t tokens) const noexcept;
  int64_t sink_columns(int64_t tokens) const noexcept {
    return sdk::PageLayout::count(std::min(tokens, options.sinks));
  }
  int64_t page_columns(int64_t tokens) const noexcept;

  // Asks quant-attend whether it serves this; the workspace it needs, or UNSUPPORTED with its reason.
  kvp_status probe_fused(const LayerForm& layer, int64_t batch, float softcap, int64_t window, int64_t chunk,
                         uint64_t& workspace, std::string& reason) const;
  Scratch scratch(const LayerForm& layer, int64_t batch, const Engine& engine) const;
  int64_t scratch_bytes(int64_t batch, const Engine& engine) const;
  // Blocks of a page's unpacked tokens, in the list behind those of the rows.
  static int64_t tile_blocks(const LayerForm& layer) noexcept { return layer.page_tokens / sdk::kBlockTokens + 2; }
  int64_t most_tile_blocks() const noexcept;
  // Bytes of a list of `blocks` on a device.
  static int64_t device_list_bytes(int64_t batch, int64_t blocks) noexcept {
    return batch * static_cast<int64_t>(sizeof(sdk::DeviceRow)) + blocks * static_cast<int64_t>(sizeof(sdk::KvBlock));
  }
  void plan(int64_t batch, int64_t tokens, kvp_memory& out) const;
};

}  // namespace kvplug::quantized
