// SPDX-License-Identifier: Apache-2.0
// PagedCache: a whole cache of plain K/V in pages, for plugins that keep what they are given: every layer kind but
// STATE, every operation, attention over the pages as they lie, on the CPU or, with pages whose store has a queue, on a
// device: there the books are kept in host memory and the device gets lists of addresses with each call. A plugin says
// what its pages are made of (PageStore), whether there is a capacity, and, where its pages are not always in memory,
// brings them there.
//
// What it holds once `tokens` are stored in each of `batch` rows, exactly as plan() says:
//   kv       a layer's pages: all of the row, or a ring for its window; with a capacity always those of all tokens
//   other    the page tables, 8 bytes a page in steps of 32 pages a row, and one list of blocks for all layers
//   scratch  what attend needs: a function of heads, dims and threads, 16 bytes a row; never of the length
// reserve() takes the same in advance. Views are made in one buffer, held until the next changing call; they count in
// plan's peak only, and are the one thing that a reserved cache still allocates for (a PREPARED update refuses them).
//
// Layers are at different lengths in the middle of a step. crop() counts from the layer that is furthest, and a layer
// that is already shorter than that keeps what it has: so crop undoes a step that stopped half way. A CROSS layer is
// filled by one append; crop leaves it alone.
#pragma once

#include <kvplug/sdk/paged_layer.h>
#include <kvplug/sdk/plugin.h>

namespace kvplug::sdk {

class PagedCache {
 public:
  virtual ~PagedCache() = default;
  PagedCache& operator=(const PagedCache&) = delete;

  void lengths(int32_t layer, int64_t query_len, kvp_lengths& out) const;
  void update(const kvp_call& call, const kvp_update_args& args, kvp_tensor* out_k, kvp_tensor* out_v);
  void reset(const kvp_call& call);
  void gather(const kvp_call& call, const int64_t* src_rows, int64_t n);
  void crop(const kvp_call& call, const int64_t* n_remove, int64_t n);
  void set_rollback(const kvp_call& call, int64_t max_tokens);
  void reserve(const kvp_call& call, int64_t batch, int64_t tokens);
  void memory(int32_t layer, kvp_memory& out) const;
  size_t counters(kvp_counter* out, size_t room) const;
  void attend_probe(const kvp_attend_desc& desc) const;
  void attend(const kvp_call& call, const kvp_attend_args& args, kvp_tensor& out, kvp_tensor* lse);
  // kvp.capture/1, of a cache with a capacity on a device. Calls with CAPTURE are recorded with what bind() set up.
  void capture_bind(const kvp_call& call, int64_t query_len, const kvp_tensor& row_seen);
  void capture_advance(int64_t n_tokens);
  void capture_unbind();

 protected:
  // A layer as asked for, checked.
  struct Spec {
    int32_t kind;
    int64_t q_heads, window;
    PageLayout layout;
  };
  // What a plugin's kind makes of a request.
  struct Plan {
    std::vector<Spec> specs;
    kvp_dtype dtype{};
    int64_t rollback = 0;
    int64_t capacity = -1;  // tokens a row, -1 = grows

    int32_t device_type = KVP_DEVICE_CPU, device_id = 0;

    // devices: the kind also serves what cuda_device() does.
    explicit Plan(const kvp_cache_create& create, const char* kind, bool fixed, bool devices = false);
    bool on_device() const noexcept { return device_type != KVP_DEVICE_CPU; }
    // Where K/V, views and scratch are.
    int32_t tier() const noexcept { return on_device() ? KVP_TIER_DEVICE : KVP_TIER_HOST; }
    // A queue for one instance; on_device() only.
    std::shared_ptr<DeviceQueue> make_queue(void* stream) const;
    // A capacity holds for all rows, except where every layer is a ring that fits into it, rollback included.
    bool limited() const noexcept;
    int64_t kept(const Spec& spec) const noexcept { return PagedLayer::kept(spec.window, rollback); }
    // Tokens that memory is held for once `tokens` are stored.
    int64_t held_tokens(int64_t tokens) const noexcept;
    // Pages held for a row.
    int64_t pages(const Spec& spec, int64_t tokens) const noexcept;
    int64_t list_columns(int64_t tokens) const noexcept;
    int64_t scratch_bytes(int64_t batch, int32_t workers) const noexcept;
    void check_plan(int64_t tokens) const;
    // Everything but the pages: tables, list, scratch; `peak` gets what is held on top on the way.
    void add_books(int64_t batch, int64_t tokens, kvp_memory& out) const;
  };
  // The plan of a cache whose pages lie where it attends.
  static void plan_in_host(const Plan& plan, int64_t batch, int64_t tokens, kvp_memory& out);
  static void probe_of(const Plan& plan, kvp_cache_info& out);

  using Stores = std::vector<std::unique_ptr<PageStore>>;  // one a layer
  PagedCache(Plan plan, Stores stores, uint64_t owner);
  // A copy whose pages come from `stores`.
  PagedCache(const PagedCache& other, Stores stores, uint64_t owner);

  // K and V of the layer are in memory between the two. enter may throw: nothing has changed then.
  virtual void enter(int32_t) {}
  virtual void leave(int32_t) noexcept {}
  // All layers are empty and their pages free.
  virtual void emptied() {}
  virtual void add_counters(std::vector<kvp_counter>&) const {}
  virtual void add_memory(kvp_memory&) const noexcept {}  // beyond stores, tables, list and scratch

  const Plan& form() const noexcept { return plan_; }
  PagedLayer& layer(size_t i) const noexcept { return *layers_[i]; }

 private:
  static constexpr int32_t kMemoryTiers[] = {KVP_TIER_DEVICE, KVP_TIER_PINNED, KVP_TIER_HOST};
  struct Counts {
    uint64_t fused_attend_calls = 0, view_updates = 0, bytes_copied_on_write = 0, allocations = 0;
  };

  PagedLayer& layer_at(int32_t layer) const;
  const Spec& spec_at(int32_t layer) const { return plan_.specs[static_cast<size_t>(layer)]; }
  bool is_cross(size_t i) const noexcept { return plan_.specs[i].kind == KVP_LAYER_CROSS; }
  bool empty() const noexcept;
  void set_batch(int64_t batch);
  // Bytes held now in a tier.
  int64_t held_bytes(int32_t tier) const noexcept;
  void note_peak() noexcept {
    for (int32_t tier : kMemoryTiers) peak_[tier] = std::max(peak_[tier], held_bytes(tier));
  }
  // Memory beside the pages, where the cache attends.
  Block working_block(int32_t purpose, int64_t bytes) const;
  void start(const kvp_call& call) noexcept {
    if (queue_ != nullptr) queue_->start(call.stream);
  }
  // Refuses what a bound capture forbids.
  void check_unbound(const char* what) const;
  void finish() {
    if (queue_ != nullptr) queue_->check();
  }
  static int64_t device_list_bytes(int64_t batch, int64_t list_bytes) noexcept {
    return list_bytes + batch * static_cast<int64_t>(sizeof(DeviceRow));
  }
  // The rows and blocks of the call to the device; `last` of a row as AttendRow::kv_end and so on.
  struct DeviceList {
    const DeviceRow* rows;
    const KvBlock* blocks;
    int64_t longest;
  };
  DeviceList upload_lists(const PagedLayer& layer) noexcept;
  kvp_status attend_on_device(const PagedLayer& layer, const AttendShape& shape, const AttendCall& work) noexcept;
  void attend_captured(const kvp_attend_args& args, kvp_tensor& out, kvp_tensor* lse);
  void ensure_scratch(int64_t batch, bool may_allocate);
  void ensure_list(int64_t batch, int64_t tokens, bool may_allocate);
  // With a capacity: all memory for `batch` rows. All or nothing.
  void ensure_fixed(int64_t batch, bool may_allocate);
  void reserve_layers(int64_t batch, int64_t tokens);
  void check_room(const PagedLayer& layer, const Append& a) const;
  // All that an append to `layer` needs, and views or attend after it; on failure nothing has changed.
  // The layer has been entered then.
  void prepare(int32_t index, const Append& a, const kvp_call& call, int64_t view_bytes, bool attends);
  // A CROSS layer takes tokens only while it is empty.
  void check_fill(int32_t layer) const;
  // The blocks of all rows, k and v those of an append under way; row_blocks_[b] is where those of row b begin.
  void list_blocks(const PagedLayer& layer, const Append& a, const kvp_tensor* k, const kvp_tensor* v) noexcept;
  void write_views(const PagedLayer& layer, int64_t kv_len, int64_t kv_offset, kvp_tensor& k, kvp_tensor& v) noexcept;

  Plan plan_;
  uint64_t owner_;
  const kvp_host_parallel* parallel_;
  int64_t batch_ = 0;
  std::vector<std::unique_ptr<PagedLayer>> layers_;
  int64_t fixed_batch_ = 0;  // with a capacity: rows that memory is held for
  Block scratch_;            // of attend, for up to scratch_batch_ rows
  int64_t scratch_batch_ = 0;
  Block list_;       // KvBlock, for the layer at hand
  Block long_list_;  // the same, for a call that shows more than a decode step
  Block views_;      // what update showed last
  std::vector<const KvBlock*> row_blocks_;
  std::vector<AttendRow> attend_rows_;
  int64_t peak_[KVP_N_TIERS] = {};
  Counts counts_;

  // On a device only.
  DeviceQueue* queue_ = nullptr;          // of the pages
  Block device_list_, long_device_list_;  // DeviceRow [batch], then as list_ and long_list_
  // While bound to a capture: DeviceRow [batch], row_pad int64 [batch], then KvBlock [layers, batch, columns].
  Block captured_;
  const int32_t* captured_seen_ = nullptr;
  int64_t captured_columns_ = 0, captured_queries_ = 0;
};

}  // namespace kvplug::sdk
