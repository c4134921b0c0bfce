// SPDX-License-Identifier: Apache-2.0
#include <kvplug/sdk/pages.h>

#include <cstring>

namespace kvplug::sdk {
namespace {

void add_held(kvp_memory& memory, int32_t purpose, int64_t used, int64_t reserved) noexcept {
  memory.used[KVP_TIER_HOST][purpose] += static_cast<uint64_t>(used);
  memory.reserved[KVP_TIER_HOST][purpose] += static_cast<uint64_t>(reserved);
}

// A page at the front of `memory`, its data behind it.
Page* page_in(void* memory) {
  const auto data = reinterpret_cast<uint64_t>(memory) + static_cast<uint64_t>(HeapPages::kHead);
  return new (memory) Page(data);  // the store's base is address 0
}

}  // namespace

void HeapPages::ensure(int64_t n) {
  const int64_t before = free_pages();
  try {
    while (free_pages() < n) {
      Page* page = page_in(take_memory(ledger_->mem()));
      page->ledger = ledger_;
      ledger_->took();
      push(page);
    }
  } catch (...) {
    trim(before);
    throw;
  }
}

void HeapPages::trim(int64_t keep) noexcept {
  while (free_pages() > keep) {
    Page* page = pop();
    PageLedger* ledger = page->ledger;
    give_memory(ledger->mem(), page);
    ledger->gave();
  }
}

void HeapPages::add_memory(int64_t used, kvp_memory& memory) const noexcept {
  add_held(memory, ledger_->mem().purpose, used, held_pages() * page_bytes(layout()));
}

void DevicePages::ensure(int64_t n) {
  const int64_t before = free_pages();
  const kvp_mem head = host_memory(ledger_->mem().owner, KVP_PURPOSE_OTHER, kHead);
  try {
    while (free_pages() < n) {
      Block own(head);
      Page* page = new (own.data()) Page(reinterpret_cast<uint64_t>(take_memory(ledger_->mem())));
      own.release();
      page->ledger = ledger_;
      ledger_->took();
      push(page);
    }
  } catch (...) {
    give_back(before);
    throw;
  }
}

void DevicePages::give_back(int64_t keep) noexcept {
  while (free_pages() > keep) {
    Page* page = pop();
    PageLedger* ledger = page->ledger;
    kvp_mem mem = ledger->mem();
    mem.stream = queue_->stream();  // of its last use
    give_memory(mem, data(*page));
    give_memory(host_memory(mem.owner, KVP_PURPOSE_OTHER, kHead), page);
    ledger->gave();
  }
}

void DevicePages::add_memory(int64_t used, kvp_memory& memory) const noexcept {
  const int32_t purpose = ledger_->mem().purpose;
  memory.used[KVP_TIER_DEVICE][purpose] += static_cast<uint64_t>(used);
  memory.reserved[KVP_TIER_DEVICE][purpose] += static_cast<uint64_t>(held_pages() * layout().data_bytes());
  memory.used[KVP_TIER_HOST][KVP_PURPOSE_OTHER] += static_cast<uint64_t>(held_pages() * kHead);
  memory.reserved[KVP_TIER_HOST][KVP_PURPOSE_OTHER] += static_cast<uint64_t>(held_pages() * kHead);
}

Page* DevicePages::adopt(const PageStore& from, Page* page) {
  if (!fixed_) {
    page->share();
    return page;
  }
  Page* own = take();
  const auto bytes = static_cast<size_t>(layout().data_bytes());
  queue_->run(&Device::copy, DeviceCopy{data(*own), from.data(*page), bytes, bytes, 1});
  return own;
}

void SlabPages::ensure(int64_t n) {
  const int64_t missing = n - free_pages(), bytes = page_bytes(layout());
  if (missing <= 0) return;
  slabs_.emplace_back(host_memory(owner_, KVP_PURPOSE_KV, static_cast<uint64_t>(missing * bytes)));
  // Last first, so that rows take them in order.
  for (int64_t i = missing; i-- > 0;) push(page_in(slabs_.back().data() + i * bytes));
  held_ += missing;
}

void SlabPages::add_memory(int64_t used, kvp_memory& memory) const noexcept {
  add_held(memory, KVP_PURPOSE_KV, used, held_ * page_bytes(layout()));
}

Page* SlabPages::adopt(const PageStore& from, Page* page) {
  Page* own = take();
  std::memcpy(data(*own), from.data(*page), static_cast<size_t>(layout().data_bytes()));
  return own;
}

}  // namespace kvplug::sdk
