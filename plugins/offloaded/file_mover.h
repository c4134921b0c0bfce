// SPDX-License-Identifier: Apache-2.0
// A mover between files and host memory, on a thread of its own.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "mover.h"
#include "tier.h"

namespace kvplug::offloaded {

class FileMover final : public Mover {
 public:
  FileMover(std::unique_ptr<Tier> tier, uint64_t owner);
  ~FileMover() override;

  // Waits until the tier holds everything.
  void flush() override;
  void copy(size_t index, const Span& to, const Mover& from, size_t from_index, int64_t from_at) override;
  Counts counts() const override;

 private:
  struct Job {
    Slot* slot;
    size_t layer;
    bool write;
  };
  // Of a slot: numbers of the job that loads it and of its last job.
  struct Under {
    uint64_t loaded = 0, last = 0;
    std::string error;  // of its last load; guarded by mutex_
  };

  void check_whole() override;
  void settle(Slot& slot) override { wait_for(under(slot).loaded); }
  void load(Slot& slot) override;
  void store(Slot& slot) noexcept override;
  bool await(Slot& slot) override;
  void grow_tier(size_t index, int64_t bytes) override { tier_->grow(index, bytes); }
  kvp_mem slot_memory(int64_t bytes) const override {
    return sdk::host_memory(owner_, KVP_PURPOSE_KV, static_cast<uint64_t>(bytes));
  }
  void retire() override { wait_for(posted_); }
  void forget_failures() override;

  Under& under(const Slot& slot) noexcept { return under_[number(slot)]; }
  void post(const Job& job);
  void wait_for(uint64_t job) const;
  void work();

  std::unique_ptr<Tier> tier_;
  const uint64_t owner_;
  Under under_[2];

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
