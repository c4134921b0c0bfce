// SPDX-License-Identifier: Apache-2.0
#include "layer.h"

#include <atomic>
#include <cstring>

namespace kvplug::quantized {

using sdk::Append;
using sdk::fail;

Layer::Layer(const LayerForm& form, const Form& all, uint64_t owner, const std::shared_ptr<Engine>& engine)
    : form_(form),
      sinks_tokens_(all.options.sinks),
      owner_(owner),
      engine_(engine),
      exact_(engine->pages(form.layout, owner), all.ring_base(form) + 1, owner),
      sinks_(all.options.sinks == 0 ? nullptr
                                    : std::make_unique<sdk::PagedLayer>(engine->pages(form.layout, owner), 0, owner)),
      pages_(form.page, owner, engine) {
  set_rollback(all);
}

Layer::Layer(const Layer& other, uint64_t owner, const std::shared_ptr<Engine>& engine)
    : form_(other.form_),
      sinks_tokens_(other.sinks_tokens_),
      owner_(owner),
      engine_(engine),
      exact_(engine->pages(form_.layout, owner), other.exact_, owner),
      sinks_(!other.sinks_
                 ? nullptr
                 : std::make_unique<sdk::PagedLayer>(engine->pages(form_.layout, owner), *other.sinks_, owner)),
      pages_(form_.page, owner, engine),
      n_lines_(other.rows().batch()),
      sink_counts_(other.sink_counts_) {
  int64_t held = 0;
  for (const Row& row : other.rows_) held += row.end - row.first;
  if (held > 0) ensure_table(n_lines_, other.columns_);
  rows_ = other.rows_;
  for (int64_t b = 0; b < rows().batch(); ++b) {
    for (int64_t i = row(b).first; i < row(b).end; ++i) {
      entry(b, i) = other.entry(b, i);
      entry(b, i)->share();
    }
  }
}

Layer::~Layer() {
  for (int64_t b = 0; b < static_cast<int64_t>(rows_.size()); ++b) drop_pages(b);
}

void Layer::set_rollback(const Form& all) noexcept { exact_.set_rollback(all.ring_rollback(form_)); }

void Layer::start(int64_t batch) {
  rows_.assign(static_cast<size_t>(batch), Row{});
  sink_counts_.assign(static_cast<size_t>(batch), 0);
  exact_.start(batch);
  if (sinks_) sinks_->start(batch);
  n_lines_ = std::max(n_lines_, batch);
}

int64_t Layer::first_slot() const noexcept {
  if (form_.window == 0 || rows().batch() == 0) return 0;
  int64_t shortest = sdk::PagedLayer::kMostTokens;
  for (int64_t b = 0; b < rows().batch(); ++b) shortest = std::min(shortest, rows()[b].seen);
  return std::max<int64_t>(0, shortest - form_.window + 1);
}

void Layer::ensure_table(int64_t lines, int64_t columns) {
  if (columns <= columns_ && lines <= lines_) return;
  const int64_t tall = std::max(lines, lines_), wide = std::max(columns, columns_);
  if (tall * wide == 0) return;
  sdk::Block table(sdk::host_memory(owner_, KVP_PURPOSE_OTHER, static_cast<uint64_t>(tall * wide) * sizeof(void*)));
  auto* to = reinterpret_cast<PackedPage**>(table.data());
  for (int64_t b = 0; b < static_cast<int64_t>(rows_.size()); ++b) {
    for (int64_t i = row(b).first; i < row(b).end; ++i) to[b * wide + i % wide] = entry(b, i);
  }
  table_ = std::move(table);
  lines_ = tall;
  columns_ = wide;
}

// The part of an append that goes to the sinks.
Append Layer::sink_append(const Append& a) noexcept {
  for (int64_t b = 0; b < a.batch; ++b) {
    const int64_t room = sinks_tokens_ - sinks_->rows()[b].stored();
    sink_counts_[static_cast<size_t>(b)] = a.padding(b) + std::min(a.stored(b), room);
  }
  return {a.batch, a.tokens, a.pad, sink_counts_.data()};
}

void Layer::prepare_append(const Form& all, const Append& a, bool may_allocate) {
  exact_.prepare_append(a, may_allocate);
  if (sinks_) sinks_->prepare_append(sink_append(a), may_allocate);
  int64_t pages = 0, wide = 0;
  for (int64_t b = 0; b < a.batch; ++b) {
    Row& row = at(b);
    const int64_t after = rows()[b].stored() + a.stored(b);
    row.next = a.stored(b) > 0 ? std::max(row.packed, all.packed(form_, after)) : row.packed;
    if (row.next == row.packed) continue;
    int64_t first = 0, end = 0;
    all.page_range(form_, begin_at(all, b, after), row.next, first, end);
    // New pages come into the table when the old ones have left it.
    wide =
        std::max({wide, sdk::PagedLayer::columns(all.most_pages(form_, after)), sdk::PagedLayer::columns(end - first)});
    // A window may have let go of the page that is partly filled: its next blocks go to a new one.
    const int64_t kept = std::max<int64_t>(0, std::min(row.end, end) - std::max(row.first, first));
    pages += std::max<int64_t>(0, end - first - kept);
    const int64_t partial = row.packed / form_.page_tokens;
    const bool writes =
        row.packed % form_.page_tokens != 0 && partial >= std::max(first, row.first) && partial < row.end;
    if (writes && !entry(b, partial)->exclusive()) ++pages;
  }
  const bool table_grows = wide > 0 && (wide > columns_ || n_lines_ > lines_);
  if (!may_allocate && (table_grows || pages > pages_.free_pages())) {
    fail(KVP_INVALID_STATE, "a prepared call must not allocate, but ", pages, " packed pages are needed and ",
         pages_.free_pages(), " are free: reserve more tokens first");
  }
  if (wide > 0) ensure_table(n_lines_, wide);
  pages_.ensure(pages);
}

void Layer::parts_of(const Side& side, bool keys, PackedPage& page, int64_t first, int64_t tokens,
                     kvp_qpart* to) const noexcept {
  const uint32_t at = keys ? 0 : form_.k.n_parts;
  for (uint32_t i = 0; i < side.n_parts; ++i) {
    to[i] = side.parts[i];
    if ((to[i].flags & KVP_QPART_SHARED) != 0) {
      to[i].t.data = page.parts[at + i];
      continue;
    }
    to[i].t.data = static_cast<std::byte*>(page.parts[at + i]) +
                   first / side.token_block * to[i].t.strides[2] * (to[i].t.dtype_bits / 8 * to[i].t.dtype_lanes);
    to[i].t.shape[2] = tokens / side.token_block;
  }
}

template <class F>
void Layer::each_shared(PackedPage& page, F&& f) const {
  int64_t at = 0;
  for (const Side* side : {&form_.k, &form_.v}) {
    const uint32_t first = side == &form_.k ? 0 : form_.k.n_parts;
    for (uint32_t i = 0; i < side->n_parts; ++i) {
      const kvp_tensor& t = side->parts[i].t;
      if ((side->parts[i].flags & KVP_QPART_SHARED) == 0) continue;
      const int64_t bytes = t.shape[1] * t.shape[3] * (t.dtype_bits / 8 * t.dtype_lanes);
      f(page.parts[first + i], at, static_cast<size_t>(bytes));
      at += bytes;
    }
  }
}

Layer::Packed Layer::pack(const Form& all, const Append& a, const sdk::KvBlock* const* blocks, const kvp_call& call,
                          std::byte* staging, const Scratch& scratch) {
  struct Run {
    int64_t b, from, tokens;  // from: counted from the row's first packed token
    PackedPage* page;
    bool keep_shared;
  };
  std::vector<Run> runs;
  int64_t first_runs = 0;  // of rows whose SHARED parts they make: before all others
  Packed done;
  for (int64_t b = 0; b < a.batch; ++b) {
    Row& row = at(b);
    if (row.next == row.packed) continue;
    int64_t first = 0, end = 0;
    all.page_range(form_, begin_at(all, b, rows()[b].stored()), row.next, first, end);
    const int64_t from = std::max(row.packed, first * form_.page_tokens);
    PackedPage* page = nullptr;
    for (int64_t at = from; first < end && at < row.next;) {
      const int64_t index = at / form_.page_tokens, page_end = (index + 1) * form_.page_tokens;
      if (at == from || at % form_.page_tokens == 0) {
        page = index >= row.first && index < row.end ? entry(b, index) : nullptr;
        if (page == nullptr || !page->exclusive()) {
          page = page == nullptr ? pages_.take() : pages_.take_copy(*page);
          fresh_.push_back({b, index, page});
        }
      }
      const int64_t n = std::min({form_.run_tokens, page_end - at, row.next - at});
      const bool makes = form_.shared_bytes > 0 && (row.packed == 0 || !row.shared) && at == from;
      runs.push_back({b, at, n, page, form_.shared_bytes > 0 && !makes});
      if (makes) std::swap(runs[static_cast<size_t>(first_runs++)], runs.back());
      at += n;
    }
    done.tokens += static_cast<uint64_t>(row.next - row.packed);
    done.again += static_cast<uint64_t>(
        std::max<int64_t>(0, std::min(sinks_tokens_ + row.next, row.again) - (sinks_tokens_ + row.packed)));
  }
  if (runs.empty()) return done;

  const sdk::PageLayout& p = form_.layout;
  std::atomic<int32_t> failed{KVP_OK};
  char text[256] = "";
  const auto side = [&](const Run& run, const Side& s, bool keys, std::byte* to, void* workspace) {
    const kvp_tensor in = engine_->tensor(to, all.dtype, {1, p.kv_heads, run.tokens, s.dim});
    const int64_t position = sinks_tokens_ + run.from;
    engine_->show(blocks[run.b], exact_.first_block(run.b), position, position + run.tokens, keys, in);
    if (all.options.hadamard) engine_->convert(in, in, true);
    kvp_qpart parts[KVP_MAX_PARTS];
    parts_of(s, keys, *run.page, run.from % form_.page_tokens, run.tokens, parts);
    char words[256] = "";
    kvp_error err{sizeof err, 0, 0, words, sizeof words, 0};
    const kvp_status status =
        s.handle.iface->quantize(s.handle.self, &call, &in, run.keep_shared ? KVP_Q_KEEP_SCALE : 0, parts, s.n_parts,
                                 s.workspace == 0 ? nullptr : workspace, &err);
    int32_t expected = KVP_OK;
    if (status != KVP_OK && failed.compare_exchange_strong(expected, status)) std::memcpy(text, words, sizeof text);
  };
  struct Job {
    decltype(side)* body;
    const Run* runs;
    const LayerForm* form;
    std::byte* staging;
    int64_t worker_bytes, staging_bytes;
  };
  Job job{&side, runs.data(), &form_, staging, scratch.staging_bytes + scratch.workspace, scratch.staging_bytes};
  const auto piece = [](void* arg, int64_t begin, int64_t end, int32_t worker) {
    const Job& all_runs = *static_cast<Job*>(arg);
    std::byte* const own = all_runs.staging + worker * all_runs.worker_bytes;
    for (int64_t i = begin; i < end; ++i) {
      const Run& run = all_runs.runs[i];
      (*all_runs.body)(run, all_runs.form->k, true, own, own + all_runs.staging_bytes);
      (*all_runs.body)(run, all_runs.form->v, false, own, own + all_runs.staging_bytes);
    }
  };
  const kvp_host_parallel* const parallel = engine_->parallel();
  const auto work = [&](int64_t first, int64_t n) {
    job.runs = runs.data() + first;
    if (parallel == nullptr || n == 1) {
      piece(&job, 0, n, 0);
    } else if (n > 0) {
      parallel->parallel_for(parallel->ctx, n, 1, piece, &job);
    }
    if (failed != KVP_OK) fail(failed, "a quantizer failed to pack: ", text);
  };
  work(0, first_runs);
  for (int64_t i = 0; i < first_runs; ++i) {
    const Run& run = runs[static_cast<size_t>(i)];
    std::shared_ptr<std::byte[]> made(new std::byte[static_cast<size_t>(form_.shared_bytes)]);
    each_shared(*run.page,
                [&](const void* part, int64_t place, size_t bytes) { std::memcpy(&made[place], part, bytes); });
    at(run.b).next_shared = made;
  }
  if (form_.shared_bytes > 0) {
    for (const Fresh& fresh : fresh_) {
      const std::byte* from = at(fresh.b).next_shared.get();
      each_shared(*fresh.page,
                  [&](void* part, int64_t place, size_t bytes) { std::memcpy(part, from + place, bytes); });
    }
  }
  work(first_runs, static_cast<int64_t>(runs.size()) - first_runs);
  return done;
}

void Layer::end_append(const Form& all, const Append& a, const kvp_tensor& k, const kvp_tensor& v,
                       const kvp_host_parallel* parallel) noexcept {
  if (sinks_) {
    const Append sunk = sink_append(a);
    sinks_->begin_append(sunk, k, v, parallel);
    sinks_->end_append(sunk, k, v, parallel);
  }
  exact_.end_append(a, k, v, parallel);
  for (int64_t b = 0; b < a.batch; ++b) {
    if (a.stored(b) == 0) continue;
    Row& row = at(b);
    row.begin = begin_at(all, b, rows()[b].stored());
    row.packed = row.next;
    row.shared = row.next_shared;
    int64_t first = 0, end = 0;
    all.page_range(form_, row.begin, row.packed, first, end);
    keep_pages(b, std::max(row.first, first));
  }
  for (const Fresh& fresh : fresh_) {
    Row& row = at(fresh.b);
    if (fresh.index < row.end && fresh.index >= row.first) {
      pages_.release(entry(fresh.b, fresh.index));
    } else {
      if (row.first == row.end) row.first = fresh.index;
      row.end = fresh.index + 1;
    }
    entry(fresh.b, fresh.index) = fresh.page;
  }
  fresh_.clear();
  trim(all);
}

void Layer::cancel_append(const Append& a) noexcept {
  exact_.cancel_append(a);
  for (const Fresh& fresh : fresh_) pages_.release(fresh.page);
  fresh_.clear();
  for (Row& row : rows_) {
    row.next = row.packed;
    row.next_shared = row.shared;
  }
}

int64_t Layer::reserve(const Form& all, int64_t batch, int64_t tokens) {
  exact_.reserve(batch, tokens);
  if (sinks_) sinks_->reserve(batch, std::min(tokens, sinks_tokens_));
  const int64_t lines = std::max(n_lines_, batch), most = all.most_pages(form_, tokens);
  const int64_t kept = std::max(kept_pages_, batch * most);
  ensure_table(lines, sdk::PagedLayer::columns(most));
  pages_.ensure(kept - exclusive_pages());
  n_lines_ = lines;
  kept_pages_ = kept;
  return kept;
}

void Layer::prepare_gather(const int64_t* src_rows, int64_t n, bool may_allocate) {
  exact_.prepare_gather(src_rows, n, may_allocate);
  if (sinks_) sinks_->prepare_gather(src_rows, n, may_allocate);
  if (!may_allocate && lines_ > 0 && n > lines_) {
    fail(KVP_INVALID_STATE, "a prepared call must not allocate, but the batch grows to ", n, " rows from ", lines_,
         ": reserve a larger batch first");
  }
  n_lines_ = std::max(n_lines_, n);
  if (lines_ > 0) ensure_table(n_lines_, columns_);
}

void Layer::gather(const Form& all, const int64_t* src_rows, int64_t n) noexcept {
  const int64_t before = rows().batch();
  std::vector<Row> next(static_cast<size_t>(n));
  std::vector<PackedPage*> held;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t b = src_rows[i];
    if (b < 0 || b >= before) continue;
    next[static_cast<size_t>(i)] = row(b);
    for (int64_t page = row(b).first; page < row(b).end; ++page) {
      entry(b, page)->share();
      held.push_back(entry(b, page));
    }
  }
  for (int64_t b = 0; b < before; ++b) drop_pages(b);
  rows_ = std::move(next);
  sink_counts_.assign(static_cast<size_t>(n), 0);
  size_t at = 0;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t page = row(i).first; page < row(i).end; ++page) entry(i, page) = held[at++];
  }
  exact_.gather(src_rows, n);
  if (sinks_) sinks_->gather(src_rows, n);
  trim(all);
}

bool Layer::can_truncate(int64_t b, int64_t seen) const noexcept {
  const sdk::Rows::Row r = rows()[b];
  const int64_t stored = std::max<int64_t>(0, seen - r.pad);
  if (seen >= r.seen || stored == r.stored() || stored == 0 || form_.window <= 1) return true;
  return row(b).begin <= std::max<int64_t>(0, stored - (form_.window - 1));
}

std::vector<Layer::Refill> Layer::prepare_truncate(const std::vector<int64_t>& seen, bool may_allocate) {
  std::vector<Refill> refills;
  std::vector<int64_t> rows_at, seens, begins;
  for (int64_t b = 0; b < rows().batch(); ++b) {
    const sdk::Rows::Row r = rows()[b];
    const int64_t to = seen[static_cast<size_t>(b)];
    const int64_t stored = std::max<int64_t>(0, to - r.pad);
    if (to >= r.seen || stored >= packed_end(b) || stored <= sinks_tokens_) continue;
    const int64_t whole = (stored - sinks_tokens_) / form_.token_block * form_.token_block;
    const int64_t tokens = stored - sinks_tokens_ - whole;
    // Blocks of pages that are gone lie before the window.
    if (tokens == 0 || whole / form_.page_tokens < row(b).first || row(b).first == row(b).end) continue;
    refills.push_back({b, to, whole, tokens});
    rows_at.push_back(b);
    seens.push_back(to);
    begins.push_back(sinks_tokens_ + whole);
  }
  exact_.prepare_refill(rows_at.data(), seens.data(), begins.data(), static_cast<int64_t>(refills.size()),
                        may_allocate);
  return refills;
}

void Layer::truncate(int64_t b, int64_t seen) noexcept {
  const sdk::Rows::Row before = rows()[b];
  if (seen >= before.seen) return;
  exact_.truncate(b, seen);
  const int64_t stored = rows()[b].stored();
  if (sinks_) sinks_->truncate(b, rows()[b].pad + std::min(stored, sinks_tokens_));
  Row& r = at(b);
  r.begin = std::min(r.begin, stored);
  if (stored < packed_end(b)) {
    r.again = stored;
    r.packed = std::max<int64_t>(0, stored - sinks_tokens_) / form_.token_block * form_.token_block;
    const int64_t end = (r.packed + form_.page_tokens - 1) / form_.page_tokens;
    while (r.end > std::max(r.first, end)) pages_.release(entry(b, --r.end));
    if (r.first == r.end) r.first = r.end = std::min(r.first, end);
  }
  r.again = std::min(r.again, stored);
  r.next = r.packed;
}

void Layer::drop_record(const Form& all) noexcept {
  if (form_.window == 0) return;
  for (int64_t b = 0; b < rows().batch(); ++b) {
    Row& r = at(b);
    r.begin = std::max(r.begin, rows()[b].stored() - (form_.window - 1));
    int64_t first = 0, end = 0;
    all.page_range(form_, r.begin, r.packed, first, end);
    keep_pages(b, std::max(r.first, first));
  }
}

int64_t Layer::exclusive_pages() const noexcept {
  int64_t n = 0;
  for (int64_t b = 0; b < static_cast<int64_t>(rows_.size()); ++b) {
    for (int64_t i = row(b).first; i < row(b).end; ++i) n += entry(b, i)->exclusive() ? 1 : 0;
  }
  return n;
}

void Layer::drop_pages(int64_t b) noexcept { keep_pages(b, row(b).end); }

void Layer::keep_pages(int64_t b, int64_t first) noexcept {
  Row& r = at(b);
  for (; r.first < std::min(first, r.end); ++r.first) pages_.release(entry(b, r.first));
}

// As the ring does: of what was reserved, shared pages do not count; a window keeps the pages it will need again.
void Layer::trim(const Form& all) noexcept {
  exact_.trim();
  if (sinks_) sinks_->trim();
  if (pages_.free_pages() == 0) return;
  int64_t spare = 0, held = 0;
  for (int64_t b = 0; b < rows().batch(); ++b) {
    held += row(b).end - row(b).first;
    if (form_.window > 0) {
      spare += std::max<int64_t>(0, all.most_pages(form_, rows()[b].stored()) - (row(b).end - row(b).first));
    }
  }
  if (pages_.free_pages() <= spare || pages_.free_pages() + held <= kept_pages_) return;
  pages_.trim(std::max(spare, kept_pages_ == 0 ? 0 : kept_pages_ - exclusive_pages()));
}

void Layer::reset() noexcept {
  for (int64_t b = 0; b < static_cast<int64_t>(rows_.size()); ++b) drop_pages(b);
  exact_.reset();
  if (sinks_) sinks_->reset();
  rows_.clear();
  sink_counts_.clear();
  kept_pages_ = std::max(kept_pages_, pages_.free_pages());
}

void Layer::add_memory(kvp_memory& out) const noexcept {
  const sdk::PageLayout& p = form_.layout;
  exact_.store().add_memory(exact_.stored_tokens() * p.token_bytes(), out);
  if (sinks_) sinks_->store().add_memory(sinks_->stored_tokens() * p.token_bytes(), out);
  const int64_t in_page = form_.page_tokens / form_.token_block;
  int64_t blocks = 0;
  for (const Row& r : rows_) {
    if (r.first < r.end) blocks += (r.packed - r.first * form_.page_tokens) / form_.token_block;
  }
  pages_.add_memory(blocks * form_.page.code_bytes / in_page, blocks * form_.page.scale_bytes / in_page, out);
}

void Layer::add_held_bytes(int64_t (&held)[KVP_N_TIERS]) const noexcept {
  kvp_memory sum{};
  add_memory(sum);
  held[KVP_TIER_HOST] += table_bytes();
  for (const int32_t tier : {KVP_TIER_DEVICE, KVP_TIER_HOST}) {
    for (const uint64_t bytes : sum.reserved[tier]) held[tier] += static_cast<int64_t>(bytes);
  }
}

int64_t Layer::readable_tokens() const noexcept {
  int64_t n = 0;
  for (int64_t b = 0; b < rows().batch(); ++b) n += rows()[b].stored() - row(b).begin;
  return n;
}

}  // namespace kvplug::quantized
