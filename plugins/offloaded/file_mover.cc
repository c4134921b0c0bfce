// SPDX-License-Identifier: Apache-2.0
#include "file_mover.h"

#include <kvplug/sdk/status.h>

#include <algorithm>

namespace kvplug::offloaded {

using sdk::fail;

FileMover::FileMover(std::unique_ptr<Tier> tier, uint64_t owner)
    : tier_(std::move(tier)), owner_(owner), worker_([this] { work(); }) {}

FileMover::~FileMover() {
  {
    const std::lock_guard lock(mutex_);
    jobs_.clear();
    stop_ = true;
  }
  changed_.notify_all();
  worker_.join();
}

void FileMover::work() {
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
    if (!job.write) under(*job.slot).error = error;
    if (!jobs_.empty()) jobs_.pop_front();
    ++done_;
    changed_.notify_all();
  }
}

void FileMover::post(const Job& job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(job);
    under(*job.slot).last = ++posted_;
  }
  changed_.notify_all();
}

void FileMover::wait_for(uint64_t job) const {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return done_ >= job; });
}

void FileMover::check_whole() {
  const std::lock_guard lock(mutex_);
  if (!lost_.empty()) fail(KVP_DEVICE, "an earlier write failed, what it held is lost: ", lost_);
}

void FileMover::flush() {
  retire();
  check_whole();
}

void FileMover::forget_failures() {
  for (Under& under : under_) under.error.clear();
  lost_.clear();
}

// The worker may still be writing from the slot; the load comes behind that.
void FileMover::load(Slot& slot) {
  post({&slot, slot.layer, false});
  under(slot).loaded = under(slot).last;
}

void FileMover::store(Slot& slot) noexcept {
  if (!slot.writes.empty()) post({&slot, slot.layer, true});
}

bool FileMover::await(Slot& slot) {
  Under& at = under(slot);
  std::unique_lock lock(mutex_);
  const bool waited = done_ < at.loaded;
  changed_.wait(lock, [&] { return done_ >= at.last; });
  if (!at.error.empty()) fail(KVP_IO, at.error);
  return waited;
}

void FileMover::copy(size_t index, const Span& to, const Mover& from, size_t from_index, int64_t from_at) {
  const auto& source = static_cast<const FileMover&>(from);
  std::vector<std::byte> buffer(static_cast<size_t>(std::min<int64_t>(to.bytes, 64 << 10)));
  for (int64_t done = 0; done < to.bytes;) {
    const int64_t n = std::min<int64_t>(to.bytes - done, static_cast<int64_t>(buffer.size()));
    source.tier_->read(from_index, from_at + done, n, buffer.data());
    tier_->write(index, to.at + done, n, buffer.data());
    done += n;
  }
}

Mover::Counts FileMover::counts() const {
  const std::lock_guard lock(mutex_);
  Counts all = counts_;
  all.bytes_read = bytes_read_;
  all.bytes_written = bytes_written_;
  return all;
}

}  // namespace kvplug::offloaded
