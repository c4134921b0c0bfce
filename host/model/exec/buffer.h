// SPDX-License-Identifier: Apache-2.0
// Large memory straight from the system: page aligned, zero until touched, resident only where touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace kvplug::model {

class Buffer {
 public:
  Buffer() = default;
  // huge: ask for huge pages, for memory that is read from end to end. Throws kOutOfMemory.
  explicit Buffer(size_t bytes, bool huge = false);
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Buffer();

  char* data() const { return data_; }
  size_t size() const { return bytes_; }

 private:
  char* data_ = nullptr;
  size_t bytes_ = 0;
};

// Hands out pieces of one buffer, each on a cache line. The sum is known before: take() beyond it is a broken
// invariant.
class Arena {
 public:
  static constexpr size_t kAlign = 64;
  static size_t round(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

  Arena() = default;
  explicit Arena(size_t bytes, bool huge = false) : buffer_(bytes, huge) {}
  char* take(size_t bytes);
  size_t size() const { return buffer_.size(); }

 private:
  Buffer buffer_;
  size_t used_ = 0;
};

}  // namespace kvplug::model
