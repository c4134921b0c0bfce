// SPDX-License-Identifier: Apache-2.0
// One layer of paged K/V: for each row a ring of pages, growing without copies, windowed or not.
//
// The token at row position p (slot - pad; padding is not stored) lies in page p / kBlockTokens of its row, at place
// p % kBlockTokens. A row keeps positions begin .. stored-1: all of them without a window, else the last
// window - 1 + rollback, which is what the next token and a crop need; pages before that are taken for new tokens.
// Pages are found in a table [lines, columns], page i of a row at column i % columns of the row's line.
//
// What changes the layer is prepared first (checks and memory: may throw, only buffers have grown then) and done
// afterwards (cannot fail). An append has two halves: begin_append() counts the tokens in and stores those that belong
// into pages that there are already; from then on blocks() shows past and new tokens, the latter where the caller has
// them, so that a prompt longer than the window is attended to without being stored; end_append() stores what is kept.
#pragma once

#include <kvplug/sdk/pages.h>
#include <kvplug/sdk/rows.h>
#include <kvplug/sdk/tensor.h>

namespace kvplug::sdk {

class PagedLayer {
 public:
  // window: tokens that a query sees, itself included (also of a chunked layer); 0 = all.
  PagedLayer(std::unique_ptr<PageStore> store, int64_t window, uint64_t owner)
      : store_(std::move(store)), window_(window), owner_(owner) {}
  // Takes over the content of `other`, by sharing or copying as the stores do; booked on `owner`.
  PagedLayer(std::unique_ptr<PageStore> store, const PagedLayer& other, uint64_t owner);
  PagedLayer& operator=(const PagedLayer&) = delete;
  ~PagedLayer() { release_all(); }

  // Positions beyond any memory: lengths and products of them stay far from overflow.
  static constexpr int64_t kMostTokens = int64_t{1} << 40;
  // Tokens that a row keeps, at most.
  static int64_t kept(int64_t window, int64_t rollback) noexcept {
    return window == 0 ? kMostTokens : std::min(kMostTokens, window - 1 + rollback);
  }
  // Pages held for a row once `tokens` are stored: as many as were ever needed on the way there.
  static int64_t most_pages(int64_t tokens, int64_t kept) noexcept;
  // Bytes of the table of `lines` rows.
  static int64_t table_bytes(int64_t lines, int64_t tokens, int64_t kept) noexcept;
  // Tables and lists of blocks grow in steps.
  static int64_t columns(int64_t pages) noexcept { return (pages + 31) / 32 * 32; }

  const Rows& rows() const noexcept { return rows_; }
  const PageLayout& layout() const noexcept { return store_->layout(); }
  PageStore& store() const noexcept { return *store_; }
  int64_t window() const noexcept { return window_; }
  int64_t kept() const noexcept { return kept(window_, rollback_); }
  // First row position of row b that is still readable.
  int64_t begin(int64_t b) const noexcept { return held(b).begin; }
  // Slot from which views show tokens: what the next token of any row may need.
  int64_t first_slot() const noexcept;

  // Makes `batch` empty rows; the layer must hold no tokens. Allocates beyond the largest batch so far only.
  void start(int64_t batch);

  // Room for an append that rows().check_append() has passed. Throws INVALID_STATE instead of allocating when it must
  // not.
  void prepare_append(const Append& a, bool may_allocate);
  // k [batch, kv_heads, tokens, key_dim], v alike. Returns the bytes copied because a page was shared.
  int64_t begin_append(const Append& a, const kvp_tensor& k, const kvp_tensor& v,
                       const kvp_host_parallel* parallel) noexcept;
  void end_append(const Append& a, const kvp_tensor& k, const kvp_tensor& v,
                  const kvp_host_parallel* parallel) noexcept;
  // Instead of end_append: the rows are as before.
  void cancel_append(const Append& a) noexcept;

  // Blocks that show row b from position first_block(b) * kBlockTokens on; k and v are those of an append between its
  // halves, else NULL. Returns how many were written.
  int64_t first_block(int64_t b) const noexcept { return begin(b) / kBlockTokens; }
  int64_t blocks(int64_t b, const Append& a, const kvp_tensor* k, const kvp_tensor* v, KvBlock* to) const noexcept;
  // At most this many for row b once `a` is in.
  int64_t block_count(int64_t b, const Append& a) const noexcept {
    return PageLayout::count(rows_[b].stored() + a.stored(b)) - first_block(b);
  }

  // Room for `batch` rows of `tokens` stored tokens, kept from now on. All or nothing. Returns what unreserve() takes
  // to go back to.
  int64_t reserve(int64_t batch, int64_t tokens);
  void unreserve(int64_t kept_pages) noexcept;

  // Row i becomes the old row src_rows[i], -1 an empty one.
  void prepare_gather(const int64_t* src_rows, int64_t n, bool may_allocate);
  void gather(const int64_t* src_rows, int64_t n) noexcept;

  // True if row b can be cut to `seen` slots: whatever the next token needs is still there.
  bool can_truncate(int64_t b, int64_t seen) const noexcept;
  // Cuts row b to `seen` slots. Its pages stay here until trim().
  void truncate(int64_t b, int64_t seen) noexcept;
  void set_rollback(int64_t tokens) noexcept { rollback_ = std::min(tokens, kMostTokens); }
  // Lets go of positions that no next token can see.
  void drop_record() noexcept;
  // Gives back free pages beyond those that are kept.
  void trim() noexcept;
  // Cuts rows to what they then hold anew from a position on: pages for that, all or nothing. `rows` [n], each holding
  // positions begins[i] .. stored(seens[i])-1 afterwards.
  void prepare_refill(const int64_t* rows, const int64_t* seens, const int64_t* begins, int64_t n, bool may_allocate);
  // Row b is cut to `seen` slots and holds the newest tokens alone: k [1, kv_heads, n, key_dim], v alike.
  void refill(int64_t b, int64_t seen, const kvp_tensor& k, const kvp_tensor& v) noexcept;
  // Empties all rows; the pages and the table stay.
  void reset() noexcept;

  // For a recorded step: every row gets its pages up to `tokens` positions, of which there must be enough free ones, so
  // that the table stands still; and what the host counts for tokens that a device has stored by itself.
  void fill_table(int64_t tokens) noexcept {
    for (int64_t b = 0; b < rows_.batch(); ++b) take_until(b, PageLayout::count(tokens));
  }
  int64_t pages_to_fill(int64_t tokens) const noexcept {
    int64_t n = 0;
    for (int64_t b = 0; b < rows_.batch(); ++b) n += std::max<int64_t>(0, PageLayout::count(tokens) - held(b).end);
    return n;
  }
  void count_tokens(const Append& a) noexcept { rows_.append(a); }
  // All pages of row b in order; returns how many.
  int64_t all_blocks(int64_t b, KvBlock* to) const noexcept;

  int64_t stored_tokens() const noexcept;  // readable ones, over all rows
  int64_t table_bytes() const noexcept { return static_cast<int64_t>(table_.bytes()); }

 private:
  // What row b holds: pages [first, end), of which positions from `begin` on are readable, in a line of the table.
  // fill: during end_append, the position from which pages are new.
  struct Held {
    int64_t begin = 0, first = 0, end = 0, line = 0, fill = 0;
  };
  // Positions of row b that one half of an append stores.
  struct Span {
    int64_t from, to;
  };

  Held& held(int64_t b) noexcept { return held_[static_cast<size_t>(b)]; }
  const Held& held(int64_t b) const noexcept { return held_[static_cast<size_t>(b)]; }
  Page*& entry(const Held& row, int64_t page) const noexcept {
    return reinterpret_cast<Page**>(table_.data())[row.line * columns_ + page % columns_];
  }
  // The page that the next token of row b goes to, if it is there and not full; else NULL.
  Page* partial(int64_t b) const noexcept;
  // First position that row b keeps once it stores `stored` tokens, and the first page that it then holds.
  int64_t begin_at(int64_t b, int64_t stored) const noexcept;
  int64_t first_page_at(int64_t b, int64_t stored) const noexcept;
  void ensure_table(int64_t n_lines, int64_t columns);
  int64_t held_pages() const noexcept;
  int64_t exclusive_pages() const noexcept;
  void release_all() noexcept;
  bool must_copy(const Append& a, int64_t b) const noexcept;
  int64_t freed_by(const Append& a, int64_t b) const noexcept;
  int64_t copy_partial(const Append& a, int64_t b) noexcept;
  void keep_from(int64_t b, int64_t begin) noexcept;
  void take_until(int64_t b, int64_t end) noexcept;
  // Writes the tokens at span(b) of each row; rows() count them already.
  template <class SpanOf>
  void write_on_device(DeviceQueue& queue, const Append& a, const kvp_tensor& k, const kvp_tensor& v,
                       const SpanOf& span) const noexcept;
  template <class SpanOf>
  void write(const Append& a, const kvp_tensor& k, const kvp_tensor& v, const kvp_host_parallel* parallel,
             const SpanOf& span) const noexcept;

  std::unique_ptr<PageStore> store_;
  const int64_t window_;
  const uint64_t owner_;
  int64_t rollback_ = 0;
  Rows rows_;
  std::vector<Held> held_;  // [batch]
  Block table_;             // Page* [table_lines_, columns_]
  int64_t n_lines_ = 0;     // lines the table must have when there is one: the largest batch so far
  int64_t table_lines_ = 0, columns_ = 0;
  int64_t kept_pages_ = 0;  // held even when free: reserved, or left by reset
  Rows next_rows_;          // between prepare_gather and gather
  std::vector<Held> next_held_;
};

// set(to) for an append of `to` rows, in a cache that has `from`; set(from) if that fails.
template <class Set>
void change_batch(int64_t from, int64_t to, bool empty, Set&& set) {
  if (to == from) return;
  if (!empty) fail(KVP_INVALID_ARGUMENT, "the batch is ", to, "; the cache holds ", from, " rows");
  try {
    set(to);
  } catch (...) {
    set(from);
    throw;
  }
}

// Beyond kMostTokens lies no machine's memory, and soon what products of 64 bits hold.
inline void check_reserve(int64_t batch, int64_t tokens) {
  if (batch < 0 || tokens < 0) {
    fail(KVP_INVALID_ARGUMENT, "reserve for batch ", batch, " and ", tokens, " tokens; expected 0 or more");
  }
  constexpr int64_t kMost = PagedLayer::kMostTokens;
  if (batch > kMost || tokens > kMost || (batch > 0 && tokens > kMost / batch)) {
    fail(KVP_OUT_OF_MEMORY, "reserve for batch ", batch, " and ", tokens, " tokens is more than any memory holds");
  }
}

}  // namespace kvplug::sdk
