// SPDX-License-Identifier: Apache-2.0
#include "model/exec/buffer.h"

#include <sys/mman.h>

#include <string>

#include "core/error.h"

namespace kvplug::model {

Buffer::Buffer(size_t bytes, bool huge) {
  if (bytes == 0) return;
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) {
    throw Error(Code::kOutOfMemory, "no memory for " + std::to_string(bytes >> 20) + " MiB of weights or scratch");
  }
  // A wish: without huge pages everything works, some per cent slower.
  if (huge) madvise(data, bytes, MADV_HUGEPAGE);
  data_ = static_cast<char*>(data);
  bytes_ = bytes;
}

Buffer::~Buffer() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

char* Arena::take(size_t bytes) {
  if (used_ + bytes > buffer_.size()) {
    throw Error(Code::kInternal, "arena of " + std::to_string(buffer_.size()) + " bytes is too small");
  }
  char* at = buffer_.data() + used_;
  used_ += round(bytes);
  return at;
}

}  // namespace kvplug::model
