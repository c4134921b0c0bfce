// SPDX-License-Identifier: Apache-2.0
// Pages of packed blocks: each holds a fixed number of tokens of one row and layer, K parts and V parts, in two pieces
// of memory where the cache computes: codes (KVP_PURPOSE_PACKED) and scales (KVP_PURPOSE_SCALES). The PackedPage itself
// is in host memory, in front of the codes on the CPU; on a device a head in front of the codes holds `parts` once
// more. Rows and clones share pages by reference; who holds the only one may write. Blank pages are zero on the CPU.
#pragma once

#include <atomic>

#include "engine.h"

namespace kvplug::quantized {

// Where the parts of a page lie.
struct PageShape {
  static constexpr int64_t kHead = 192, kDeviceHead = 2 * KVP_MAX_PARTS * static_cast<int64_t>(sizeof(void*));
  int64_t code_bytes = 0, scale_bytes = 0;  // without the head
  uint32_t n_parts = 0;
  int64_t offset[2 * KVP_MAX_PARTS] = {};
  bool is_scale[2 * KVP_MAX_PARTS] = {};

  // Of what holds the codes.
  int64_t code_memory(bool on_device) const noexcept { return (on_device ? kDeviceHead : kHead) + code_bytes; }
};

// What one store has taken and not given back; lives until the last of its pages is gone.
struct PackedLedger {
  kvp_mem codes, scales, head;  // head: on a device alone
  std::atomic<int64_t> pages{0};
  std::atomic<int64_t> refs{1};

  void drop() noexcept {
    if (refs.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
};

struct PackedPage {
  std::byte* codes = nullptr;
  std::byte* scales = nullptr;
  PackedPage* next = nullptr;  // while free
  PackedLedger* ledger = nullptr;
  std::atomic<int32_t> refs{0};
  void* parts[2 * KVP_MAX_PARTS] = {};  // K's, then V's: what kvp_qpage::parts points at

  // `parts` in the memory of the device.
  void* const* device_parts() const noexcept { return reinterpret_cast<void* const*>(codes - PageShape::kDeviceHead); }
  bool exclusive() const noexcept { return refs.load(std::memory_order_acquire) == 1; }
  void share() noexcept { refs.fetch_add(1, std::memory_order_relaxed); }
};
static_assert(sizeof(PackedPage) <= PageShape::kHead);

// The pages of one layer of one instance. One thread at a time.
class PackedPages {
 public:
  PackedPages(const PageShape& shape, uint64_t owner, std::shared_ptr<Engine> engine);
  PackedPages(const PackedPages&) = delete;
  ~PackedPages();

  int64_t free_pages() const noexcept { return free_count_; }
  int64_t held_pages() const noexcept { return ledger_->pages.load(std::memory_order_relaxed); }
  // Brings the free pages up to n; all or nothing. Throws what the allocator answers.
  void ensure(int64_t n);
  // A free page, blank, with one reference; ensure() has made sure of it.
  PackedPage* take() noexcept;
  // The same with the content of `from`.
  PackedPage* take_copy(const PackedPage& from) noexcept;
  void release(PackedPage* page) noexcept;
  // Gives free pages back until `keep` are left.
  void trim(int64_t keep) noexcept;
  void add_memory(int64_t used_codes, int64_t used_scales, kvp_memory& out) const noexcept;

 private:
  PackedPage* pop() noexcept;

  PageShape shape_;
  const std::shared_ptr<Engine> engine_;
  PackedLedger* ledger_;
  PackedPage* free_ = nullptr;
  int64_t free_count_ = 0;
};

}  // namespace kvplug::quantized
