// SPDX-License-Identifier: Apache-2.0
// One full-attention layer of the dynamic cache: for each row a list of pages, growing without copies.
//
// The token at row position p (slot - pad; padding is not stored) lies in page p / kBlockTokens of its row, at place
// p % kBlockTokens. Rows and clones share pages; a shared page is copied when one of them writes into it. A row's list
// is a line of the layer's table, always ready for the attention kernel; rows find their lines by number, so that
// reordering them moves nothing. What changes the layer is prepared first (checks and memory: may throw, only buffers
// have grown then) and done afterwards (cannot fail).
#pragma once

#include <kvplug/sdk/plugin.h>

#include <vector>

namespace kvplug::dynamic {

class PagedLayer {
 public:
  PagedLayer(const sdk::PageLayout& layout, uint64_t owner) : pool_(layout, owner), owner_(owner) {}
  // Shares the pages of `other`; what is taken later is booked on `owner`.
  PagedLayer(const PagedLayer& other, uint64_t owner);
  PagedLayer& operator=(const PagedLayer&) = delete;
  ~PagedLayer() { release_all(); }

  // Bytes of the table of `lines` rows of at most `tokens` stored tokens. It grows by kColumnStep pages a line.
  static constexpr int64_t kColumnStep = 32;
  static int64_t table_bytes(int64_t lines, int64_t tokens) noexcept;

  const sdk::Rows& rows() const noexcept { return rows_; }
  const sdk::PageLayout& layout() const noexcept { return pool_.layout(); }
  // The pages of row b, in order.
  const sdk::KvBlock* blocks(int64_t b) const noexcept { return line(lines_[static_cast<size_t>(b)]); }

  // Makes `batch` empty rows; the layer must hold no tokens. Allocates beyond the largest batch so far only.
  void start(int64_t batch);

  // Room for an append that rows().check_append() has passed. Throws INVALID_STATE instead of allocating when it must
  // not.
  void prepare_append(const sdk::Append& a, bool may_allocate);
  // k [batch, kv_heads, tokens, key_dim], v alike. Returns the bytes copied because a page was shared.
  int64_t append(const sdk::Append& a, const kvp_tensor& k, const kvp_tensor& v,
                 const kvp_host_parallel* parallel) noexcept;

  // Room for `batch` rows of `tokens` stored tokens, kept from now on. All or nothing. Returns what unreserve() takes
  // to go back to.
  int64_t reserve(int64_t batch, int64_t tokens);
  void unreserve(int64_t kept) noexcept;

  // Writes all rows by slot: k [batch, kv_heads, kv_len, key_dim], v alike, dense. Slots that are padding or that a row
  // does not have become zero.
  void read(std::byte* k, std::byte* v, int64_t kv_len, const kvp_host_parallel* parallel) const noexcept;

  // Row i becomes the old row src_rows[i], -1 an empty one.
  void prepare_gather(const int64_t* src_rows, int64_t n, bool may_allocate);
  void gather(const int64_t* src_rows, int64_t n) noexcept;

  // Cuts row b to `seen` slots. Its pages stay here until trim().
  void truncate(int64_t b, int64_t seen) noexcept;
  // Gives back free pages beyond those that are kept.
  void trim() noexcept;
  // Empties all rows; the pages and the table stay.
  void reset() noexcept;

  int64_t stored_tokens() const noexcept;  // over all rows
  int64_t booked_pages() const noexcept { return pool_.booked_pages(); }
  int64_t page_bytes() const noexcept { return booked_pages() * layout().page_bytes(); }
  int64_t table_bytes() const noexcept { return static_cast<int64_t>(table_.bytes()); }

 private:
  sdk::KvBlock* line(int64_t i) const noexcept { return reinterpret_cast<sdk::KvBlock*>(table_.data()) + i * columns_; }
  sdk::KvBlock* row_line(int64_t b) const noexcept { return line(lines_[static_cast<size_t>(b)]); }
  int64_t pages_of(int64_t b) const noexcept { return sdk::PageLayout::count(rows_[b].stored()); }
  void ensure_table(int64_t n_lines, int64_t columns);
  int64_t exclusive_pages() const noexcept;
  void release_all() noexcept;
  bool must_copy(const sdk::Append& a, int64_t b) const noexcept;
  int64_t take_pages(const sdk::Append& a) noexcept;
  void write_head(const sdk::Append& a, int64_t b, int64_t head, const kvp_tensor& k,
                  const kvp_tensor& v) const noexcept;

  sdk::PagePool pool_;
  uint64_t owner_;
  sdk::Rows rows_;
  std::vector<int64_t> lines_;  // [batch], line of each row
  sdk::Block table_;            // KvBlock [table_lines_, columns_]
  int64_t n_lines_ = 0;         // lines the table must have when there is one: the largest batch so far
  int64_t table_lines_ = 0, columns_ = 0;
  int64_t kept_pages_ = 0;  // held even when free: reserved, or left by reset
  sdk::Rows next_rows_;     // between prepare_gather and gather
  std::vector<int64_t> next_lines_;
};

}  // namespace kvplug::dynamic
