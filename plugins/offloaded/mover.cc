// SPDX-License-Identifier: Apache-2.0
#include "mover.h"

#include <algorithm>

namespace kvplug::offloaded {

void Mover::forget() {
  retire();
  for (Slot& slot : slots_) slot.layer = kNone;
  forget_failures();
}

void Mover::grow(size_t index, int64_t bytes) {
  flush();
  grow_tier(index, bytes);
  try {
    ensure_slots(std::max(bytes, needed_));
  } catch (...) {
    shrink_tier(index, room_[index]);
    throw;
  }
  room_[index] = bytes;
  needed_ = std::max(bytes, needed_);
}

// The tier holds what the slots hold.
void Mover::ensure_slots(int64_t bytes) {
  if (bytes <= static_cast<int64_t>(slots_[0].memory.bytes())) return;
  retire();
  for (Slot& slot : slots_) {
    slot.layer = kNone;
    slot.memory = sdk::Block();
  }
  const size_t count = std::min<size_t>(2, layers_.size());
  for (size_t i = 0; i < count; ++i) slots_[i].memory = sdk::Block(slot_memory(bytes));
  renew();
}

Mover::Slot* Mover::find(size_t index) noexcept {
  for (Slot& slot : slots_) {
    if (slot.layer == index) return &slot;
  }
  return nullptr;
}

void Mover::fetch(Slot& slot, size_t index) {
  settle(slot);
  slot.layer = index;
  slot.reads.clear();
  layers_[index]->used_spans(slot.reads);
  load(slot);
}

void Mover::prefetch(size_t index) {
  Slot& slot = other(*newest_);
  if (find(index) == nullptr && slot.memory.bytes() != 0) fetch(slot, index);
}

void Mover::enter(size_t index) {
  check_whole();
  if (needed_ == 0) return;  // nothing has been stored yet
  ensure_slots(needed_);
  Slot* slot = find(index);
  const bool fetched = slot != nullptr;
  if (!fetched) {
    slot = other(*newest_).memory.bytes() != 0 ? &other(*newest_) : &slots_[0];
    fetch(*slot, index);
  }
  const bool moves = slot != newest_ && !slot->reads.empty();
  bool waited = false;
  try {
    waited = await(*slot) || !fetched;
  } catch (...) {
    slot->layer = kNone;
    throw;
  }
  if (moves) ++(waited ? counts_.prefetch_stalls : counts_.prefetch_hits);
  newest_ = slot;
  layers_[index]->set_memory(slot->memory.data());
  prefetch((index + 1) % layers_.size());
}

void Mover::leave(size_t index) noexcept {
  Slot* slot = find(index);
  if (slot == nullptr) return;
  slot->writes.clear();
  layers_[index]->take_written(slot->writes);
  store(*slot);
}

}  // namespace kvplug::offloaded
