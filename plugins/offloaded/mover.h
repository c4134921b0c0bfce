// SPDX-License-Identifier: Apache-2.0
// Brings layers from a slow tier to where they are computed with, and back. Two slots of memory hold one layer each:
// the one being computed with and the next one, on its way. What was written into a layer goes back in the order of
// things: a slot is loaded anew only behind its own writes. How bytes move is said by FileMover and DeviceMover.
//
// All calls come from the instance's thread. A load that fails is an IO error of enter(), and can be tried again; a
// write that fails loses data, so every later call answers DEVICE until forget().
#pragma once

#include <kvplug/sdk/host.h>

#include <vector>

namespace kvplug::offloaded {

// Bytes [at, at + bytes) of a layer, in the tier and in its slot alike.
struct Span {
  int64_t at, bytes;
};
using Spans = std::vector<Span>;

// What the mover asks of a layer.
class MovedLayer {
 public:
  virtual ~MovedLayer() = default;
  virtual void used_spans(Spans& out) const = 0;  // what holds tokens
  virtual void take_written(Spans& out) = 0;      // what was written since the last question
  virtual void set_memory(std::byte* slot) noexcept = 0;
};

class Mover {
 public:
  virtual ~Mover() = default;
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  // Layers in the order in which steps come to them. Before the first call of any other kind.
  void add(MovedLayer* layer) {
    layers_.push_back(layer);
    room_.push_back(0);
  }
  // Room for `bytes` of layer `index` in the tier and in the slots; not between enter and leave.
  void grow(size_t index, int64_t bytes);
  // Has the layer at hand for what comes next, and the next one fetched.
  void enter(size_t index);
  void leave(size_t index) noexcept;
  // A hint: the layer will be entered soon.
  void prefetch(size_t index);
  // The tier will hold everything for whoever asks from now on.
  virtual void flush() = 0;
  // What the slots hold is no longer wanted.
  void forget();
  // Copies a span of a layer of `from`, a mover of the same class that has been flushed.
  virtual void copy(size_t index, const Span& to, const Mover& from, size_t from_index, int64_t from_at) = 0;

  int64_t resident_bytes() const noexcept {
    return static_cast<int64_t>(slots_[0].memory.bytes() + slots_[1].memory.bytes());
  }
  struct Counts {
    uint64_t prefetch_hits = 0, prefetch_stalls = 0, bytes_read = 0, bytes_written = 0;
  };
  virtual Counts counts() const { return counts_; }

 protected:
  static constexpr size_t kNone = SIZE_MAX;
  struct Slot {
    sdk::Block memory;
    size_t layer = kNone;
    Spans reads, writes;  // of what is under way
  };

  Mover() = default;
  Slot* slot(size_t number) noexcept { return &slots_[number]; }
  size_t number(const Slot& slot) const noexcept { return &slot == &slots_[0] ? 0 : 1; }

  // Fails if an earlier write did.
  virtual void check_whole() {}
  // The loads of the slot no longer read its `reads`.
  virtual void settle(Slot&) {}
  // Begins to load what `reads` names, or to write what `writes` names, behind what is under way in the slot.
  virtual void load(Slot& slot) = 0;
  virtual void store(Slot& slot) noexcept = 0;
  // The slot may be computed with. True if it was not ready; throws IO if its load failed.
  virtual bool await(Slot& slot) = 0;
  virtual void grow_tier(size_t index, int64_t bytes) = 0;
  virtual void shrink_tier(size_t, int64_t) noexcept {}  // back to `bytes`, after a failure
  virtual kvp_mem slot_memory(int64_t bytes) const = 0;
  // Before slots are given back, with everything under way in them, and after new ones are there.
  virtual void retire() = 0;
  virtual void renew() {}
  virtual void forget_failures() {}

  Counts counts_;

 private:
  void ensure_slots(int64_t bytes);
  void fetch(Slot& slot, size_t index);
  Slot* find(size_t index) noexcept;
  Slot& other(const Slot& slot) noexcept { return &slot == &slots_[0] ? slots_[1] : slots_[0]; }

  std::vector<MovedLayer*> layers_;
  std::vector<int64_t> room_;  // bytes of the layers in the tier
  Slot slots_[2];
  int64_t needed_ = 0;         // bytes of a slot
  Slot* newest_ = &slots_[1];  // entered last
};

}  // namespace kvplug::offloaded
