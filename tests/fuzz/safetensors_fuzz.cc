// SPDX-License-Identifier: Apache-2.0
// Any bytes as a safetensors file: read_safetensors_header answers with tensors inside the file or throws Error.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "core/error.h"
#include "model/describe/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const int file = memfd_create("safetensors_fuzz", 0);
  if (ftruncate(file, 0) != 0 || pwrite(file, data, size, 0) != static_cast<ssize_t>(size)) std::abort();
  try {
    for (const auto& tensor : kvplug::model::read_safetensors_header("/proc/self/fd/" + std::to_string(file), 0)) {
      if (tensor.offset > size || tensor.bytes > size - tensor.offset) std::abort();
    }
  } catch (const kvplug::Error&) {
  }
  return 0;
}
