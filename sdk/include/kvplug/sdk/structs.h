// SPDX-License-Identifier: Apache-2.0
// Structs that grow, read and written across versions: what the other side did not know reads as zero, and no more is
// written than it has room for.
#pragma once

#include <kvplug/abi.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace kvplug::sdk {

// A whole T from one that may be shorter (an older caller) or longer (a newer one). NULL reads as all zeros.
template <class T>
T read_struct(const T* from) noexcept {
  static_assert(std::is_trivially_copyable_v<T>);
  T whole{};
  if (from != nullptr) std::memcpy(&whole, from, std::min(from->struct_size, sizeof(T)));
  whole.struct_size = sizeof(T);
  return whole;
}

// Writes as much of `whole` as the caller's struct has; its struct_size stays.
template <class T>
void write_struct(const T& whole, T* to) noexcept {
  static_assert(std::is_trivially_copyable_v<T>);
  const size_t size = to->struct_size;
  std::memcpy(to, &whole, std::min(size, sizeof(T)));
  to->struct_size = size;
}

// Element i of an array whose elements may be of another version.
template <class T>
T read_at(const T* base, size_t stride, size_t i) noexcept {
  return read_struct(KVP_AT(T, base, stride, i));
}

}  // namespace kvplug::sdk
