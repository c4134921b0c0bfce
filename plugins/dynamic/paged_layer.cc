// SPDX-License-Identifier: Apache-2.0
#include "paged_layer.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace kvplug::dynamic {
namespace {

using sdk::kBlockTokens;
using sdk::KvBlock;
using sdk::Page;
using sdk::PageLayout;

constexpr int64_t kParallelBytes = 256 << 10;  // below, waking threads costs more than the copy

int64_t columns_for(int64_t tokens) noexcept {
  const int64_t step = PagedLayer::kColumnStep;
  return (PageLayout::count(tokens) + step - 1) / step * step;
}

// Tokens [first, first + n) of row b and `head` of `from` to places [place, place + n) of a page's head.
void copy_tokens(const kvp_tensor& from, int64_t b, int64_t head, int64_t first, int64_t n, std::byte* to,
                 int64_t place, int64_t dim, int64_t element) noexcept {
  const auto bytes = static_cast<size_t>(dim * element);
  to += place * dim * element;
  if (from.strides[2] == dim || n == 1) {
    std::memcpy(to, sdk::at(from, b, head, first), bytes * static_cast<size_t>(n));
    return;
  }
  for (int64_t i = 0; i < n; ++i, to += bytes) std::memcpy(to, sdk::at(from, b, head, first + i), bytes);
}

}  // namespace

int64_t PagedLayer::table_bytes(int64_t lines, int64_t tokens) noexcept {
  return lines * columns_for(tokens) * static_cast<int64_t>(sizeof(KvBlock));
}

PagedLayer::PagedLayer(const PagedLayer& other, uint64_t owner) : PagedLayer(other.layout(), owner) {
  start(other.rows_.batch());
  int64_t columns = 0;
  for (int64_t b = 0; b < other.rows_.batch(); ++b) columns = std::max(columns, columns_for(other.rows_[b].stored()));
  ensure_table(n_lines_, columns);
  rows_ = other.rows_;
  for (int64_t b = 0; b < rows_.batch(); ++b) {
    for (int64_t i = 0; i < pages_of(b); ++i) {
      row_line(b)[i] = other.row_line(b)[i];
      Page::of(row_line(b)[i])->share();
    }
  }
}

void PagedLayer::start(int64_t batch) {
  lines_.resize(static_cast<size_t>(batch));
  std::iota(lines_.begin(), lines_.end(), int64_t{0});
  rows_.start(batch);
  n_lines_ = std::max(n_lines_, batch);
}

void PagedLayer::ensure_table(int64_t n_lines, int64_t columns) {
  columns = std::max(columns, columns_);
  n_lines = std::max(n_lines, table_lines_);
  if (columns == 0 || (columns == columns_ && n_lines == table_lines_)) return;
  const auto bytes = static_cast<uint64_t>(n_lines * columns) * sizeof(KvBlock);
  sdk::Block grown(sdk::host_memory(owner_, KVP_PURPOSE_OTHER, bytes));
  for (int64_t b = 0; b < rows_.batch(); ++b) {
    const int64_t at = lines_[static_cast<size_t>(b)];
    std::copy_n(line(at), pages_of(b), reinterpret_cast<KvBlock*>(grown.data()) + at * columns);
  }
  table_ = std::move(grown);
  columns_ = columns;
  table_lines_ = n_lines;
}

// Whether row b will find its last page shared when it writes. Rows are served in order and each that copies lets go of
// the page, so the last of those that write may keep it if nobody else holds it.
bool PagedLayer::must_copy(const sdk::Append& a, int64_t b) const noexcept {
  const auto partial = [&](int64_t row) -> Page* {
    const int64_t stored = rows_[row].stored();
    const bool writes = a.stored(row) > 0 && stored % kBlockTokens != 0;
    return writes ? Page::of(row_line(row)[stored / kBlockTokens]) : nullptr;
  };
  const Page* page = partial(b);
  if (page == nullptr || page->exclusive()) return false;
  int64_t writers = 0, last = b;
  for (int64_t row = 0; row < a.batch; ++row) {
    if (partial(row) != page) continue;
    ++writers;
    last = row;
  }
  return b != last || page->holders() > writers;
}

void PagedLayer::prepare_append(const sdk::Append& a, bool may_allocate) {
  int64_t pages = 0;
  int64_t columns = 0;
  for (int64_t b = 0; b < a.batch; ++b) {
    if (a.stored(b) == 0) continue;
    const int64_t before = rows_[b].stored();
    const int64_t after = before + a.stored(b);
    pages += PageLayout::count(after) - PageLayout::count(before);
    columns = std::max(columns, columns_for(after));
    if (must_copy(a, b)) ++pages;
  }
  const bool table_grows = columns > 0 && (columns > columns_ || n_lines_ > table_lines_);
  if (!may_allocate && (table_grows || pages > pool_.free_pages())) {
    sdk::fail(KVP_INVALID_STATE, "a prepared call must not allocate, but ", pages, " pages are needed and ",
              pool_.free_pages(), " are free: reserve more tokens first");
  }
  if (columns > 0) ensure_table(n_lines_, columns);
  pool_.ensure(pages);
}

// Gives every row the pages its new tokens go to; a shared page that is written into is replaced by a copy.
int64_t PagedLayer::take_pages(const sdk::Append& a) noexcept {
  const PageLayout& layout = pool_.layout();
  int64_t copied = 0;
  for (int64_t b = 0; b < a.batch; ++b) {
    if (a.stored(b) == 0) continue;
    const int64_t before = rows_[b].stored();
    KvBlock* blocks = row_line(b);
    if (const int64_t used = before % kBlockTokens; used != 0) {
      KvBlock& partial = blocks[before / kBlockTokens];
      Page* shared = Page::of(partial);
      if (!shared->exclusive()) {
        Page* own = pool_.take();
        for (int64_t head = 0; head < layout.kv_heads; ++head) {
          const int64_t k_at = head * kBlockTokens * layout.key_dim * layout.element;
          const int64_t v_at = head * kBlockTokens * layout.value_dim * layout.element;
          std::memcpy(own->keys() + k_at, shared->keys() + k_at,
                      static_cast<size_t>(used * layout.key_dim * layout.element));
          std::memcpy(own->values(layout) + v_at, shared->values(layout) + v_at,
                      static_cast<size_t>(used * layout.value_dim * layout.element));
        }
        copied += used * layout.token_bytes();
        partial = own->block(layout);
        pool_.release(shared);
      }
    }
    const int64_t last = PageLayout::count(before + a.stored(b));
    for (int64_t i = PageLayout::count(before); i < last; ++i) blocks[i] = pool_.take()->block(layout);
  }
  return copied;
}

void PagedLayer::write_head(const sdk::Append& a, int64_t b, int64_t head, const kvp_tensor& k,
                            const kvp_tensor& v) const noexcept {
  const PageLayout& layout = pool_.layout();
  const KvBlock* blocks = row_line(b);
  int64_t from = a.padding(b);
  int64_t position = rows_[b].stored();
  int64_t left = a.stored(b);
  while (left > 0) {
    Page* page = Page::of(blocks[position / kBlockTokens]);
    const int64_t place = position % kBlockTokens;
    const int64_t n = std::min(left, kBlockTokens - place);
    copy_tokens(k, b, head, from, n, page->keys() + head * kBlockTokens * layout.key_dim * layout.element, place,
                layout.key_dim, layout.element);
    copy_tokens(v, b, head, from, n, page->values(layout) + head * kBlockTokens * layout.value_dim * layout.element,
                place, layout.value_dim, layout.element);
    from += n;
    position += n;
    left -= n;
  }
}

int64_t PagedLayer::append(const sdk::Append& a, const kvp_tensor& k, const kvp_tensor& v,
                           const kvp_host_parallel* parallel) noexcept {
  const int64_t copied = take_pages(a);
  const int64_t heads = layout().kv_heads;
  const auto write = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) write_head(a, i / heads, i % heads, k, v);
  };
  const bool large = a.batch * a.tokens * layout().token_bytes() >= kParallelBytes;
  sdk::parallel_for(large ? parallel : nullptr, a.batch * heads, 1, write);
  rows_.append(a);
  return copied;
}

int64_t PagedLayer::reserve(int64_t batch, int64_t tokens) {
  const int64_t lines = std::max(n_lines_, batch);
  const int64_t kept = std::max(kept_pages_, batch * PageLayout::count(tokens));
  ensure_table(lines, columns_for(tokens));
  try {
    pool_.ensure(kept - exclusive_pages());
  } catch (...) {
    trim();
    throw;
  }
  n_lines_ = lines;
  return std::exchange(kept_pages_, kept);
}

void PagedLayer::unreserve(int64_t kept) noexcept {
  kept_pages_ = kept;
  trim();
}

void PagedLayer::read(std::byte* k, std::byte* v, int64_t kv_len, const kvp_host_parallel* parallel) const noexcept {
  const PageLayout& layout = pool_.layout();
  // One head of one row of K or V: [kv_len, dim].
  const auto read_head = [&](std::byte* to, int64_t b, int64_t dim, auto&& head_of_page) {
    const sdk::Rows::Row row = rows_[b];
    const int64_t token = dim * layout.element;
    std::memset(to, 0, static_cast<size_t>(row.pad * token));
    to += row.pad * token;
    for (int64_t p = 0; p < row.stored(); p += kBlockTokens) {
      const int64_t n = std::min(kBlockTokens, row.stored() - p);
      std::memcpy(to, head_of_page(Page::of(row_line(b)[p / kBlockTokens])), static_cast<size_t>(n * token));
      to += n * token;
    }
    std::memset(to, 0, static_cast<size_t>((kv_len - row.seen) * token));
  };
  const auto read_some = [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / layout.kv_heads;
      const int64_t head_bytes = i % layout.kv_heads * kBlockTokens * layout.element;
      read_head(k + i * kv_len * layout.key_dim * layout.element, b, layout.key_dim,
                [&](Page* page) { return page->keys() + head_bytes * layout.key_dim; });
      read_head(v + i * kv_len * layout.value_dim * layout.element, b, layout.value_dim,
                [&](Page* page) { return page->values(layout) + head_bytes * layout.value_dim; });
    }
  };
  const bool large = rows_.batch() * kv_len * layout.token_bytes() >= kParallelBytes;
  sdk::parallel_for(large ? parallel : nullptr, rows_.batch() * layout.kv_heads, 1, read_some);
}

// The first new row that wants an old one gets its line; others with the same wish get a line of their own.
void PagedLayer::prepare_gather(const int64_t* src_rows, int64_t n, bool may_allocate) {
  const int64_t n_lines = std::max(n_lines_, n);
  if (!may_allocate && table_lines_ > 0 && n_lines > table_lines_) {
    sdk::fail(KVP_INVALID_STATE, "a prepared call must not allocate, but the batch grows to ", n, " rows from ",
              table_lines_, ": reserve a larger batch first");
  }
  next_rows_ = rows_.gathered(src_rows, n);
  next_lines_.assign(static_cast<size_t>(n), -1);
  std::vector<char> taken(static_cast<size_t>(n_lines), 0);
  for (int64_t i = 0; i < n; ++i) {
    if (src_rows[i] < 0 || src_rows[i] >= rows_.batch()) continue;
    const int64_t old = lines_[static_cast<size_t>(src_rows[i])];
    if (std::exchange(taken[static_cast<size_t>(old)], 1) == 0) next_lines_[static_cast<size_t>(i)] = old;
  }
  int64_t free_line = 0;
  for (int64_t& at : next_lines_) {
    if (at >= 0) continue;
    while (taken[static_cast<size_t>(free_line)] != 0) ++free_line;
    at = free_line++;
  }
  if (table_lines_ > 0) ensure_table(n_lines, columns_);
  n_lines_ = n_lines;
}

void PagedLayer::gather(const int64_t* src_rows, int64_t n) noexcept {
  for (int64_t b = 0; b < rows_.batch(); ++b) {
    if (std::find(src_rows, src_rows + n, b) == src_rows + n) truncate(b, 0);
  }
  for (int64_t i = 0; i < n; ++i) {
    const int64_t b = src_rows[i];
    if (b < 0 || b >= rows_.batch()) continue;
    const int64_t at = next_lines_[static_cast<size_t>(i)];
    if (at == lines_[static_cast<size_t>(b)]) continue;
    for (int64_t p = 0; p < pages_of(b); ++p) {
      line(at)[p] = row_line(b)[p];
      Page::of(line(at)[p])->share();
    }
  }
  std::swap(rows_, next_rows_);
  std::swap(lines_, next_lines_);
  trim();
}

void PagedLayer::truncate(int64_t b, int64_t seen) noexcept {
  const int64_t before = pages_of(b);
  rows_.truncate(b, seen);
  for (int64_t i = pages_of(b); i < before; ++i) pool_.release(Page::of(row_line(b)[i]));
}

int64_t PagedLayer::exclusive_pages() const noexcept {
  int64_t n = 0;
  for (int64_t b = 0; b < rows_.batch(); ++b) {
    for (int64_t i = 0; i < pages_of(b); ++i) n += Page::of(row_line(b)[i])->exclusive() ? 1 : 0;
  }
  return n;
}

// Shared pages do not count as kept: writing into one needs another.
void PagedLayer::trim() noexcept {
  if (pool_.free_pages() == 0) return;
  int64_t in_rows = 0;
  for (int64_t b = 0; b < rows_.batch(); ++b) in_rows += pages_of(b);
  if (pool_.free_pages() + in_rows <= kept_pages_) return;
  pool_.trim(kept_pages_ == 0 ? 0 : std::max<int64_t>(0, kept_pages_ - exclusive_pages()));
}

void PagedLayer::release_all() noexcept {
  for (int64_t b = 0; b < rows_.batch(); ++b) truncate(b, 0);
}

void PagedLayer::reset() noexcept {
  release_all();
  rows_.start(0);
  lines_.clear();
  kept_pages_ = std::max(kept_pages_, pool_.free_pages());
}

int64_t PagedLayer::stored_tokens() const noexcept {
  int64_t n = 0;
  for (int64_t b = 0; b < rows_.batch(); ++b) n += rows_[b].stored();
  return n;
}

}  // namespace kvplug::dynamic
