// SPDX-License-Identifier: Apache-2.0
#include "packed_pages.h"

#include <new>

namespace kvplug::quantized {

PackedPages::PackedPages(const PageShape& shape, uint64_t owner, std::shared_ptr<Engine> engine)
    : shape_(shape),
      engine_(std::move(engine)),
      ledger_(new PackedLedger{engine_->memory(owner, KVP_PURPOSE_PACKED, shape.code_memory(engine_->on_device())),
                               engine_->memory(owner, KVP_PURPOSE_SCALES, shape.scale_bytes),
                               sdk::host_memory(owner, KVP_PURPOSE_OTHER, static_cast<uint64_t>(PageShape::kHead))}) {}

PackedPages::~PackedPages() {
  trim(0);
  ledger_->drop();
}

void PackedPages::ensure(int64_t n) {
  const int64_t before = free_count_;
  try {
    while (free_count_ < n) {
      const bool on_device = engine_->on_device();
      sdk::Block head = on_device ? sdk::Block(ledger_->head) : sdk::Block();
      sdk::Block codes(ledger_->codes), scales(ledger_->scales);
      auto* page = new (on_device ? head.data() : codes.data()) PackedPage();
      page->codes = codes.data() + (on_device ? PageShape::kDeviceHead : PageShape::kHead);
      page->scales = scales.data();
      for (uint32_t i = 0; i < shape_.n_parts; ++i) {
        page->parts[i] = (shape_.is_scale[i] ? page->scales : page->codes) + shape_.offset[i];
      }
      if (on_device) engine_->upload(codes.data(), page->parts, sizeof page->parts);
      page->ledger = ledger_;
      head.release();
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
  if (engine_->on_device()) return page;
  engine_->fill(page->codes, static_cast<size_t>(shape_.code_bytes), 0);
  if (shape_.scale_bytes > 0) engine_->fill(page->scales, static_cast<size_t>(shape_.scale_bytes), 0);
  return page;
}

PackedPage* PackedPages::take_copy(const PackedPage& from) noexcept {
  PackedPage* page = pop();
  engine_->copy(page->codes, from.codes, static_cast<size_t>(shape_.code_bytes));
  if (shape_.scale_bytes > 0) engine_->copy(page->scales, from.scales, static_cast<size_t>(shape_.scale_bytes));
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
    kvp_mem codes = ledger->codes, scales = ledger->scales;
    codes.stream = scales.stream = engine_->memory(0, 0, 0).stream;  // of the last use
    if (page->scales != nullptr) sdk::give_memory(scales, page->scales);
    if (engine_->on_device()) {
      sdk::give_memory(codes, page->codes - PageShape::kDeviceHead);
      sdk::give_memory(ledger->head, page);
    } else {
      sdk::give_memory(codes, page);
    }
    ledger->pages.fetch_sub(1, std::memory_order_relaxed);
    ledger->drop();
  }
}

void PackedPages::add_memory(int64_t used_codes, int64_t used_scales, kvp_memory& out) const noexcept {
  const int32_t tier = engine_->tier();
  const auto add = [](uint64_t& to, int64_t bytes) { to += static_cast<uint64_t>(bytes); };
  add(out.used[tier][KVP_PURPOSE_PACKED], used_codes);
  add(out.used[tier][KVP_PURPOSE_SCALES], used_scales);
  add(out.reserved[tier][KVP_PURPOSE_PACKED], held_pages() * static_cast<int64_t>(ledger_->codes.bytes));
  add(out.reserved[tier][KVP_PURPOSE_SCALES], held_pages() * shape_.scale_bytes);
  const int64_t heads = engine_->on_device() ? held_pages() * PageShape::kHead : 0;
  add(out.used[KVP_TIER_HOST][KVP_PURPOSE_OTHER], heads);
  add(out.reserved[KVP_TIER_HOST][KVP_PURPOSE_OTHER], heads);
}

}  // namespace kvplug::quantized
