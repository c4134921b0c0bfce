// SPDX-License-Identifier: Apache-2.0
// Where K/V lie while they are not in memory: one growing room of bytes a layer. read and write are called by the
// mover's thread alone, the others while that thread rests. All throw Faults.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvplug::offloaded {

class Tier {
 public:
  virtual ~Tier() = default;
  // Room for `bytes` of layer `layer`, really taken: later writes into it do not run out of space.
  virtual void grow(size_t layer, int64_t bytes) = 0;
  virtual void read(size_t layer, int64_t at, int64_t bytes, std::byte* to) = 0;
  virtual void write(size_t layer, int64_t at, int64_t bytes, const std::byte* from) = 0;
};

}  // namespace kvplug::offloaded
