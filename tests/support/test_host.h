// SPDX-License-Identifier: Apache-2.0
// A host for tests of plugins: counts every allocation by owner, tier and purpose, fails the n-th on request, fills new
// memory with NaN, checks that what is freed equals what was taken, and runs parallel_for on as many threads, cut as
// finely, as a test wants. One per process, as a plugin remembers its host.
#pragma once

#include <kvplug/abi.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "reachable.h"

namespace kvplug::test {

class TestHost {
 public:
  static TestHost& get() {
    static TestHost host;
    return host;
  }

  const kvp_host* table() const { return &table_; }

  // The n-th allocation from now on (from 1) fails; 0 = none.
  void fail_at(int64_t n) { countdown_ = n; }
  int64_t allocations() const { return allocations_; }

  // Bytes held now; owner 0, purpose -1 and tier -1 mean all.
  uint64_t held(uint64_t owner = 0, int32_t purpose = -1, int32_t tier = -1) const {
    const std::scoped_lock lock(mutex_);
    uint64_t bytes = 0;
    for (const auto& [ptr, mem] : blocks_) {
      if ((owner == 0 || mem.owner == owner) && (purpose < 0 || mem.purpose == purpose) &&
          (tier < 0 || mem.tier == tier)) {
        bytes += mem.bytes;
      }
    }
    return bytes;
  }
  uint64_t peak() const { return peak_; }
  void restart_peak() { peak_ = held(); }
  // Frees that did not match their allocation.
  int64_t wrong_frees() const { return wrong_frees_; }

  // How parallel_for cuts: `workers` threads, pieces of `grain` times `pieces`.
  void set_workers(int32_t workers, int64_t pieces = 1) {
    workers_ = workers;
    pieces_ = pieces;
  }

 private:
  TestHost() {
    table_.struct_size = sizeof table_;
    table_.abi_major = KVP_ABI_MAJOR;
    table_.abi_minor = KVP_ABI_MINOR;
    table_.ctx = this;
    table_.name = "test";
    table_.version = "0";
    table_.log = [](void*, int32_t, const char*, const char*, size_t) {};
    table_.mem_alloc = [](void* ctx, const kvp_mem* mem, void** out, kvp_error* err) {
      return static_cast<TestHost*>(ctx)->take(*mem, out, err);
    };
    table_.mem_free = [](void* ctx, const kvp_mem* mem, void* ptr) { static_cast<TestHost*>(ctx)->give(*mem, ptr); };
    table_.get_extension = [](void* ctx, const char* id) -> const void* {
      // What the emulator in a plugin opens device memory with.
      static bool (*const open)(bool) = [](bool is) { return GuardedMemory::get().set(is); };
      if (std::string_view(id) == "kvp.test-device-memory") return &open;
      return std::string_view(id) == KVP_EXT_HOST_PARALLEL ? &static_cast<TestHost*>(ctx)->parallel_ : nullptr;
    };
    parallel_.struct_size = sizeof parallel_;
    parallel_.ctx = this;
    parallel_.workers = [](void* ctx) { return static_cast<TestHost*>(ctx)->workers_; };
    parallel_.parallel_for = [](void* ctx, int64_t n, int64_t grain, kvp_parallel_fn fn, void* arg) {
      return static_cast<TestHost*>(ctx)->run(n, grain, fn, arg);
    };
  }

  // More than a test can want: refused too, before the machine is asked.
  static constexpr uint64_t kMostBytes = uint64_t{1} << 32;

  int32_t take(const kvp_mem& mem, void** out, kvp_error* err) {
    const std::scoped_lock lock(mutex_);
    ++allocations_;
    if ((countdown_ > 0 && --countdown_ == 0) || mem.bytes > kMostBytes) {
      if (err != nullptr) {
        err->code = KVP_OUT_OF_MEMORY;
        if (err->cap > 0) std::strncpy(err->buf, "the test said no", err->cap - 1);
      }
      return KVP_OUT_OF_MEMORY;
    }
    if (mem.bytes == 0) {
      *out = nullptr;
      return KVP_OK;
    }
    const uint64_t align = mem.align == 0 ? 64 : mem.align;
    void* const ptr = mem.tier == KVP_TIER_DEVICE ? take_device(mem.bytes)
                      : mem.tier == KVP_TIER_PINNED
                          ? take_pinned(mem.bytes)
                          : std::aligned_alloc(align, (mem.bytes + align - 1) / align * align);
    if (mem.tier != KVP_TIER_DEVICE) std::memset(ptr, 0xff, mem.bytes);
    blocks_[ptr] = mem;
    held_ += mem.bytes;
    peak_ = std::max(peak_.load(), held_);
    *out = ptr;
    return KVP_OK;
  }

  void give(const kvp_mem& mem, void* ptr) {
    if (ptr == nullptr) return;
    const std::scoped_lock lock(mutex_);
    const auto at = blocks_.find(ptr);
    if (at == blocks_.end() || std::memcmp(&at->second, &mem, sizeof mem) != 0) {
      ++wrong_frees_;
      return;
    }
    held_ -= mem.bytes;
    blocks_.erase(at);
    if (mem.tier == KVP_TIER_DEVICE) {
      give_device(ptr, mem.bytes);
    } else if (mem.tier == KVP_TIER_PINNED) {
      give_pinned(ptr);
    } else {
      std::free(ptr);
    }
  }

  int32_t run(int64_t n, int64_t grain, kvp_parallel_fn fn, void* arg) {
    const int64_t piece = std::max<int64_t>(1, grain) * pieces_;
    std::atomic<int64_t> next{0};
    const auto work = [&](int32_t worker) {
      for (int64_t begin = next.fetch_add(piece); begin < n; begin = next.fetch_add(piece)) {
        fn(arg, begin, std::min(n, begin + piece), worker);
      }
    };
    std::vector<std::thread> threads;
    for (int32_t worker = 1; worker < workers_; ++worker) threads.emplace_back(work, worker);
    work(0);
    for (std::thread& thread : threads) thread.join();
    return KVP_OK;
  }

  kvp_host table_{};
  kvp_host_parallel parallel_{};
  mutable std::mutex mutex_;
  std::map<void*, kvp_mem> blocks_;
  uint64_t held_ = 0;
  std::atomic<uint64_t> peak_{0};
  std::atomic<int64_t> countdown_{0}, allocations_{0}, wrong_frees_{0};
  int32_t workers_ = 1;
  int64_t pieces_ = 1;
};

}  // namespace kvplug::test
