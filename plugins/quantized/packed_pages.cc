// SPDX-License-Identifier: Apache-2.0
#include "packed_pages.h"

#include <cstring>
#include <new>

namespace kvplug::quantized {

PackedPages::PackedPages(const PageShape& shape, uint64_t owner)
    : shape_(shape),
      ledger_(new PackedLedger{
          sdk::host_memory(owner, KVP_PURPOSE_PACKED, static_cast<uint64_t>(PageShape::kHead + shape.code_bytes)),
          sdk::host_memory(owner, KVP_PURPOSE_SCALES, static_cast<uint64_t>(shape.scale_bytes))}) {}

PackedPages::~PackedPages() {
  trim(0);
  ledger_->drop();
}

void PackedPages::ensure(int64_t n) {
  const int64_t before = free_count_;
  try {
    while (free_count_ < n) {
      sdk::Block codes(ledger_->codes), scales(ledger_->scales);
      auto* page = new (codes.data()) PackedPage();
      page->scales = scales.data();
      for (uint32_t i = 0; i < shape_.n_parts; ++i) {
        page->parts[i] = (shape_.is_scale[i] ? page->scales : page->codes()) + shape_.offset[i];
      }
      page->ledger = ledger_;
      codes.release();
      scales.release();
      ledger_->pages.fetch_add(1, std::memory_order_relaxed);
      ledger_->refs.fetch_add(1, std::memory_order_relaxed);
      page->next = free_;
      free_ = page;
      ++free_count_;
    }
  } catch (...) {
    trim(before);
    throw;
  }
}

PackedPage* PackedPages::pop() noexcept {
  PackedPage* page = free_;
  free_ = page->next;
  --free_count_;
  page->refs.store(1, std::memory_order_relaxed);
  return page;
}

PackedPage* PackedPages::take() noexcept {
  PackedPage* page = pop();
  std::memset(page->codes(), 0, static_cast<size_t>(shape_.code_bytes));
  if (shape_.scale_bytes > 0) std::memset(page->scales, 0, static_cast<size_t>(shape_.scale_bytes));
  return page;
}

PackedPage* PackedPages::take_copy(const PackedPage& from) noexcept {
  PackedPage* page = pop();
  std::memcpy(page->codes(), const_cast<PackedPage&>(from).codes(), static_cast<size_t>(shape_.code_bytes));
  if (shape_.scale_bytes > 0) std::memcpy(page->scales, from.scales, static_cast<size_t>(shape_.scale_bytes));
  return page;
}

void PackedPages::release(PackedPage* page) noexcept {
  if (page->refs.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  page->next = free_;
  free_ = page;
  ++free_count_;
}

void PackedPages::trim(int64_t keep) noexcept {
  while (free_count_ > keep) {
    PackedPage* page = free_;
    free_ = page->next;
    --free_count_;
    PackedLedger* ledger = page->ledger;
    if (page->scales != nullptr) sdk::give_memory(ledger->scales, page->scales);
    sdk::give_memory(ledger->codes, page);
    ledger->pages.fetch_sub(1, std::memory_order_relaxed);
    ledger->drop();
  }
}

}  // namespace kvplug::quantized
