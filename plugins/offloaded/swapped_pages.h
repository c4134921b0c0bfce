// SPDX-License-Identifier: Apache-2.0
// The pages of a layer whose data the mover keeps in a tier: page i at i * data_bytes, in the tier and in the slot.
// What is in memory always are the Pages themselves. Free pages stay with the layer.
#pragma once

#include <kvplug/sdk/pages.h>

#include "mover.h"

namespace kvplug::offloaded {

class SwappedPages final : public sdk::PageStore, public MovedLayer {
 public:
  // Pages are taken in steps of this many, so that their records are few pieces of memory.
  static constexpr int64_t kRecords = 32;
  static int64_t record_bytes(int64_t pages) noexcept {
    return (pages + kRecords - 1) / kRecords * kRecords * static_cast<int64_t>(sizeof(sdk::Page));
  }

  // tier: the slow one. queue: of a device on which the slots are; NULL: in host memory.
  SwappedPages(const sdk::PageLayout& layout, Mover& mover, size_t index, uint64_t owner, int32_t tier,
               sdk::DeviceQueue* queue)
      : PageStore(layout), mover_(mover), index_(index), owner_(owner), tier_(tier), queue_(queue) {
    mover.add(this);
  }

  void ensure(int64_t n) override;
  sdk::DeviceQueue* queue() const noexcept override { return queue_; }
  int64_t held_pages() const noexcept override { return pages_; }
  void add_memory(int64_t used, kvp_memory& memory) const noexcept override;
  sdk::Page* adopt(const PageStore& from, sdk::Page* page) override;

  void used_spans(Spans& out) const override;
  void take_written(Spans& out) override;
  void set_memory(std::byte* slot) noexcept override { base_ = reinterpret_cast<uint64_t>(slot); }

 private:
  sdk::Page& page_at(int64_t i) const noexcept {
    return reinterpret_cast<sdk::Page*>(records_[static_cast<size_t>(i / kRecords)].data())[i % kRecords];
  }
  // Adds the span of page i, to the last one where they touch.
  void add_span(Spans& out, int64_t i) const;

  Mover& mover_;
  const size_t index_;
  const uint64_t owner_;
  const int32_t tier_;
  sdk::DeviceQueue* const queue_;
  std::vector<sdk::Block> records_;
  int64_t pages_ = 0;
};

}  // namespace kvplug::offloaded
