// SPDX-License-Identifier: Apache-2.0
// Pages: fixed pieces of K/V storage, kBlockTokens row positions of one layer each, and the stores they come from.
//
// The data of a page is K [kv_heads, kBlockTokens, key_dim], V [kv_heads, kBlockTokens, value_dim]; storage that grows
// takes further pages and copies nothing. Each entry of a row's table that names a page holds one reference; who holds
// the only one may write. A Page says where the data lies in its store; a store that moves data between tiers keeps
// the Pages apart from it.
//
// Three ways to hold pages: HeapPages (one piece of host memory each; clones share them), SlabPages (allocated ahead,
// never moved, never given back), and what a plugin makes of PageStore. A store belongs to one layer of one instance,
// so to one thread at a time; references are counted atomically because clones live on other threads.
#pragma once

#include <kvplug/sdk/attention.h>
#include <kvplug/sdk/device.h>
#include <kvplug/sdk/host.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <new>
#include <vector>

namespace kvplug::sdk {

// The layout of a layer's pages. element: bytes of one number.
struct PageLayout {
  int64_t kv_heads = 0, key_dim = 0, value_dim = 0, element = 0;

  // Pages that `tokens` row positions from 0 on take.
  static constexpr int64_t count(int64_t tokens) noexcept { return (tokens + kBlockTokens - 1) / kBlockTokens; }
  // Most pages that `tokens` row positions can touch, wherever they begin.
  static constexpr int64_t span(int64_t tokens) noexcept {
    return tokens == 0 ? 0 : (tokens + kBlockTokens - 2) / kBlockTokens + 1;
  }
  int64_t token_bytes() const noexcept { return kv_heads * (key_dim + value_dim) * element; }
  int64_t key_bytes() const noexcept { return kv_heads * kBlockTokens * key_dim * element; }
  int64_t data_bytes() const noexcept { return kBlockTokens * token_bytes(); }

  // The block that the attention kernel reads, of a page whose data lie at `data`.
  KvBlock block(const std::byte* data) const noexcept {
    return {data, data + key_bytes(), kBlockTokens * key_dim, key_dim, kBlockTokens * value_dim, value_dim};
  }
};

class PageLedger;

struct Page {
  explicit Page(uint64_t where) : at(where) {}

  uint64_t at;                   // where its store keeps the data
  Page* next = nullptr;          // in the store's list while free
  PageLedger* ledger = nullptr;  // HeapPages: where it is booked
  std::atomic<int32_t> refs{0};
  bool written = false;  // since its store last looked

  int32_t holders() const noexcept { return refs.load(std::memory_order_acquire); }
  bool exclusive() const noexcept { return holders() == 1; }
  void share() noexcept { refs.fetch_add(1, std::memory_order_relaxed); }
};

class PageStore {
 public:
  explicit PageStore(const PageLayout& layout) : layout_(layout) {}
  virtual ~PageStore() = default;
  PageStore(const PageStore&) = delete;
  PageStore& operator=(const PageStore&) = delete;

  const PageLayout& layout() const noexcept { return layout_; }
  // Where the data of a page lie now; a store that moves them says when.
  std::byte* data(const Page& page) const noexcept { return reinterpret_cast<std::byte*>(base_ + page.at); }

  int64_t free_pages() const noexcept { return free_count_; }
  // Brings the free pages up to n; all or nothing. Throws what the allocator answers.
  virtual void ensure(int64_t n) = 0;
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

  // The way to the device on which the data lie; NULL: host memory.
  virtual DeviceQueue* queue() const noexcept { return nullptr; }

  // Whether trim() gives free pages back, until `keep` are left; else they stay with the store.
  virtual bool gives_back() const noexcept { return false; }
  virtual void trim(int64_t) noexcept {}
  // Pages that this store took and that are not given back.
  virtual int64_t held_pages() const noexcept = 0;
  // Adds what is held to `memory`, and as used the bytes that hold tokens.
  virtual void add_memory(int64_t used, kvp_memory& memory) const noexcept = 0;

  // A page of this store with the content of `page` of `from`, a store of the same class: shared or copied. Free pages
  // for copies have been ensured.
  virtual Page* adopt(const PageStore& from, Page* page) = 0;
  virtual bool adopts_by_copy() const noexcept { return true; }

 protected:
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

  uint64_t base_ = 0;  // address that Page::at counts from

 private:
  PageLayout layout_;
  Page* free_ = nullptr;
  int64_t free_count_ = 0;
};

// What one HeapPages has taken from the host and not given back. Outlives it while a clone holds pages of it.
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
  std::atomic<int64_t> refs_{1};  // the store, and each page
};

// Pages one by one from the host: a 64-byte head with the Page, then the data. A page stays booked on the owner whose
// store took it until it is given back, even after that instance has ended.
class HeapPages final : public PageStore {
 public:
  static constexpr int64_t kHead = 64;
  static_assert(sizeof(Page) <= kHead);
  static int64_t page_bytes(const PageLayout& layout) noexcept { return kHead + layout.data_bytes(); }

  HeapPages(const PageLayout& layout, uint64_t owner, int32_t purpose = KVP_PURPOSE_KV)
      : PageStore(layout),
        ledger_(new PageLedger(host_memory(owner, purpose, static_cast<uint64_t>(page_bytes(layout))))) {}
  ~HeapPages() override {
    trim(0);
    ledger_->drop();
  }

  void ensure(int64_t n) override;
  bool gives_back() const noexcept override { return true; }
  void trim(int64_t keep) noexcept override;
  int64_t held_pages() const noexcept override { return ledger_->pages(); }
  void add_memory(int64_t used, kvp_memory& memory) const noexcept override;
  Page* adopt(const PageStore&, Page* page) override {
    page->share();
    return page;
  }
  bool adopts_by_copy() const noexcept override { return false; }

 private:
  PageLedger* ledger_;
};

// Pages one by one whose data lie on a device, the Page itself in host memory; growing ones are given back and shared
// by clones as HeapPages are, fixed ones stay where they are and are copied. Work on them goes through the queue.
class DevicePages final : public PageStore {
 public:
  static constexpr int64_t kHead = HeapPages::kHead;  // of host memory a page

  DevicePages(const PageLayout& layout, uint64_t owner, std::shared_ptr<DeviceQueue> queue, bool fixed,
              int32_t purpose = KVP_PURPOSE_KV)
      : PageStore(layout),
        queue_(std::move(queue)),
        fixed_(fixed),
        ledger_(new PageLedger(queue_->memory(owner, purpose, static_cast<uint64_t>(layout.data_bytes())))) {}
  ~DevicePages() override {
    give_back(0);
    ledger_->drop();
  }

  void ensure(int64_t n) override;
  DeviceQueue* queue() const noexcept override { return queue_.get(); }
  bool gives_back() const noexcept override { return !fixed_; }
  void trim(int64_t keep) noexcept override { give_back(keep); }
  int64_t held_pages() const noexcept override { return ledger_->pages(); }
  void add_memory(int64_t used, kvp_memory& memory) const noexcept override;
  Page* adopt(const PageStore& from, Page* page) override;
  bool adopts_by_copy() const noexcept override { return fixed_; }

 private:
  void give_back(int64_t keep) noexcept;

  const std::shared_ptr<DeviceQueue> queue_;
  const bool fixed_;
  PageLedger* ledger_;
};

// Pages in slabs: each ensure() that needs more takes all of it as one piece of host memory, which never moves and is
// given back with the store.
class SlabPages final : public PageStore {
 public:
  static int64_t page_bytes(const PageLayout& layout) noexcept { return HeapPages::page_bytes(layout); }

  SlabPages(const PageLayout& layout, uint64_t owner) : PageStore(layout), owner_(owner) {}

  void ensure(int64_t n) override;
  int64_t held_pages() const noexcept override { return held_; }
  void add_memory(int64_t used, kvp_memory& memory) const noexcept override;
  Page* adopt(const PageStore& from, Page* page) override;

 private:
  uint64_t owner_;
  std::vector<Block> slabs_;
  int64_t held_ = 0;
};

}  // namespace kvplug::sdk
