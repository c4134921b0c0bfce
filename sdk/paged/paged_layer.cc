// SPDX-License-Identifier: Apache-2.0
#include <kvplug/sdk/paged_layer.h>

#include <cstring>
#include <map>

namespace kvplug::sdk {
namespace {

constexpr int64_t kParallelBytes = 256 << 10;  // below, waking threads costs more than the copy

// Tokens [first, first + n) of row b and `head` of `from` to places [place, place + n) of a page's head.
void copy_tokens(const kvp_tensor& from, int64_t b, int64_t head, int64_t first, int64_t n, std::byte* to,
                 int64_t place, int64_t dim, int64_t element) noexcept {
  const auto bytes = static_cast<size_t>(dim * element);
  to += place * dim * element;
  if (from.strides[2] == dim || n == 1) {
    std::memcpy(to, at(from, b, head, first), bytes * static_cast<size_t>(n));
    return;
  }
  for (int64_t i = 0; i < n; ++i, to += bytes) std::memcpy(to, at(from, b, head, first + i), bytes);
}

// Token `index` of row b of a call's tensor; it may lie outside, as long as nobody reads it.
const void* token_at(const kvp_tensor& t, int64_t b, int64_t index) noexcept {
  const int64_t offset = (b * t.strides[0] + index * t.strides[2]) * element_bytes(dtype_of(t));
  return reinterpret_cast<const void*>(reinterpret_cast<int64_t>(t.data) + offset);
}

}  // namespace

int64_t PagedLayer::most_pages(int64_t tokens, int64_t kept) noexcept {
  return std::min(PageLayout::count(tokens), PageLayout::span(kept));
}

int64_t PagedLayer::table_bytes(int64_t lines, int64_t tokens, int64_t kept) noexcept {
  return lines * columns(most_pages(tokens, kept)) * static_cast<int64_t>(sizeof(Page*));
}

PagedLayer::PagedLayer(std::unique_ptr<PageStore> store, const PagedLayer& other, uint64_t owner)
    : PagedLayer(std::move(store), other.window_, owner) {
  rollback_ = other.rollback_;
  start(other.rows_.batch());
  ensure_table(n_lines_, other.held_pages() == 0 ? 0 : other.columns_);
  std::map<const Page*, Page*> copies;  // rows of one layer go on sharing
  if (store_->adopts_by_copy()) {
    for (int64_t b = 0; b < rows_.batch(); ++b) {
      for (int64_t i = other.held(b).first; i < other.held(b).end; ++i) copies[other.entry(other.held(b), i)] = nullptr;
    }
    store_->ensure(static_cast<int64_t>(copies.size()));
  }
  for (int64_t b = 0; b < rows_.batch(); ++b) {
    const Held& from = other.held(b);
    held(b) = {from.begin, from.first, from.first, b};
    for (int64_t i = from.first; i < from.end; ++i, ++held(b).end) {
      Page* const page = other.entry(from, i);
      Page*& own = entry(held(b), i);
      if (!store_->adopts_by_copy()) {
        own = store_->adopt(*other.store_, page);
      } else if (Page*& copy = copies[page]; copy == nullptr) {
        own = copy = store_->adopt(*other.store_, page);
      } else {
        own = copy;
        own->share();
      }
    }
  }
  rows_ = other.rows_;
}

void PagedLayer::start(int64_t batch) {
  held_.assign(static_cast<size_t>(batch), Held{});
  for (int64_t b = 0; b < batch; ++b) held(b).line = b;
  rows_.start(batch);
  n_lines_ = std::max(n_lines_, batch);
}

int64_t PagedLayer::first_slot() const noexcept {
  if (window_ == 0 || rows_.batch() == 0) return 0;
  int64_t shortest = kMostTokens;
  for (int64_t b = 0; b < rows_.batch(); ++b) shortest = std::min(shortest, rows_[b].seen);
  return std::max<int64_t>(0, shortest - window_ + 1);
}

Page* PagedLayer::partial(int64_t b) const noexcept {
  const int64_t stored = rows_[b].stored(), page = stored / kBlockTokens;
  const bool there = stored % kBlockTokens != 0 && page >= held(b).first && page < held(b).end;
  return there ? entry(held(b), page) : nullptr;
}

int64_t PagedLayer::begin_at(int64_t b, int64_t stored) const noexcept {
  return std::max(held(b).begin, stored - kept());
}

int64_t PagedLayer::first_page_at(int64_t b, int64_t stored) const noexcept {
  const int64_t begin = begin_at(b, stored);
  return begin == stored ? PageLayout::count(stored) : begin / kBlockTokens;
}

// Makes room for `n_lines` rows of `columns` pages.
void PagedLayer::ensure_table(int64_t n_lines, int64_t columns) {
  if (columns <= columns_ && n_lines <= table_lines_) return;
  const int64_t lines = std::max(n_lines, table_lines_), wide = std::max(columns, columns_);
  if (lines * wide == 0) return;
  Block table(host_memory(owner_, KVP_PURPOSE_OTHER, static_cast<uint64_t>(lines * wide) * sizeof(Page*)));
  auto* to = reinterpret_cast<Page**>(table.data());
  for (int64_t b = 0; b < rows_.batch(); ++b) {
    for (int64_t i = held(b).first; i < held(b).end; ++i) to[held(b).line * wide + i % wide] = entry(held(b), i);
  }
  table_ = std::move(table);
  table_lines_ = lines;
  columns_ = wide;
}

// True if row b will find its partial page shared when it writes. Rows are served in order and each that copies lets go
// of the page, so the last of those that write may keep it if nobody else holds it.
bool PagedLayer::must_copy(const Append& a, int64_t b) const noexcept {
  const auto written = [&](int64_t row) { return a.stored(row) > 0 ? partial(row) : nullptr; };
  const Page* page = written(b);
  if (page == nullptr || page->exclusive()) return false;
  int64_t writers = 0, last = b;
  for (int64_t row = 0; row < a.batch; ++row) {
    if (written(row) != page) continue;
    ++writers;
    last = row;
  }
  return b != last || page->holders() > writers;
}

// Pages that become free when row b gives up those that the append pushes out of its window. One that several rows
// give up counts for the first of them.
int64_t PagedLayer::freed_by(const Append& a, int64_t b) const noexcept {
  const auto gives_up = [&](int64_t row, int64_t page) {
    return a.stored(row) > 0 && page >= held(row).first &&
           page < std::min(held(row).end, first_page_at(row, rows_[row].stored() + a.stored(row)));
  };
  int64_t freed = 0;
  for (int64_t i = held(b).first; gives_up(b, i); ++i) {
    const Page* page = entry(held(b), i);
    int64_t givers = 0, first = b;
    for (int64_t row = a.batch; row-- > 0;) {
      if (!gives_up(row, i) || entry(held(row), i) != page) continue;
      ++givers;
      first = row;
    }
    if (first == b && page->holders() == givers) ++freed;
  }
  return freed;
}

void PagedLayer::prepare_append(const Append& a, bool may_allocate) {
  int64_t copies = 0, fresh = 0, freed = 0, wide = 0;
  for (int64_t b = 0; b < a.batch; ++b) {
    if (a.stored(b) == 0) continue;
    const int64_t after = rows_[b].stored() + a.stored(b), most = most_pages(after, kept());
    wide = std::max(wide, columns(most));
    const int64_t first = first_page_at(b, after), end = PageLayout::count(after);
    fresh += std::max<int64_t>(0, end - std::max(held(b).end, first));
    fresh += std::max<int64_t>(0, most - (end - first));  // the ring's spare page
    if (window_ > 0) freed += freed_by(a, b);
    if (!must_copy(a, b)) continue;
    ++copies;
    if (rows_[b].stored() / kBlockTokens < first) ++freed;
  }
  const int64_t pages = std::max(copies, copies + fresh - freed);
  const bool table_grows = wide > 0 && (wide > columns_ || n_lines_ > table_lines_);
  if (!may_allocate && (table_grows || pages > store_->free_pages())) {
    fail(KVP_INVALID_STATE, "a prepared call must not allocate, but ", pages, " pages are needed and ",
         store_->free_pages(), " are free: reserve more tokens first");
  }
  if (wide > 0) ensure_table(n_lines_, wide);
  store_->ensure(pages);
}

// Replaces a shared partial page that row b is about to write into. Returns the bytes copied.
int64_t PagedLayer::copy_partial(const Append& a, int64_t b) noexcept {
  Page* shared = a.stored(b) > 0 ? partial(b) : nullptr;
  if (shared == nullptr || shared->exclusive()) return 0;
  const PageLayout& p = layout();
  const int64_t used = rows_[b].stored() % kBlockTokens;
  Page* own = store_->take();
  const KvBlock from = p.block(store_->data(*shared)), to = p.block(store_->data(*own));
  if (DeviceQueue* const queue = store_->queue()) {
    const auto copy = [&](const void* source, const void* target, int64_t dim) {
      queue->run(&Device::copy,
                 DeviceCopy{const_cast<void*>(target), source, static_cast<size_t>(used * dim * p.element),
                            static_cast<size_t>(kBlockTokens * dim * p.element), static_cast<size_t>(p.kv_heads)});
    };
    copy(from.k, to.k, p.key_dim);
    copy(from.v, to.v, p.value_dim);
    entry(held(b), rows_[b].stored() / kBlockTokens) = own;
    store_->release(shared);
    return used * p.token_bytes();
  }
  for (int64_t head = 0; head < p.kv_heads; ++head) {
    const auto copy = [&](const void* source, const void* target, int64_t stride, int64_t dim) {
      const int64_t at = head * stride * p.element;
      std::memcpy(static_cast<std::byte*>(const_cast<void*>(target)) + at, static_cast<const std::byte*>(source) + at,
                  static_cast<size_t>(used * dim * p.element));
    };
    copy(from.k, to.k, from.k_head_stride, p.key_dim);
    copy(from.v, to.v, from.v_head_stride, p.value_dim);
  }
  entry(held(b), rows_[b].stored() / kBlockTokens) = own;
  store_->release(shared);
  return used * p.token_bytes();
}

void PagedLayer::keep_from(int64_t b, int64_t begin) noexcept {
  Held& row = held(b);
  const int64_t stored = rows_[b].stored();
  const int64_t first = begin == stored ? row.end : std::min(row.end, begin / kBlockTokens);
  for (; row.first < first; ++row.first) store_->release(entry(row, row.first));
  row.begin = begin;
  if (row.first == row.end) row.first = row.end = begin / kBlockTokens;
}

void PagedLayer::take_until(int64_t b, int64_t end) noexcept {
  Held& row = held(b);
  for (; row.end < end; ++row.end) entry(row, row.end) = store_->take();
}

// As write(), in batches of pieces of pages; nothing is allocated.
template <class SpanOf>
void PagedLayer::write_on_device(DeviceQueue& queue, const Append& a, const kvp_tensor& k, const kvp_tensor& v,
                                 const SpanOf& span) const noexcept {
  const PageLayout& p = layout();
  DeviceSegment segments[64];
  int64_t n = 0;
  const auto flush = [&] {
    if (n > 0) queue.run(&Device::append, segments, n, k, v);
    n = 0;
  };
  for (int64_t b = 0; b < a.batch; ++b) {
    const Span at = span(b);
    const int64_t shift = a.padding(b) - (rows_[b].stored() - a.stored(b));
    for (int64_t position = at.from; position < at.to;) {
      const int64_t place = position % kBlockTokens, count = std::min(at.to - position, kBlockTokens - place);
      std::byte* const data = store_->data(*entry(held(b), position / kBlockTokens));
      segments[n++] = {data + place * p.key_dim * p.element, data + p.key_bytes() + place * p.value_dim * p.element, b,
                       position + shift, count};
      if (n == 64) flush();
      position += count;
    }
  }
  flush();
}

template <class SpanOf>
void PagedLayer::write(const Append& a, const kvp_tensor& k, const kvp_tensor& v, const kvp_host_parallel* parallel,
                       const SpanOf& span) const noexcept {
  const PageLayout& p = layout();
  const auto write_head = [&](int64_t b, int64_t head) {
    const Span at = span(b);
    // The call's token at row position 0.
    const int64_t shift = a.padding(b) - (rows_[b].stored() - a.stored(b));
    for (int64_t position = at.from; position < at.to;) {
      Page& page = *entry(held(b), position / kBlockTokens);
      const int64_t place = position % kBlockTokens, n = std::min(at.to - position, kBlockTokens - place);
      std::byte* const data = store_->data(page);
      copy_tokens(k, b, head, position + shift, n, data + head * kBlockTokens * p.key_dim * p.element, place, p.key_dim,
                  p.element);
      copy_tokens(v, b, head, position + shift, n, data + p.key_bytes() + head * kBlockTokens * p.value_dim * p.element,
                  place, p.value_dim, p.element);
      position += n;
    }
  };
  for (int64_t b = 0; b < a.batch; ++b) {
    const Span at = span(b);
    if (at.from >= at.to) continue;
    for (int64_t i = at.from / kBlockTokens; i < PageLayout::count(at.to); ++i) entry(held(b), i)->written = true;
  }
  if (DeviceQueue* const queue = store_->queue()) return write_on_device(*queue, a, k, v, span);
  const bool large = a.batch * a.tokens * p.token_bytes() >= kParallelBytes;
  parallel_for(large ? parallel : nullptr, a.batch * p.kv_heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) write_head(i / p.kv_heads, i % p.kv_heads);
  });
}

int64_t PagedLayer::begin_append(const Append& a, const kvp_tensor& k, const kvp_tensor& v,
                                 const kvp_host_parallel* parallel) noexcept {
  int64_t copied = 0;
  for (int64_t b = 0; b < a.batch; ++b) {
    copied += copy_partial(a, b);
    if (window_ == 0) take_until(b, PageLayout::count(rows_[b].stored() + a.stored(b)));
  }
  rows_.append(a);
  write(a, k, v, parallel, [&](int64_t b) {
    const int64_t stored = rows_[b].stored();
    return Span{stored - a.stored(b), std::min(stored, held(b).end * kBlockTokens)};
  });
  return copied;
}

void PagedLayer::end_append(const Append& a, const kvp_tensor& k, const kvp_tensor& v,
                            const kvp_host_parallel* parallel) noexcept {
  if (window_ == 0) return;
  // All rows let go before any takes: what is free then is what prepare_append counted on.
  for (int64_t b = 0; b < a.batch; ++b) {
    Held& row = held(b);
    const int64_t stored = rows_[b].stored();
    if (a.stored(b) > 0) keep_from(b, begin_at(b, stored));
    row.fill = row.begin == stored ? stored : std::max(stored - a.stored(b), row.end * kBlockTokens);
  }
  for (int64_t b = 0; b < a.batch; ++b) {
    if (held(b).fill < rows_[b].stored()) take_until(b, PageLayout::count(rows_[b].stored()));
  }
  write(a, k, v, parallel, [&](int64_t b) { return Span{held(b).fill, rows_[b].stored()}; });
  trim();
}

void PagedLayer::cancel_append(const Append& a) noexcept {
  for (int64_t b = 0; b < a.batch; ++b) truncate(b, rows_[b].seen - a.taken(b));
  trim();
}

int64_t PagedLayer::blocks(int64_t b, const Append& a, const kvp_tensor* k, const kvp_tensor* v,
                           KvBlock* to) const noexcept {
  const PageLayout& p = layout();
  const int64_t stored = rows_[b].stored(), first = first_block(b), n = PageLayout::count(stored) - first;
  if (begin(b) == stored) return 0;
  const int64_t shift = k == nullptr ? 0 : a.padding(b) - (stored - a.stored(b));
  for (int64_t i = first; i < first + n; ++i) {
    if (i >= held(b).first && i < held(b).end) {
      *to++ = p.block(store_->data(*entry(held(b), i)));
    } else {
      const int64_t token = i * kBlockTokens + shift;
      *to++ = {token_at(*k, b, token), token_at(*v, b, token), k->strides[1],
               k->strides[2],          v->strides[1],          v->strides[2]};
    }
  }
  return n;
}

int64_t PagedLayer::all_blocks(int64_t b, KvBlock* to) const noexcept {
  const Held& row = held(b);
  for (int64_t i = row.first; i < row.end; ++i) *to++ = layout().block(store_->data(*entry(row, i)));
  return row.end - row.first;
}

int64_t PagedLayer::reserve(int64_t batch, int64_t tokens) {
  const int64_t lines = std::max(n_lines_, batch), most = most_pages(tokens, kept());
  const int64_t kept_pages = std::max(kept_pages_, batch * most);
  ensure_table(lines, columns(most));
  try {
    store_->ensure(kept_pages - exclusive_pages());
  } catch (...) {
    trim();
    throw;
  }
  n_lines_ = lines;
  return std::exchange(kept_pages_, kept_pages);
}

void PagedLayer::unreserve(int64_t kept_pages) noexcept {
  kept_pages_ = kept_pages;
  trim();
}

// The first new row that wants an old one gets its line; others with the same wish get a line of their own.
void PagedLayer::prepare_gather(const int64_t* src_rows, int64_t n, bool may_allocate) {
  const int64_t n_lines = std::max(n_lines_, n);
  if (!may_allocate && table_lines_ > 0 && n_lines > table_lines_) {
    fail(KVP_INVALID_STATE, "a prepared call must not allocate, but the batch grows to ", n, " rows from ",
         table_lines_, ": reserve a larger batch first");
  }
  next_rows_ = rows_.gathered(src_rows, n);
  next_held_.assign(static_cast<size_t>(n), Held{});
  std::vector<char> taken(static_cast<size_t>(n_lines), 0);
  for (int64_t i = 0; i < n; ++i) {
    Held& row = next_held_[static_cast<size_t>(i)];
    row.line = -1;
    if (src_rows[i] < 0 || src_rows[i] >= rows_.batch()) continue;
    row = held(src_rows[i]);
    if (std::exchange(taken[static_cast<size_t>(row.line)], 1) != 0) row.line = -1;
  }
  int64_t free_line = 0;
  for (Held& row : next_held_) {
    if (row.line >= 0) continue;
    while (taken[static_cast<size_t>(free_line)] != 0) ++free_line;
    row.line = free_line++;
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
    const Held& row = next_held_[static_cast<size_t>(i)];
    if (row.line == held(b).line) continue;
    for (int64_t page = row.first; page < row.end; ++page) {
      entry(row, page) = entry(held(b), page);
      entry(row, page)->share();
    }
  }
  std::swap(rows_, next_rows_);
  std::swap(held_, next_held_);
  trim();
}

bool PagedLayer::can_truncate(int64_t b, int64_t seen) const noexcept {
  const Rows::Row row = rows_[b];
  const int64_t stored = std::max<int64_t>(0, seen - row.pad);
  if (seen >= row.seen || stored == row.stored() || stored == 0 || window_ == 1) return true;
  return window_ == 0 || held(b).begin <= std::max<int64_t>(0, stored - (window_ - 1));
}

void PagedLayer::truncate(int64_t b, int64_t seen) noexcept {
  rows_.truncate(b, seen);
  Held& row = held(b);
  const int64_t stored = rows_[b].stored(), end = PageLayout::count(stored);
  while (row.end > std::max(row.first, end)) {
    --row.end;
    store_->release(entry(row, row.end));
  }
  row.begin = std::min(row.begin, stored);
  if (row.end == row.first) row.first = row.end = row.begin / kBlockTokens;
}

void PagedLayer::prepare_refill(const int64_t* rows, const int64_t* seens, const int64_t* begins, int64_t n,
                                bool may_allocate) {
  int64_t pages = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t b = rows[i];
    pages += PageLayout::count(seens[i] - rows_[b].pad) - begins[i] / kBlockTokens;
    for (int64_t page = held(b).first; page < held(b).end; ++page) pages -= entry(held(b), page)->exclusive() ? 1 : 0;
  }
  if (!may_allocate && pages > store_->free_pages()) {
    fail(KVP_INVALID_STATE, "a prepared call must not allocate, but ", pages, " pages are needed and ",
         store_->free_pages(), " are free: reserve more tokens first");
  }
  store_->ensure(pages);
}

void PagedLayer::refill(int64_t b, int64_t seen, const kvp_tensor& k, const kvp_tensor& v) noexcept {
  const int64_t tokens = k.shape[2];
  Held& row = held(b);
  for (; row.first < row.end; ++row.first) store_->release(entry(row, row.first));
  rows_.truncate(b, seen);
  const int64_t stored = rows_[b].stored();
  row.begin = stored - tokens;
  row.first = row.end = row.begin / kBlockTokens;
  take_until(b, PageLayout::count(stored));
  kvp_tensor k_row = k, v_row = v;
  k_row.strides[0] = v_row.strides[0] = 0;
  const Append all{rows_.batch(), tokens, nullptr, nullptr};
  write(all, k_row, v_row, nullptr, [&](int64_t at) { return at == b ? Span{row.begin, stored} : Span{0, 0}; });
}

void PagedLayer::drop_record() noexcept {
  if (window_ == 0) return;
  for (int64_t b = 0; b < rows_.batch(); ++b) {
    keep_from(b, std::max(held(b).begin, rows_[b].stored() - (window_ - 1)));
  }
}

int64_t PagedLayer::held_pages() const noexcept {
  int64_t n = 0;
  for (int64_t b = 0; b < rows_.batch(); ++b) n += held(b).end - held(b).first;
  return n;
}

int64_t PagedLayer::exclusive_pages() const noexcept {
  int64_t n = 0;
  for (int64_t b = 0; b < rows_.batch(); ++b) {
    for (int64_t i = held(b).first; i < held(b).end; ++i) n += entry(held(b), i)->exclusive() ? 1 : 0;
  }
  return n;
}

// Of what was reserved, shared pages do not count: writing into one needs another. A ring keeps the page that it will
// need sooner or later.
void PagedLayer::trim() noexcept {
  if (!store_->gives_back() || store_->free_pages() == 0) return;
  int64_t spare = 0;
  if (window_ > 0) {
    for (int64_t b = 0; b < rows_.batch(); ++b) {
      spare += std::max<int64_t>(0, most_pages(rows_[b].stored(), kept()) - (held(b).end - held(b).first));
    }
  }
  if (store_->free_pages() <= spare || store_->free_pages() + held_pages() <= kept_pages_) return;
  store_->trim(std::max(spare, kept_pages_ == 0 ? 0 : kept_pages_ - exclusive_pages()));
}

void PagedLayer::release_all() noexcept {
  for (int64_t b = 0; b < rows_.batch(); ++b) truncate(b, 0);
}

void PagedLayer::reset() noexcept {
  release_all();
  start(0);
  kept_pages_ = std::max(kept_pages_, store_->free_pages());
}

int64_t PagedLayer::stored_tokens() const noexcept {
  int64_t n = 0;
  for (int64_t b = 0; b < rows_.batch(); ++b) n += rows_[b].stored() - held(b).begin;
  return n;
}

}  // namespace kvplug::sdk
