// SPDX-License-Identifier: Apache-2.0
#include "device_mover.h"

#include <kvplug/sdk/status.h>

#include <algorithm>

namespace kvplug::offloaded {

using sdk::Device;

DeviceMover::DeviceMover(std::shared_ptr<sdk::DeviceQueue> calls, size_t layers, uint64_t owner)
    : calls_(std::move(calls)),
      owner_(owner),
      tier_(layers),
      moves_(calls_->device(), calls_->type(), calls_->id(), nullptr) {
  const Device& device = calls_->device();
  void* stream = nullptr;
  int error = device.make_stream(calls_->id(), &stream);
  moves_.start(stream);
  for (void** event : {&ready_[0], &ready_[1], &any_}) {
    if (error == 0) error = device.make_event(calls_->id(), event);
  }
  if (error == 0) return;
  drop();
  sdk::fail(KVP_DEVICE, "no stream for moving layers: ", device.error_text(error));
}

DeviceMover::~DeviceMover() {
  moves_.run(&Device::synchronize);
  drop();
}

void DeviceMover::drop() noexcept {
  for (void* event : {ready_[0], ready_[1], any_}) {
    if (event != nullptr) calls_->device().drop_event(calls_->id(), event);
  }
  if (moves_.stream() != nullptr) calls_->device().drop_stream(calls_->id(), moves_.stream());
}

void DeviceMover::order(sdk::DeviceQueue& first, sdk::DeviceQueue& second, void* event) noexcept {
  first.run(&Device::record, event);
  second.run(&Device::wait, event);
}

template <class Body>
void DeviceMover::in_pieces(size_t index, int64_t at, int64_t bytes, const Body& body) const {
  const std::vector<Piece>& pieces = tier_[index];
  auto piece = std::upper_bound(pieces.begin(), pieces.end(), at,
                                [](int64_t place, const Piece& each) { return place < each.at; });
  for (int64_t done = 0; done < bytes; ++piece) {
    const Piece& in = *(piece - 1);
    const int64_t begin = at + done - in.at;
    const int64_t n = std::min(bytes - done, static_cast<int64_t>(in.memory.bytes()) - begin);
    body(in.memory.data() + begin, n, done);
    done += n;
  }
}

void DeviceMover::grow_tier(size_t index, int64_t bytes) {
  std::vector<Piece>& pieces = tier_[index];
  const int64_t have = pieces.empty() ? 0 : pieces.back().at + static_cast<int64_t>(pieces.back().memory.bytes());
  if (bytes <= have) return;
  pieces.push_back(
      {have, sdk::Block(calls_->memory(owner_, KVP_PURPOSE_KV, static_cast<uint64_t>(bytes - have), KVP_TIER_PINNED))});
}

void DeviceMover::shrink_tier(size_t index, int64_t bytes) noexcept {
  while (!tier_[index].empty() && tier_[index].back().at >= bytes) tier_[index].pop_back();
}

void DeviceMover::load(Slot& slot) {
  for (const Span& span : slot.reads) {
    in_pieces(slot.layer, span.at, span.bytes, [&](const std::byte* from, int64_t n, int64_t offset) {
      moves_.run(&Device::move, static_cast<void*>(slot.memory.data() + span.at + offset),
                 static_cast<const void*>(from), static_cast<size_t>(n));
    });
    counts_.bytes_read += static_cast<uint64_t>(span.bytes);
  }
  moves_.run(&Device::record, ready_[number(slot)]);
}

void DeviceMover::store(Slot& slot) noexcept {
  order(*calls_, moves_, any_);
  for (const Span& span : slot.writes) {
    in_pieces(slot.layer, span.at, span.bytes, [&](std::byte* to, int64_t n, int64_t offset) {
      moves_.run(&Device::move, static_cast<void*>(to), static_cast<const void*>(slot.memory.data() + span.at + offset),
                 static_cast<size_t>(n));
    });
    counts_.bytes_written += static_cast<uint64_t>(span.bytes);
  }
  if (!slot.writes.empty()) moves_.run(&Device::record, ready_[number(slot)]);
}

bool DeviceMover::await(Slot& slot) {
  calls_->run(&Device::wait, ready_[number(slot)]);
  return false;
}

// Memory is given back, and taken, in the order of the calls' stream.
void DeviceMover::retire() { order(moves_, *calls_, any_); }
void DeviceMover::renew() { order(*calls_, moves_, any_); }

// Through a slot, as no stream copies between two places of host memory. The source's stream may write there
// afterwards.
void DeviceMover::copy(size_t index, const Span& to, const Mover& from, size_t from_index, int64_t from_at) {
  const auto& source = static_cast<const DeviceMover&>(from);
  sdk::DeviceQueue there(calls_->device(), calls_->type(), calls_->id(), source.moves_.stream());
  order(there, moves_, any_);
  std::byte* const slot = this->slot(0)->memory.data() + to.at;
  source.in_pieces(from_index, from_at, to.bytes, [&](const std::byte* data, int64_t n, int64_t offset) {
    moves_.run(&Device::move, static_cast<void*>(slot + offset), static_cast<const void*>(data),
               static_cast<size_t>(n));
  });
  order(moves_, there, any_);
  in_pieces(index, to.at, to.bytes, [&](std::byte* data, int64_t n, int64_t offset) {
    moves_.run(&Device::move, static_cast<void*>(data), static_cast<const void*>(slot + offset),
               static_cast<size_t>(n));
  });
  moves_.check();
}

}  // namespace kvplug::offloaded
