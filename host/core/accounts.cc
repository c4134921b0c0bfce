// SPDX-License-Identifier: Apache-2.0
#include "core/accounts.h"

#include <malloc.h>

#include <kvplug/version.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <new>

#include "core/error_buffer.h"

namespace kvplug {
namespace {

constexpr uint64_t kMinAlign = 64;

void take_from(MemoryUse& use, const kvp_mem& mem) {
  use.live[mem.tier][mem.purpose] += mem.bytes;
  ++use.blocks;
  use.peak[mem.tier] = std::max(use.peak[mem.tier], use.tier_bytes(mem.tier));
}

void give_to(MemoryUse& use, const kvp_mem& mem) {
  use.live[mem.tier][mem.purpose] -= mem.bytes;
  --use.blocks;
}

void* own_alloc(const kvp_mem& mem) {
  const uint64_t rounded = (mem.bytes + mem.align - 1) & ~(mem.align - 1);
  return rounded < mem.bytes ? nullptr : std::aligned_alloc(mem.align, rounded);
}

}  // namespace

const char* tier_word(int tier) {
  static constexpr const char* kWords[KVP_N_TIERS] = {"device", "pinned", "host", "file"};
  return tier >= 0 && tier < KVP_N_TIERS ? kWords[tier] : "unknown";
}

const char* purpose_word(int purpose) {
  static constexpr const char* kWords[KVP_N_PURPOSES] = {"kv",    "packed",   "residual", "scales",
                                                         "state", "rollback", "scratch",  "other"};
  return purpose >= 0 && purpose < KVP_N_PURPOSES ? kWords[purpose] : "unknown";
}

uint64_t MemoryUse::tier_bytes(int tier) const {
  uint64_t sum = 0;
  for (const uint64_t bytes : live[tier]) sum += bytes;
  return sum;
}

void MemoryDomain::set_limit(int tier, uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  limit_[tier] = bytes;
}

void MemoryDomain::fail_allocation(uint64_t n) {
  const std::lock_guard lock(mutex_);
  fail_at_ = n == 0 ? 0 : allocations_ + n;
}

MemoryUse MemoryDomain::use() const {
  const std::lock_guard lock(mutex_);
  return use_;
}

uint64_t MemoryDomain::allocations() const {
  const std::lock_guard lock(mutex_);
  return allocations_;
}

Accounts& Accounts::get() {
  static Accounts& accounts = *new Accounts;
  return accounts;
}

void Accounts::set_device_allocator(const EngineAllocator& allocator) {
  const std::lock_guard lock(mutex_);
  device_ = allocator;
}

uint64_t Accounts::open(std::shared_ptr<MemoryDomain> domain, std::string name) {
  auto owner = std::make_shared<Owner>();
  owner->domain = std::move(domain);
  owner->name = std::move(name);
  const std::lock_guard lock(mutex_);
  owners_.emplace(next_owner_, std::move(owner));
  return next_owner_++;
}

void Accounts::close(uint64_t token) {
  const std::lock_guard lock(mutex_);
  const auto found = owners_.find(token);
  if (found == owners_.end()) return;
  found->second->closed = true;
  drop_if_done(token, *found->second);
}

bool Accounts::known(uint64_t token) const {
  const std::lock_guard lock(mutex_);
  return owners_.contains(token);
}

MemoryUse Accounts::use(uint64_t token) const {
  const std::lock_guard lock(mutex_);
  const auto found = owners_.find(token);
  return found == owners_.end() ? MemoryUse{} : found->second->use;
}

void Accounts::drop_if_done(uint64_t token, const Owner& owner) {
  if (owner.closed && owner.use.blocks == 0) owners_.erase(token);
}

// Under mutex_; takes the domain's own lock inside.
void Accounts::book(Owner& owner, const kvp_mem& mem, bool take) {
  const std::lock_guard lock(owner.domain->mutex_);
  (take ? take_from : give_to)(owner.use, mem);
  (take ? take_from : give_to)(owner.domain->use_, mem);
}

kvp_status Accounts::alloc(const kvp_mem* asked, void** out, kvp_error* err) noexcept try {
  if (asked == nullptr || out == nullptr || !KVP_HAS_FIELD(asked, stream)) {
    return write_error(err, KVP_INVALID_ARGUMENT, "mem_alloc: kvp_mem or out is missing or too short");
  }
  kvp_mem mem = *asked;
  if (mem.bytes == 0) {
    *out = nullptr;
    return KVP_OK;
  }
  if (mem.tier < 0 || mem.tier >= KVP_TIER_FILE || mem.purpose < 0 || mem.purpose >= KVP_N_PURPOSES) {
    return write_error(err, KVP_INVALID_ARGUMENT,
                       "mem_alloc: tier " + std::to_string(mem.tier) + " or purpose " + std::to_string(mem.purpose) +
                           " is unknown, or the file tier, whose bytes are the plugin's own");
  }
  if (mem.align == 0) mem.align = kMinAlign;
  if (!std::has_single_bit(mem.align)) {
    return write_error(err, KVP_INVALID_ARGUMENT,
                       "mem_alloc: align " + std::to_string(mem.align) + " is not a power of two");
  }
  mem.align = std::max(mem.align, kMinAlign);

  std::shared_ptr<Owner> owner;
  EngineAllocator engine;
  {
    const std::lock_guard lock(mutex_);
    const auto found = owners_.find(mem.owner);
    if (found == owners_.end()) {
      return write_error(err, KVP_INVALID_ARGUMENT, "mem_alloc: no owner has the token " + std::to_string(mem.owner));
    }
    owner = found->second;
    engine = owner->domain->engine_;
    if (engine.alloc == nullptr && mem.tier != KVP_TIER_HOST) engine = device_;
    MemoryDomain& domain = *owner->domain;
    {
      const std::lock_guard domain_lock(domain.mutex_);
      const auto wish = [&] {
        return owner->name + " asked for " + std::to_string(mem.bytes) + " bytes of " + tier_word(mem.tier) +
               " memory (" + purpose_word(mem.purpose) + ")";
      };
      if (++domain.allocations_ == domain.fail_at_) {
        return write_error(err, KVP_OUT_OF_MEMORY,
                           wish() + ": refused on request, as allocation " + std::to_string(domain.allocations_));
      }
      const uint64_t limit = domain.limit_[mem.tier], used = domain.use_.tier_bytes(mem.tier);
      const uint64_t left = limit > used ? limit - used : 0;
      if (mem.bytes > left) {
        return write_error(
            err, KVP_OUT_OF_MEMORY,
            wish() + ", " + std::to_string(left) + " bytes of the limit of " + std::to_string(limit) + " are left");
      }
    }
    // Booked before it is taken, so that two threads cannot pass the limit together.
    book(*owner, mem, true);
  }

  void* block = nullptr;
  kvp_status status = KVP_OK;
  if (engine.alloc != nullptr) {
    status = engine.alloc(engine.user, &mem, &block, err);
    if (status == KVP_OK && block == nullptr) {
      status = write_error(err, KVP_OUT_OF_MEMORY, "the engine's allocator gave no memory");
    }
  } else if (mem.tier == KVP_TIER_DEVICE) {
    status =
        write_error(err, KVP_UNSUPPORTED,
                    "mem_alloc: this host has no allocator for device memory; it comes with a model on the device");
  } else if ((block = own_alloc(mem)) == nullptr) {
    status = write_error(err, KVP_OUT_OF_MEMORY,
                         owner->name + ": the system has no " + std::to_string(mem.bytes) + " bytes of memory left");
  }

  const std::lock_guard lock(mutex_);
  if (status != KVP_OK) {
    book(*owner, mem, false);
    drop_if_done(mem.owner, *owner);
    return status;
  }
  blocks_.emplace(block, Block{mem, std::move(owner), engine});
  *out = block;
  return KVP_OK;
} catch (const std::exception&) {
  return write_error(err, KVP_OUT_OF_MEMORY, "mem_alloc: no memory for the host's own books");
}

std::string Accounts::free(const kvp_mem* mem, void* ptr) noexcept try {
  if (ptr == nullptr) return {};
  Block block;
  {
    const std::lock_guard lock(mutex_);
    const auto found = blocks_.find(ptr);
    if (found == blocks_.end()) return "mem_free: a block that was never taken, or was freed before; ignored";
    block = std::move(found->second);
    blocks_.erase(found);
    book(*block.owner, block.mem, false);
    drop_if_done(block.mem.owner, *block.owner);
  }
  std::string complaint;
  if (mem == nullptr || !KVP_HAS_FIELD(mem, stream) || mem->owner != block.mem.owner || mem->bytes != block.mem.bytes ||
      mem->tier != block.mem.tier || mem->purpose != block.mem.purpose) {
    complaint = "mem_free: " + block.owner->name + " frees " + std::to_string(block.mem.bytes) + " bytes of " +
                tier_word(block.mem.tier) + " memory with other values than it took them";
  } else {
    block.mem.stream = mem->stream;
  }
  if (block.from.free != nullptr) {
    block.from.free(block.from.user, &block.mem, ptr);
  } else if (block.from.alloc == nullptr) {
    std::free(ptr);
  }
  return complaint;
} catch (const std::exception&) {
  return {};
}

void release_free_blocks() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

}  // namespace kvplug
