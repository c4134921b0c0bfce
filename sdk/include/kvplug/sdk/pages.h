// SPDX-License-Identifier: Apache-2.0
// Pages: fixed pieces of K/V storage, kBlockTokens row positions of one layer each, that rows and clones share.
//
// A page is a 64-byte header, K [kv_heads, kBlockTokens, key_dim], V [kv_heads, kBlockTokens, value_dim]; storage that
// grows takes further pages and copies nothing. Each entry of a row's table that names a page holds one reference; the
// last to let go keeps the page in its own pool or gives it back to the host. Who holds the only reference may write.
// A page stays booked on the owner whose pool took it, until it is given back, even after that instance has ended.
//
// A pool belongs to one layer of one instance, so to one thread at a time; references are counted atomically because
// clones live on other threads.
#pragma once

#include <kvplug/sdk/attention.h>
#include <kvplug/sdk/host.h>

#include <algorithm>
#include <atomic>
#include <new>

namespace kvplug::sdk {

// The layout of a layer's pages. element: bytes of one number.
struct PageLayout {
  int64_t kv_heads = 0, key_dim = 0, value_dim = 0, element = 0;

  static constexpr int64_t kHeader = 64;
  static int64_t count(int64_t tokens) noexcept { return (tokens + kBlockTokens - 1) / kBlockTokens; }
  int64_t token_bytes() const noexcept { return kv_heads * (key_dim + value_dim) * element; }
  int64_t key_bytes() const noexcept { return kv_heads * kBlockTokens * key_dim * element; }
  int64_t page_bytes() const noexcept { return kHeader + kBlockTokens * token_bytes(); }
};

// What one pool has taken from the host and not given back. Outlives the pool while a clone holds pages of it.
class PageLedger {
 public:
  explicit PageLedger(const kvp_mem& mem) : mem_(mem) {}
  const kvp_mem& mem() const noexcept { return mem_; }
  int64_t pages() const noexcept { return pages_.load(std::memory_order_relaxed); }

  void took() noexcept {
    pages_.fetch_add(1, std::memory_order_relaxed);
    refs_.fetch_add(1, std::memory_order_relaxed);
  }
  void gave() noexcept {
    pages_.fetch_sub(1, std::memory_order_relaxed);
    drop();
  }
  void drop() noexcept {
    if (refs_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

 private:
  kvp_mem mem_;
  std::atomic<int64_t> pages_{0};
  std::atomic<int64_t> refs_{1};  // the pool, and each page
};

// The header at the front of a page.
struct Page {
  PageLedger* ledger;
  Page* next;  // in the pool's list while free
  std::atomic<int64_t> refs;

  std::byte* keys() noexcept { return reinterpret_cast<std::byte*>(this) + PageLayout::kHeader; }
  std::byte* values(const PageLayout& layout) noexcept { return keys() + layout.key_bytes(); }
  int64_t holders() const noexcept { return refs.load(std::memory_order_acquire); }
  bool exclusive() const noexcept { return holders() == 1; }
  void share() noexcept { refs.fetch_add(1, std::memory_order_relaxed); }

  // The block that the attention kernel reads, and back.
  KvBlock block(const PageLayout& layout) noexcept {
    return {
        keys(),          values(layout), kBlockTokens * layout.key_dim, layout.key_dim, kBlockTokens * layout.value_dim,
        layout.value_dim};
  }
  static Page* of(const KvBlock& block) noexcept {
    auto* keys = static_cast<std::byte*>(const_cast<void*>(block.k));
    return reinterpret_cast<Page*>(keys - PageLayout::kHeader);
  }
};
static_assert(sizeof(Page) <= PageLayout::kHeader);

class PagePool {
 public:
  PagePool(const PageLayout& layout, uint64_t owner)
      : layout_(layout),
        ledger_(new PageLedger(host_memory(owner, KVP_PURPOSE_KV, static_cast<uint64_t>(layout.page_bytes())))) {}
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;
  ~PagePool() {
    trim(0);
    ledger_->drop();
  }

  const PageLayout& layout() const noexcept { return layout_; }
  int64_t free_pages() const noexcept { return free_count_; }
  // Pages that this pool took and that are not given back, wherever they are now.
  int64_t booked_pages() const noexcept { return ledger_->pages(); }

  // Brings the free pages up to n; all or nothing. Throws what the host's allocator answers.
  void ensure(int64_t n) {
    const int64_t before = free_count_;
    try {
      while (free_count_ < n) push(take_from_host());
    } catch (...) {
      trim(before);
      throw;
    }
  }

  // A free page with one reference; ensure() has made sure of it.
  Page* take() noexcept {
    Page* page = pop();
    page->refs.store(1, std::memory_order_relaxed);
    return page;
  }

  // Lets go of one reference; the last one puts the page on the free list.
  void release(Page* page) noexcept {
    if (page->refs.fetch_sub(1, std::memory_order_acq_rel) == 1) push(page);
  }

  // Gives free pages back to the host until `keep` are left.
  void trim(int64_t keep) noexcept {
    while (free_count_ > keep) {
      Page* page = pop();
      PageLedger* ledger = page->ledger;
      give_memory(ledger->mem(), page);
      ledger->gave();
    }
  }

 private:
  Page* take_from_host() {
    Page* page = new (take_memory(ledger_->mem())) Page{ledger_, nullptr, {0}};
    ledger_->took();
    return page;
  }
  void push(Page* page) noexcept {
    page->next = free_;
    free_ = page;
    ++free_count_;
  }
  Page* pop() noexcept {
    Page* page = free_;
    free_ = page->next;
    --free_count_;
    return page;
  }

  PageLayout layout_;
  PageLedger* ledger_;
  Page* free_ = nullptr;
  int64_t free_count_ = 0;
};

}  // namespace kvplug::sdk
