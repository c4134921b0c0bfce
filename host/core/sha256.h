// SPDX-License-Identifier: Apache-2.0
// SHA-256 (FIPS 180-4): digests of plugin libraries against manifests and run files, and of effective configs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace kvplug {

class Sha256 {
 public:
  void update(const void* data, std::size_t size);
  std::string hex();  // of everything given so far; ends the use of the object

 private:
  void block(const unsigned char* bytes);

  uint32_t state_[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  unsigned char pending_[64] = {};
  uint64_t size_ = 0;
};

std::string sha256_hex(std::string_view text);
std::string sha256_file(const std::filesystem::path& path);  // throws kIo

}  // namespace kvplug
