// SPDX-License-Identifier: Apache-2.0
// A mover between pinned host memory and a device, on a stream of its own; nothing waits but the destructor. The stream
// of calls waits by an event for what moves in and out of a slot before it computes there, the mover's by another for
// what was computed there before it moves anything; and since that is one stream, a slot is loaded behind its writes.
//
// A hit is a layer that was on its way before it was entered: whether the device then had to wait, only it knows.
#pragma once

#include <kvplug/sdk/device.h>

#include <memory>

#include "mover.h"

namespace kvplug::offloaded {

class DeviceMover final : public Mover {
 public:
  // calls: the queue of the instance's calls.
  DeviceMover(std::shared_ptr<sdk::DeviceQueue> calls, size_t layers, uint64_t owner);
  ~DeviceMover() override;

  void flush() override {}  // what reads the tier is queued behind what writes it
  void copy(size_t index, const Span& to, const Mover& from, size_t from_index, int64_t from_at) override;

 private:
  // Pinned memory of a layer: what each growth added.
  struct Piece {
    int64_t at;
    sdk::Block memory;
  };

  void check_whole() override { moves_.check(); }
  void load(Slot& slot) override;
  void store(Slot& slot) noexcept override;
  bool await(Slot& slot) override;
  void grow_tier(size_t index, int64_t bytes) override;
  void shrink_tier(size_t index, int64_t bytes) noexcept override;
  kvp_mem slot_memory(int64_t bytes) const override {
    return calls_->memory(owner_, KVP_PURPOSE_KV, static_cast<uint64_t>(bytes));
  }
  void retire() override;
  void renew() override;

  // Gives the stream and the events back.
  void drop() noexcept;
  // `second` behind what `first` has been given so far.
  void order(sdk::DeviceQueue& first, sdk::DeviceQueue& second, void* event) noexcept;
  // body(address, bytes, offset in the span) over the pieces that a span of a layer lies in.
  template <class Body>
  void in_pieces(size_t index, int64_t at, int64_t bytes, const Body& body) const;

  const std::shared_ptr<sdk::DeviceQueue> calls_;
  const uint64_t owner_;
  std::vector<std::vector<Piece>> tier_;
  sdk::DeviceQueue moves_;  // on the mover's stream
  void* ready_[2] = {};     // events of the slots
  void* any_ = nullptr;     // event for one order at a time
};

}  // namespace kvplug::offloaded
