// SPDX-License-Identifier: Apache-2.0
// The mover between pinned memory and a device, on streams that run as late as events let them, or as early, both those
// of calls and the mover's own. Memory that is given back is spoilt in the order of its stream, new memory too: so
// every order that is not said by an event shows as wrong bytes.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "../../../plugins/offloaded/device_mover.h"
#include "emulated_streams.h"

namespace kvplug::offloaded {
namespace {

using sdk::cuda::Streams;

constexpr int64_t kPage = 64;

class Memory {
 public:
  static Memory& get() {
    static Memory memory;
    return memory;
  }
  const kvp_host* table() const { return &table_; }
  int64_t held() const { return held_; }
  void release_all() {
    for (void* block : given_back_) std::free(block);
    given_back_.clear();
  }

 private:
  Memory() {
    table_.struct_size = sizeof table_;
    table_.ctx = this;
    table_.mem_alloc = [](void* ctx, const kvp_mem* mem, void** out, kvp_error*) -> int32_t {
      auto& self = *static_cast<Memory*>(ctx);
      *out = std::malloc(mem->bytes);
      self.held_ += static_cast<int64_t>(mem->bytes);
      spoil(*mem, *out);
      return KVP_OK;
    };
    table_.mem_free = [](void* ctx, const kvp_mem* mem, void* block) {
      auto& self = *static_cast<Memory*>(ctx);
      self.held_ -= static_cast<int64_t>(mem->bytes);
      spoil(*mem, block);
      self.given_back_.push_back(block);
    };
    table_.get_extension = [](void*, const char*) -> const void* { return nullptr; };
  }
  static void spoil(const kvp_mem& mem, void* block) {
    const auto work = [block, bytes = mem.bytes] { std::memset(block, 0xee, bytes); };
    if (mem.tier == KVP_TIER_DEVICE) {
      Streams::get().queue(mem.stream, work);
    } else {
      work();
    }
  }

  kvp_host table_{};
  int64_t held_ = 0;
  std::vector<void*> given_back_;
};

struct Layer final : MovedLayer {
  std::vector<uint8_t> want;
  std::byte* slot = nullptr;
  Spans written;

  void used_spans(Spans& out) const override {
    for (int64_t at = 0; at < static_cast<int64_t>(want.size()); at += kPage) out.push_back({at, kPage});
  }
  void take_written(Spans& out) override { out = std::exchange(written, {}); }
  void set_memory(std::byte* memory) noexcept override { slot = memory; }
};

// A cache with a stream for its calls, reduced to what its mover sees.
struct Cache {
  explicit Cache(size_t n)
      : calls(
            std::make_shared<sdk::DeviceQueue>(*sdk::cuda_device(), KVP_DEVICE_CUDA, 0, Streams::get().make_stream())),
        layers(n),
        mover(std::make_unique<DeviceMover>(calls, n, 1)) {
    for (Layer& layer : layers) mover->add(&layer);
  }
  ~Cache() {
    mover.reset();
    Streams::get().drop_stream(calls->stream());
  }

  // The layer's bytes are looked at, then one page is written, a new one if `grows`; all of it queued.
  void visit(size_t index, bool grows, int64_t page, uint8_t value) {
    Layer& layer = layers[index];
    const std::vector<uint8_t> before = layer.want;
    const auto size = static_cast<int64_t>(before.size()) + (grows ? kPage : 0);
    if (grows) mover->grow(index, size);
    mover->enter(index);
    if (size == 0) return;
    std::byte* const slot = layer.slot;
    Streams::get().queue(calls->stream(), [this, slot, before] {
      wrong += before.empty() || std::memcmp(slot, before.data(), before.size()) == 0 ? 0 : 1;
    });
    const int64_t at = grows ? size - kPage : page % (size / kPage) * kPage;
    Streams::get().queue(calls->stream(), [=] { std::memset(slot + at, value, kPage); });
    layer.want.resize(static_cast<size_t>(size));
    std::memset(layer.want.data() + at, value, kPage);
    layer.written.push_back({at, kPage});
    mover->leave(index);
  }

  std::shared_ptr<sdk::DeviceQueue> calls;
  std::vector<Layer> layers;
  std::unique_ptr<DeviceMover> mover;
  int wrong = 0;
};

TEST(DeviceMover, WhatWasWrittenIsThereInEveryOrderThatEventsAllow) {
  sdk::detail::host = Memory::get().table();
  uint64_t dice = 42;
  const auto roll = [&](uint64_t n) {
    dice = dice * 6364136223846793005u + 1442695040888963407u;
    return (dice >> 33) % n;
  };
  uint64_t hits = 0, stalls = 0;
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    {
      const size_t n = 1 + roll(5);
      Cache first(n), second(n);
      const auto steps = [&](Cache& cache) {
        for (uint64_t step = 1 + roll(6); step > 0; --step) {
          if (roll(2) == 0) cache.mover->prefetch(roll(n));
          for (size_t i = 0; i < n; ++i) {
            if (roll(10) != 0)
              cache.visit(i, roll(3) == 0, static_cast<int64_t>(roll(8)), static_cast<uint8_t>(roll(256)));
          }
        }
      };
      steps(first);
      for (size_t i = 0; i < n; ++i) {
        const std::vector<uint8_t>& want = first.layers[i].want;
        const auto bytes = static_cast<int64_t>(want.size());
        if (bytes > 0) second.mover->grow(i, bytes);
        for (int64_t at = 0; at < bytes; at += kPage) second.mover->copy(i, {at, kPage}, *first.mover, i, at);
        second.layers[i].want = want;
      }
      steps(first);
      steps(second);
      if (roll(4) == 0) {
        first.mover->forget();
        for (Layer& layer : first.layers) layer.want.clear();
        steps(first);
      }
      for (Cache* cache : {&first, &second}) {
        Streams::get().synchronize(cache->calls->stream());
        EXPECT_EQ(cache->wrong, 0);
        hits += cache->mover->counts().prefetch_hits;
        stalls += cache->mover->counts().prefetch_stalls;
      }
    }
    ASSERT_EQ(Memory::get().held(), 0);
    Memory::get().release_all();
  }
  EXPECT_GT(hits, 1000u);
  EXPECT_GT(stalls, 10u);  // a layer was left out
}

TEST(DeviceMover, EveryLayerOfAStepIsOnItsWayBeforeItIsEntered) {
  sdk::detail::host = Memory::get().table();
  {
    Cache cache(4);
    for (size_t i = 0; i < 4; ++i) cache.visit(i, true, 0, 1);
    const Mover::Counts before = cache.mover->counts();
    for (int step = 0; step < 10; ++step) {
      for (size_t i = 0; i < 4; ++i) cache.visit(i, false, 0, 2);
    }
    const Mover::Counts after = cache.mover->counts();
    EXPECT_EQ(after.prefetch_stalls, before.prefetch_stalls);
    EXPECT_EQ(after.prefetch_hits, before.prefetch_hits + 40);
    EXPECT_EQ(after.bytes_written, before.bytes_written + 40 * kPage);
    EXPECT_EQ(cache.mover->resident_bytes(), 2 * kPage);
    Streams::get().synchronize(cache.calls->stream());
    EXPECT_EQ(cache.wrong, 0);
  }
  Memory::get().release_all();
}

}  // namespace
}  // namespace kvplug::offloaded
