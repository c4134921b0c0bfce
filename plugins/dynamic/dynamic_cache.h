// SPDX-License-Identifier: Apache-2.0
// The cache kind "dynamic": full-attention layers that grow page by page, in the type in which K and V arrive, on the
// CPU. Lossless; clones and beams share pages; crop, per row too, works to any depth.
//
// What it holds, exactly as plan() says, once `tokens` are stored in each of `batch` rows:
//   kv       layers * batch * ceil(tokens / 64) pages
//   other    the page tables: 48 bytes a page, in steps of 32 pages a row
//   scratch  what attend needs: a function of heads, dims and threads, 16 bytes a row; never of the length
// reserve() takes the same pages, table and scratch in advance. Free pages go back to the host at once, but for those
// that reserve() asked for or reset() left. Views are made in one buffer, held until the next changing call; they count
// in plan's peak only, and are the one thing that a reserved cache still allocates for (a PREPARED update refuses
// them). After clone() both sides share what was reserved: call reserve() again before PREPARED calls.
//
// Layers are at different lengths in the middle of a step. crop() counts from the layer that is furthest, and a layer
// that is already shorter than that keeps what it has: so crop undoes a step that stopped half way.
#pragma once

#include <kvplug/sdk/plugin.h>

#include <memory>
#include <vector>

#include "paged_layer.h"

namespace kvplug::dynamic {

class DynamicCache {
 public:
  static void probe(const kvp_cache_create& create, kvp_cache_info& out);
  static void plan(const kvp_cache_create& create, int64_t batch, int64_t tokens, kvp_memory& out);
  static const void* extension(std::string_view id) noexcept;

  explicit DynamicCache(const kvp_cache_create& create);

  void lengths(int32_t layer, int64_t query_len, kvp_lengths& out) const;
  void update(const kvp_call& call, const kvp_update_args& args, kvp_tensor* out_k, kvp_tensor* out_v);
  void reset(const kvp_call& call) noexcept;
  void gather(const kvp_call& call, const int64_t* src_rows, int64_t n);
  void crop(const kvp_call& call, const int64_t* n_remove, int64_t n);
  void set_rollback(const kvp_call& call, int64_t max_tokens);
  std::unique_ptr<DynamicCache> clone(const kvp_call& call, uint64_t owner) const;
  void reserve(const kvp_call& call, int64_t batch, int64_t tokens);
  void memory(int32_t layer, kvp_memory& out) const;
  size_t counters(kvp_counter* out, size_t room) const noexcept;

  void attend_probe(const kvp_attend_desc& desc) const;
  void attend(const kvp_call& call, const kvp_attend_args& args, kvp_tensor& out, kvp_tensor* lse);

 private:
  // A layer as asked for, checked.
  struct Spec {
    int64_t q_heads;
    sdk::PageLayout layout;
  };
  struct Counts {
    uint64_t fused_attend_calls = 0, view_updates = 0, bytes_copied_on_write = 0;
  };

  DynamicCache(const DynamicCache& other, uint64_t owner);

  static std::vector<Spec> specs_of(const kvp_cache_create& create);
  static int64_t scratch_bytes(const std::vector<Spec>& specs, kvp_dtype dtype, int64_t batch, int32_t workers);

  PagedLayer& layer_at(int32_t layer) const;
  bool empty() const noexcept;
  void set_batch(int64_t batch);
  int64_t held_bytes() const noexcept;
  void ensure_scratch(int64_t batch, bool may_allocate);
  // All that an append to `layer` needs, and views or attend after it; on failure nothing has changed.
  void prepare(PagedLayer& layer, const sdk::Append& a, const kvp_call& call, int64_t view_bytes, bool attends);
  void write_views(const PagedLayer& layer, int64_t batch, int64_t kv_len, kvp_tensor& k, kvp_tensor& v) const noexcept;

  std::vector<Spec> specs_;
  kvp_dtype dtype_;
  uint64_t owner_;
  const kvp_host_parallel* parallel_;
  int64_t batch_ = 0;
  std::vector<std::unique_ptr<PagedLayer>> layers_;
  sdk::Block scratch_;  // of attend, for up to scratch_batch_ rows
  int64_t scratch_batch_ = 0;
  sdk::Block views_;  // what update showed last
  std::vector<sdk::AttendRow> attend_rows_;
  int64_t peak_ = 0;
  Counts counts_;
};

}  // namespace kvplug::dynamic
