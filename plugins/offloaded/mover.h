// SPDX-License-Identifier: Apache-2.0
// Brings layers from a slow tier into memory and back, on a thread of its own. Two slots of memory hold one layer each:
// the one being computed with and the next one, on its way. What was written into a layer goes back in the order of
// things: a slot is loaded anew only behind its own writes.
//
// All calls come from the instance's thread. A load that fails is an IO error of enter(), and can be tried again; a
// write that fails loses data, so every later call answers DEVICE until forget().
#pragma once

#include <kvplug/sdk/host.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tier.h"

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
  Mover(std::unique_ptr<Tier> tier, uint64_t owner);
  ~Mover();
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  // Layers in the order in which steps come to them. Before the first call of any other kind.
  void add(MovedLayer* layer);
  // Room for `bytes` of layer `index` in the tier and in the slots; not between enter and leave.
  void grow(size_t index, int64_t bytes);
  // Waits for the layer, and has the next one fetched.
  void enter(size_t index);
  void leave(size_t index) noexcept;
  // A hint: the layer will be entered soon.
  void prefetch(size_t index);
  // Waits until the tier holds everything.
  void flush();
  // What the slots hold is no longer wanted.
  void forget();
  // Copies a span of a layer of `from`, which has been flushed.
  void copy(size_t index, const Span& to, const Mover& from, size_t from_index, int64_t from_at);

  int64_t slot_bytes() const noexcept { return static_cast<int64_t>(slots_[0].memory.bytes()); }
  int64_t resident_bytes() const noexcept {
    return static_cast<int64_t>(slots_[0].memory.bytes() + slots_[1].memory.bytes());
  }
  struct Counts {
    uint64_t prefetch_hits = 0, prefetch_stalls = 0, bytes_read = 0, bytes_written = 0;
  };
  Counts counts() const;

 private:
  static constexpr size_t kNone = SIZE_MAX;
  struct Slot {
    sdk::Block memory;
    size_t layer = kNone;
    uint64_t loaded = 0, last = 0;  // numbers of the job that loads it and of its last job
    Spans reads, writes;            // of the jobs under way
    std::string error;              // of its last load; guarded by mutex_
  };
  struct Job {
    Slot* slot;
    size_t layer;
    bool write;
  };

  void load(Slot& slot, size_t index);
  void post(const Job& job);
  void wait_for(uint64_t job) const;
  void check_whole() const;
  void drain() const;
  void ensure_slots(int64_t bytes);
  void work();
  Slot* find(size_t index) noexcept;
  Slot& other(const Slot& slot) noexcept { return &slot == &slots_[0] ? slots_[1] : slots_[0]; }

  std::unique_ptr<Tier> tier_;
  const uint64_t owner_;
  std::vector<MovedLayer*> layers_;
  Slot slots_[2];
  int64_t needed_ = 0;         // bytes of a slot
  Slot* newest_ = &slots_[1];  // entered last
  Counts counts_;              // hits and stalls; the bytes are the worker's

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::deque<Job> jobs_;
  uint64_t posted_ = 0, done_ = 0;
  uint64_t bytes_read_ = 0, bytes_written_ = 0;
  std::string lost_;  // why a write failed
  bool stop_ = false;
  std::thread worker_;
};

}  // namespace kvplug::offloaded
