// SPDX-License-Identifier: Apache-2.0
// The accounted allocator behind kvp_host.mem_alloc: every block is booked on its owner, tier and purpose.
//
// An owner is one cache instance, known by a token that is unique in the process. A block stays booked on the owner
// that took it until it is freed, be it after the instance's end (pages shared by clones); the token lives as long.
// Owners belong to a MemoryDomain, one per host: limits, the engine's allocator and fault injection are the domain's.
// Everything is thread-safe; no lock is held while the engine's allocator runs.
#pragma once

#include <kvplug/host.h>
#include <kvplug/memory.h>
#include <kvplug/status.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

namespace kvplug {

struct MemoryUse {
  uint64_t live[KVP_N_TIERS][KVP_N_PURPOSES] = {};  // bytes held now
  uint64_t peak[KVP_N_TIERS] = {};                  // the most held at once, over all purposes
  uint64_t blocks = 0;                              // held now
  uint64_t tier_bytes(int tier) const;
};

// The engine's own allocator (kvplug_host_params); both NULL = aligned host memory of our own.
struct EngineAllocator {
  int32_t (*alloc)(void* user, const kvp_mem*, void** out, kvp_error*) = nullptr;
  void (*free)(void* user, const kvp_mem*, void*) = nullptr;
  void* user = nullptr;
};

class MemoryDomain {
 public:
  explicit MemoryDomain(EngineAllocator engine) : engine_(engine) {}

  // No more than `bytes` in `tier` at once, over all owners; UINT64_MAX (the default) = no limit.
  void set_limit(int tier, uint64_t bytes);
  // Lets the n-th allocation from now (1 = the next) fail with OUT_OF_MEMORY, once; 0 = none.
  void fail_allocation(uint64_t n);
  MemoryUse use() const;
  uint64_t allocations() const;  // asked for so far, failed ones included, zero-byte ones not

 private:
  friend class Accounts;
  const EngineAllocator engine_;
  mutable std::mutex mutex_;
  MemoryUse use_;
  uint64_t limit_[KVP_N_TIERS] = {UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX};
  uint64_t allocations_ = 0, fail_at_ = 0;
};

// The table of owners and blocks of the process; never destroyed, since plugins are never unloaded.
class Accounts {
 public:
  static Accounts& get();

  // Serves the device and pinned tiers of domains without an allocator of their own, in the whole process, from now on.
  void set_device_allocator(const EngineAllocator& allocator);

  uint64_t open(std::shared_ptr<MemoryDomain> domain, std::string name);
  void close(uint64_t owner);           // the instance has ended; the token stays while blocks are booked on it
  bool known(uint64_t owner) const;     // still open, or holding blocks
  MemoryUse use(uint64_t owner) const;  // zeros for an unknown owner

  kvp_status alloc(const kvp_mem* mem, void** out, kvp_error* err) noexcept;
  // Returns "" or what is wrong: a block that was not taken here, or other values than at its allocation.
  std::string free(const kvp_mem* mem, void* ptr) noexcept;

 private:
  struct Owner {
    std::shared_ptr<MemoryDomain> domain;
    std::string name;
    MemoryUse use;
    bool closed = false;
  };
  struct Block {
    kvp_mem mem;
    std::shared_ptr<Owner> owner;
    EngineAllocator from;  // who gave it; empty: aligned_alloc
  };
  void book(Owner& owner, const kvp_mem& mem, bool take);
  void drop_if_done(uint64_t token, const Owner& owner);

  mutable std::mutex mutex_;
  EngineAllocator device_;
  std::unordered_map<uint64_t, std::shared_ptr<Owner>> owners_;
  std::unordered_map<void*, Block> blocks_;
  uint64_t next_owner_ = 1;
};

// Gives the free blocks that the process's allocator keeps back to the system.
void release_free_blocks();

// f(tier, purpose, bytes) for every figure of a kvp_memory that is not 0.
template <class F>
void each_bytes(const uint64_t (&bytes)[KVP_N_TIERS][KVP_N_PURPOSES], F f) {
  for (int tier = 0; tier < KVP_N_TIERS; ++tier) {
    for (int purpose = 0; purpose < KVP_N_PURPOSES; ++purpose) {
      if (bytes[tier][purpose] != 0) f(tier, purpose, bytes[tier][purpose]);
    }
  }
}

const char* tier_word(int tier);        // "device", "pinned", "host", "file"
const char* purpose_word(int purpose);  // "kv", "packed", "residual", "scales", "state", "rollback", "scratch", "other"

}  // namespace kvplug
