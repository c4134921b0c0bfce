// SPDX-License-Identifier: Apache-2.0
// Device memory of the emulator, which code of the host must not touch as if it were its own: while a plugin is called
// (Closed) it is out of reach but for kernels, uploads and copies (Open), and whoever mistakes it for host memory dies.
// So does who wrote behind its end, when it is given back.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace kvplug::test {

class GuardedMemory {
 public:
  static GuardedMemory& get() {
    static GuardedMemory memory;
    return memory;
  }
  // Aligned to 256 bytes, every byte 0xff.
  void* take(size_t bytes) {
    const size_t fenced = bytes + kFence;
    std::vector<char*>& spare = spare_[kind(fenced)];
    if (base_ == nullptr) {
      void* const all =
          mmap(nullptr, kRoom, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (all == MAP_FAILED) std::abort();
      base_ = next_ = static_cast<char*>(all);
      if (!open_) mprotect(base_, kRoom, PROT_NONE);
    }
    char* at = next_;
    if (spare.empty()) {
      next_ += size_t{1} << kind(fenced);
      if (next_ > base_ + kRoom) std::abort();
    } else {
      at = spare.back();
      spare.pop_back();
    }
    const bool before = set(true);
    std::memset(at, 0xff, fenced);
    set(before);
    return at;
  }
  void give(void* data, size_t bytes) {
    const bool before = set(true);
    const char* const fence = static_cast<char*>(data) + bytes;
    if (std::any_of(fence, fence + kFence, [](char c) { return c != '\xff'; })) {
      std::fprintf(stderr, "device memory was written behind the end of %zu bytes\n", bytes);
      std::abort();
    }
    set(before);
    spare_[kind(bytes + kFence)].push_back(static_cast<char*>(data));
  }
  // Returns what it was.
  bool set(bool open) {
    const bool before = open_;
    open_ = open;
    if (before != open && base_ != nullptr) mprotect(base_, kRoom, open ? PROT_READ | PROT_WRITE : PROT_NONE);
    return before;
  }

  template <bool kOpen>
  class As {
   public:
    As() : before_(get().set(kOpen)) {}
    ~As() { get().set(before_); }
    As(const As&) = delete;

   private:
    bool before_;
  };
  using Open = As<true>;
  using Closed = As<false>;

 private:
  static constexpr size_t kRoom = size_t{1} << 32, kFence = 512;
  static size_t kind(size_t bytes) { return static_cast<size_t>(std::bit_width((bytes - 1) | 255)); }

  char *base_ = nullptr, *next_ = nullptr;
  bool open_ = true;
  std::vector<char*> spare_[64];
};

}  // namespace kvplug::test
