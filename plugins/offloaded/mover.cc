// SPDX-License-Identifier: Apache-2.0
#include "mover.h"

#include <kvplug/sdk/status.h>

#include <algorithm>

namespace kvplug::offloaded {

using sdk::fail;

Mover::Mover(std::unique_ptr<Tier> tier, uint64_t owner)
    : tier_(std::move(tier)), owner_(owner), worker_([this] { work(); }) {}

Mover::~Mover() {
  {
    const std::lock_guard lock(mutex_);
    jobs_.clear();
    stop_ = true;
  }
  changed_.notify_all();
  worker_.join();
}

void Mover::add(MovedLayer* layer) { layers_.push_back(layer); }

void Mover::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || !jobs_.empty(); });
    if (stop_) return;
    const Job job = jobs_.front();
    Spans& spans = job.write ? job.slot->writes : job.slot->reads;
    std::byte* const memory = job.slot->memory.data();
    const bool lost = !lost_.empty();
    lock.unlock();
    std::string error;
    uint64_t bytes = 0;
    try {
      for (const Span& span : spans) {
        if (lost) break;
        if (job.write) {
          tier_->write(job.layer, span.at, span.bytes, memory + span.at);
        } else {
          tier_->read(job.layer, span.at, span.bytes, memory + span.at);
        }
        bytes += static_cast<uint64_t>(span.bytes);
      }
    } catch (const std::exception& e) {
      error = e.what();
    }
    lock.lock();
    (job.write ? bytes_written_ : bytes_read_) += bytes;
    if (job.write && !error.empty() && lost_.empty()) lost_ = error;
    if (!job.write) job.slot->error = error;
    if (!jobs_.empty()) jobs_.pop_front();
    ++done_;
    changed_.notify_all();
  }
}

void Mover::post(const Job& job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(job);
    job.slot->last = ++posted_;
  }
  changed_.notify_all();
}

void Mover::wait_for(uint64_t job) const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= job; });
}

void Mover::check_whole() const {
  const std::lock_guard lock(mutex_);
  if (!lost_.empty()) fail(KVP_DEVICE, "an earlier write failed, what it held is lost: ", lost_);
}

void Mover::drain() const { wait_for(posted_); }

void Mover::flush() {
  drain();
  check_whole();
}

void Mover::forget() {
  drain();
  for (Slot& slot : slots_) {
    slot.layer = kNone;
    slot.error.clear();
  }
  lost_.clear();
}

void Mover::grow(size_t index, int64_t bytes) {
  flush();
  tier_->grow(index, bytes);
  ensure_slots(std::max(bytes, needed_));
  needed_ = std::max(bytes, needed_);
}

// The tier holds what the slots hold.
void Mover::ensure_slots(int64_t bytes) {
  if (bytes <= slot_bytes()) return;
  drain();
  for (Slot& slot : slots_) {
    slot.layer = kNone;
    slot.memory = sdk::Block();
  }
  const size_t count = std::min<size_t>(2, layers_.size());
  for (size_t i = 0; i < count; ++i) {
    slots_[i].memory = sdk::Block(sdk::host_memory(owner_, KVP_PURPOSE_KV, static_cast<uint64_t>(bytes)));
  }
}

Mover::Slot* Mover::find(size_t index) noexcept {
  for (Slot& slot : slots_) {
    if (slot.layer == index) return &slot;
  }
  return nullptr;
}

// The worker may still be writing from the slot; the load comes behind that.
void Mover::load(Slot& slot, size_t index) {
  wait_for(slot.loaded);  // it reads `reads`
  slot.layer = index;
  slot.reads.clear();
  layers_[index]->used_spans(slot.reads);
  post({&slot, index, false});
  slot.loaded = slot.last;
}

void Mover::prefetch(size_t index) {
  Slot& slot = other(*newest_);
  if (find(index) == nullptr && slot.memory.bytes() != 0) load(slot, index);
}

void Mover::enter(size_t index) {
  check_whole();
  if (needed_ == 0) return;  // nothing has been stored yet
  ensure_slots(needed_);
  Slot* slot = find(index);
  if (slot == nullptr) {
    slot = other(*newest_).memory.bytes() != 0 ? &other(*newest_) : &slots_[0];
    load(*slot, index);
  }
  const bool moves = slot != newest_ && !slot->reads.empty();
  bool waited = false;
  std::string error;
  {
    std::unique_lock lock(mutex_);
    waited = done_ < slot->loaded;
    changed_.wait(lock, [&] { return done_ >= slot->last; });
    error = slot->error;
  }
  if (!error.empty()) {
    slot->layer = kNone;
    fail(KVP_IO, error);
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
  if (!slot->writes.empty()) post({slot, index, true});
}

void Mover::copy(size_t index, const Span& to, const Mover& from, size_t from_index, int64_t from_at) {
  std::vector<std::byte> buffer(static_cast<size_t>(std::min<int64_t>(to.bytes, 64 << 10)));
  for (int64_t done = 0; done < to.bytes;) {
    const int64_t n = std::min<int64_t>(to.bytes - done, static_cast<int64_t>(buffer.size()));
    from.tier_->read(from_index, from_at + done, n, buffer.data());
    tier_->write(index, to.at + done, n, buffer.data());
    done += n;
  }
}

Mover::Counts Mover::counts() const {
  const std::lock_guard lock(mutex_);
  Counts all = counts_;
  all.bytes_read = bytes_read_;
  all.bytes_written = bytes_written_;
  return all;
}

}  // namespace kvplug::offloaded
