// SPDX-License-Identifier: Apache-2.0
#include "swapped_pages.h"

namespace kvplug::offloaded {

void SwappedPages::ensure(int64_t n) {
  const int64_t missing = n - free_pages();
  if (missing <= 0) return;
  const int64_t total = pages_ + missing;
  const size_t before = records_.size();
  try {
    while (static_cast<int64_t>(records_.size()) * kRecords < total) {
      records_.emplace_back(sdk::host_memory(owner_, KVP_PURPOSE_OTHER, static_cast<uint64_t>(record_bytes(kRecords))));
    }
    mover_.grow(index_, total * layout().data_bytes());
  } catch (...) {
    records_.resize(before);
    throw;
  }
  for (int64_t i = pages_; i < total; ++i)
    new (&page_at(i)) sdk::Page(static_cast<uint64_t>(i * layout().data_bytes()));
  // Last first, so that rows take them in order.
  for (int64_t i = total; i-- > pages_;) push(&page_at(i));
  pages_ = total;
}

void SwappedPages::add_memory(int64_t used, kvp_memory& memory) const noexcept {
  memory.used[tier_][KVP_PURPOSE_KV] += static_cast<uint64_t>(used);
  memory.reserved[tier_][KVP_PURPOSE_KV] += static_cast<uint64_t>(pages_ * layout().data_bytes());
  const auto records = static_cast<uint64_t>(record_bytes(pages_));
  memory.used[KVP_TIER_HOST][KVP_PURPOSE_OTHER] += records;
  memory.reserved[KVP_TIER_HOST][KVP_PURPOSE_OTHER] += records;
}

sdk::Page* SwappedPages::adopt(const PageStore& from, sdk::Page* page) {
  const auto& source = static_cast<const SwappedPages&>(from);
  sdk::Page* own = take();
  try {
    mover_.copy(index_, {static_cast<int64_t>(own->at), layout().data_bytes()}, source.mover_, source.index_,
                static_cast<int64_t>(page->at));
  } catch (...) {
    release(own);
    throw;
  }
  return own;
}

void SwappedPages::add_span(Spans& out, int64_t i) const {
  const int64_t bytes = layout().data_bytes(), at = i * bytes;
  if (!out.empty() && out.back().at + out.back().bytes == at) {
    out.back().bytes += bytes;
  } else {
    out.push_back({at, bytes});
  }
}

void SwappedPages::used_spans(Spans& out) const {
  for (int64_t i = 0; i < pages_; ++i) {
    if (page_at(i).holders() > 0) add_span(out, i);
  }
}

void SwappedPages::take_written(Spans& out) {
  for (int64_t i = 0; i < pages_; ++i) {
    if (std::exchange(page_at(i).written, false)) add_span(out, i);
  }
}

}  // namespace kvplug::offloaded
