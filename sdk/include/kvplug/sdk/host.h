// SPDX-License-Identifier: Apache-2.0
// The host as a plugin sees it: its table (set once by the entry), memory with an owner that frees itself, threads.
// Thread-safe. A Block belongs to one thread at a time.
#pragma once

#include <kvplug/sdk/status.h>

#include <atomic>
#include <cstddef>
#include <utility>

namespace kvplug::sdk {

namespace detail {
inline std::atomic<const kvp_host*> host{nullptr};
}

// The table given to the entry; valid for the life of the process. Never NULL in code that an interface table reaches.
inline const kvp_host* host() noexcept { return detail::host.load(std::memory_order_acquire); }

// The engine's threads, or NULL: then work is done serially.
inline const kvp_host_parallel* host_parallel() noexcept {
  const kvp_host* h = host();
  if (h == nullptr || !KVP_HAS_FIELD(h, get_extension) || h->get_extension == nullptr) return nullptr;
  return static_cast<const kvp_host_parallel*>(h->get_extension(h->ctx, KVP_EXT_HOST_PARALLEL));
}

inline int32_t worker_count(const kvp_host_parallel* parallel) noexcept {
  return parallel == nullptr ? 1 : parallel->workers(parallel->ctx);
}

// body(begin, end) over 0..n-1 in pieces of at least `grain`; body must not throw.
template <class Body>
void parallel_for(const kvp_host_parallel* parallel, int64_t n, int64_t grain, const Body& body) noexcept {
  if (parallel == nullptr || n <= grain) {
    if (n > 0) body(int64_t{0}, n);
    return;
  }
  const auto piece = [](void* arg, int64_t begin, int64_t end, int32_t) {
    (*static_cast<const Body*>(arg))(begin, end);
  };
  parallel->parallel_for(parallel->ctx, n, grain, piece, const_cast<Body*>(&body));
}

// What the flags of a call say.
inline bool may_allocate(const kvp_call& call) noexcept {
  return (call.flags & (KVP_CALL_PREPARED | KVP_CALL_CAPTURE)) == 0;
}
inline bool check_only(const kvp_call& call) noexcept { return (call.flags & KVP_CALL_CHECK) != 0; }

// Sizes are counted with a sign and told without.
inline uint64_t unsigned_of(int64_t n) noexcept { return static_cast<uint64_t>(n); }

// Describes host memory for mem_alloc.
inline kvp_mem host_memory(uint64_t owner, int32_t purpose, uint64_t bytes) noexcept {
  kvp_mem mem{};
  mem.struct_size = sizeof(kvp_mem);
  mem.owner = owner;
  mem.bytes = bytes;
  mem.align = 64;
  mem.tier = KVP_TIER_HOST;
  mem.purpose = purpose;
  mem.device_type = KVP_DEVICE_CPU;
  return mem;
}

// Takes memory from the host's allocator; throws a Fault with the host's own words.
inline void* take_memory(const kvp_mem& mem) {
  char text[256] = "";
  kvp_error err{};
  err.struct_size = sizeof err;
  err.buf = text;
  err.cap = sizeof text;
  void* data = nullptr;
  const kvp_status status = host()->mem_alloc(host()->ctx, &mem, &data, &err);
  if (status != KVP_OK) fail(status, mem.bytes, " bytes were refused: ", text);
  return data;
}

inline void give_memory(const kvp_mem& mem, void* data) noexcept { host()->mem_free(host()->ctx, &mem, data); }

// A piece of host memory with one owner, uninitialised.
class Block {
 public:
  Block() = default;
  explicit Block(const kvp_mem& mem) : mem_(mem), data_(take_memory(mem)) {}
  Block(Block&& other) noexcept : mem_(other.mem_), data_(std::exchange(other.data_, nullptr)) {}
  Block& operator=(Block&& other) noexcept {
    std::swap(mem_, other.mem_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~Block() {
    if (data_ != nullptr) give_memory(mem_, data_);
  }

  std::byte* data() const noexcept { return static_cast<std::byte*>(data_); }
  // Leaves the memory to the caller, who gives it back with give_memory.
  void* release() noexcept { return std::exchange(data_, nullptr); }
  size_t bytes() const noexcept { return data_ == nullptr ? 0 : static_cast<size_t>(mem_.bytes); }

 private:
  kvp_mem mem_{};
  void* data_ = nullptr;
};

}  // namespace kvplug::sdk
