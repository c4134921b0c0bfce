// SPDX-License-Identifier: Apache-2.0
// One layer of a quantized cache. A row's tokens lie in up to three places:
//   sinks   the first sink_tokens positions, exact
//   packed  positions sink_tokens .. sink_tokens + packed - 1, in pages of packed blocks
//   exact   a ring of the newest tokens, in which everything that is not packed is found
// The ring keeps a fixed number of tokens (residual_length and a block, or quantized_kv_start), so the newest packed
// ones are mostly still in it; they are read from their packed form alone.
//
// What changes the layer is prepared first (checks and memory) and done afterwards. An append is begun (blocks() of the
// ring then shows past and new tokens), packed, and ended; until it is ended it can be taken back.
#pragma once

#include <kvplug/sdk/paged_layer.h>

#include <memory>
#include <optional>

#include "form.h"

namespace kvplug::quantized {

class Layer {
 public:
  struct Row {
    int64_t packed = 0;  // tokens, whole blocks
    int64_t first = 0;   // pages [first, end) are held
    int64_t end = 0;
    int64_t begin = 0;  // first row position that is readable
    int64_t again = 0;  // positions below were packed before and given back to the ring by value
    int64_t next = 0;   // during an append: packed at its end
    // SHARED parts of K, then V, made of the first tokens that were packed and kept; each page has a copy.
    std::shared_ptr<const std::byte[]> shared, next_shared;
  };
  // What packing an append wrote.
  struct Packed {
    uint64_t tokens = 0, again = 0;
  };

  Layer(const LayerForm& form, const Form& all, uint64_t owner, const std::shared_ptr<Engine>& engine);
  Layer(const Layer& other, uint64_t owner, const std::shared_ptr<Engine>& engine);
  Layer& operator=(const Layer&) = delete;
  ~Layer();

  const LayerForm& form() const noexcept { return form_; }
  const sdk::Rows& rows() const noexcept { return exact_.rows(); }
  sdk::PagedLayer& exact() noexcept { return exact_; }
  const sdk::PagedLayer& exact() const noexcept { return exact_; }
  sdk::PagedLayer* sinks() noexcept { return sinks_.get(); }
  const Row& row(int64_t b) const noexcept { return rows_[static_cast<size_t>(b)]; }
  PackedPage* page(int64_t b, int64_t i) const noexcept { return entry(b, i); }
  // Position of the first packed token, and one beyond the last.
  int64_t packed_begin(int64_t b) const noexcept { return sinks_tokens_ + row(b).first * form_.page_tokens; }
  int64_t packed_end(int64_t b) const noexcept { return sinks_tokens_ + row(b).packed; }
  int64_t first_slot() const noexcept;
  int64_t pages_of(int64_t b) const noexcept { return row(b).end - row(b).first; }

  void start(int64_t batch);
  void set_rollback(const Form& all) noexcept;

  void prepare_append(const Form& all, const sdk::Append& a, bool may_allocate);
  int64_t begin_append(const sdk::Append& a, const kvp_tensor& k, const kvp_tensor& v,
                       const kvp_host_parallel* parallel) noexcept {
    return exact_.begin_append(a, k, v, parallel);
  }
  // Quantizes what the formula now wants packed out of the ring's blocks of each row. Throws what a quantizer answers;
  // cancel_append() then.
  Packed pack(const Form& all, const sdk::Append& a, const sdk::KvBlock* const* blocks, const kvp_call& call,
              std::byte* staging, const Scratch& scratch);
  void end_append(const Form& all, const sdk::Append& a, const kvp_tensor& k, const kvp_tensor& v,
                  const kvp_host_parallel* parallel) noexcept;
  void cancel_append(const sdk::Append& a) noexcept;

  int64_t reserve(const Form& all, int64_t batch, int64_t tokens);

  void prepare_gather(const int64_t* src_rows, int64_t n, bool may_allocate);
  void gather(const Form& all, const int64_t* src_rows, int64_t n) noexcept;

  bool can_truncate(int64_t b, int64_t seen) const noexcept;
  // Rows that a cut leaves with part of a block: what prepare_truncate() found, to be filled by value.
  struct Refill {
    int64_t b, seen, from, tokens;
  };
  std::vector<Refill> prepare_truncate(const std::vector<int64_t>& seen, bool may_allocate);
  void truncate(int64_t b, int64_t seen) noexcept;
  void drop_record(const Form& all) noexcept;
  void trim(const Form& all) noexcept;
  void reset() noexcept;

  // One page's parts from block `first` of the page on, `tokens` of them, as tensors with their data.
  void parts_of(const Side& side, bool keys, PackedPage& page, int64_t first, int64_t tokens,
                kvp_qpart* to) const noexcept;

  void add_memory(kvp_memory& out) const noexcept;
  int64_t table_bytes() const noexcept {
    return exact_.table_bytes() + (sinks_ ? sinks_->table_bytes() : 0) + static_cast<int64_t>(table_.bytes());
  }
  void add_held_bytes(int64_t (&held)[KVP_N_TIERS]) const noexcept;
  int64_t readable_tokens() const noexcept;
  int64_t held_pages() const noexcept { return pages_.held_pages(); }

 private:
  PackedPage*& entry(int64_t b, int64_t page) const noexcept {
    return reinterpret_cast<PackedPage**>(table_.data())[b * columns_ + page % columns_];
  }
  Row& at(int64_t b) noexcept { return rows_[static_cast<size_t>(b)]; }
  void ensure_table(int64_t lines, int64_t columns);
  int64_t begin_at(const Form& all, int64_t b, int64_t stored) const noexcept {
    return std::max(row(b).begin, stored - form_.kept(all.rollback));
  }
  // f(a page's memory of a SHARED part, its place in Row::shared, bytes).
  template <class F>
  void each_shared(PackedPage& page, F&& f) const;
  int64_t exclusive_pages() const noexcept;
  void drop_pages(int64_t b) noexcept;
  void keep_pages(int64_t b, int64_t first) noexcept;
  sdk::Append sink_append(const sdk::Append& a) noexcept;

  LayerForm form_;
  const int64_t sinks_tokens_;
  const uint64_t owner_;
  const std::shared_ptr<Engine> engine_;
  sdk::PagedLayer exact_;
  std::unique_ptr<sdk::PagedLayer> sinks_;
  PackedPages pages_;
  sdk::Block table_;  // PackedPage* [lines_, columns_]
  int64_t n_lines_ = 0, lines_ = 0, columns_ = 0;
  int64_t kept_pages_ = 0;
  std::vector<Row> rows_;
  std::vector<int64_t> sink_counts_;
  struct Fresh {
    int64_t b, index;
    PackedPage* page;
  };
  std::vector<Fresh> fresh_;  // during an append: pages that rows get, or get in place of shared ones, at its end
};

}  // namespace kvplug::quantized
