// SPDX-License-Identifier: Apache-2.0
// Streams and events of the emulator: what was queued runs as late as it may, or earlier where a dice says so, in an
// order of streams that events alone bind. A missing event shows as wrong data. A stream that was not made here runs
// what it is given at once, having first run whatever it waits for.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>

namespace kvplug::sdk::cuda {

class Streams {
 public:
  struct Event {
    void* stream = nullptr;
    uint64_t ticket = 0;
  };

  static Streams& get() {
    static Streams streams;
    return streams;
  }

  void* make_stream() {
    const std::scoped_lock lock(mutex_);
    ++next_;
    void* const stream = reinterpret_cast<void*>(next_ * 16);
    made_[stream];
    return stream;
  }
  void drop_stream(void* stream) {
    synchronize(stream);
    const std::scoped_lock lock(mutex_);
    made_.erase(stream);
  }

  void queue(void* stream, std::function<void()> work) {
    const std::scoped_lock lock(mutex_);
    push(stream, {std::move(work), {}});
  }
  void record(void* stream, Event* event) {
    const std::scoped_lock lock(mutex_);
    const auto found = made_.find(stream);
    *event = {stream, found == made_.end() ? 0 : found->second.queued};
  }
  void wait(void* stream, const Event& event) {
    const std::scoped_lock lock(mutex_);
    push(stream, {nullptr, event});
  }
  void synchronize(void* stream) {
    const std::scoped_lock lock(mutex_);
    const auto found = made_.find(stream);
    if (found != made_.end()) run_until({stream, found->second.queued});
  }

 private:
  struct Work {
    std::function<void()> run;  // empty: waits for `until`
    Event until;
  };
  struct Stream {
    std::deque<Work> waiting;
    uint64_t queued = 0, done = 0;
  };

  void push(void* stream, Work work) {
    const auto found = made_.find(stream);
    if (found == made_.end()) {
      finish(work);
    } else {
      found->second.waiting.push_back(std::move(work));
      ++found->second.queued;
    }
    dice_ = dice_ * 6364136223846793005u + 1442695040888963407u;
    if (dice_ >> 62 != 0) return;
    for (auto& [each, queue] : made_) {
      if (!queue.waiting.empty() && (dice_ >> 40) % 2 == 0) run_until({each, queue.done + 1});
    }
  }
  void finish(const Work& work) {
    if (work.run) {
      work.run();
    } else {
      run_until(work.until);
    }
  }
  void run_until(const Event& event) {
    const auto found = made_.find(event.stream);
    if (found == made_.end()) return;
    Stream& stream = found->second;
    while (stream.done < event.ticket) {
      const Work work = std::move(stream.waiting.front());
      stream.waiting.pop_front();
      finish(work);
      ++stream.done;
    }
  }

  std::recursive_mutex mutex_;
  std::map<void*, Stream> made_;
  uintptr_t next_ = 0;
  uint64_t dice_ = 1;
};

}  // namespace kvplug::sdk::cuda
