// SPDX-License-Identifier: Apache-2.0
// Golden tensors for tests: a reader of whole safetensors files, independent of the host's. Believes what it reads.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace kvplug::testing {

struct GoldenTensor {
  std::string dtype;  // "F32", "BF16", ...
  std::vector<int64_t> shape;
  std::string bytes;

  // F32, BF16, F16 (normal numbers, zeros and infinities) as float.
  std::vector<float> floats() const {
    std::vector<float> out;
    for (size_t at = 0; at < bytes.size(); at += dtype == "F32" ? 4 : 2) {
      uint32_t bits = 0;
      std::memcpy(&bits, bytes.data() + at, dtype == "F32" ? 4 : 2);
      if (dtype == "BF16") bits <<= 16;
      if (dtype == "F16") {
        const uint32_t exponent = bits >> 10 & 31u;
        const uint32_t wide = exponent == 0 ? 0 : exponent == 31 ? 255 : exponent + 112;
        bits = (bits & 0x8000u) << 16 | wide << 23 | (bits & 0x3ffu) << 13;
      }
      float value;
      std::memcpy(&value, &bits, 4);
      out.push_back(value);
    }
    return out;
  }
};

inline std::map<std::string, GoldenTensor> read_safetensors(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string all((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (all.size() < 8) throw std::runtime_error("cannot read " + path.string());
  uint64_t header = 0;
  std::memcpy(&header, all.data(), 8);
  std::map<std::string, GoldenTensor> out;
  const auto entries = nlohmann::json::parse(all.substr(8, header));
  for (const auto& [name, entry] : entries.items()) {
    if (name == "__metadata__") continue;
    const auto begin = entry.at("data_offsets").at(0).get<size_t>(), end = entry.at("data_offsets").at(1).get<size_t>();
    out[name] = {entry.at("dtype"), entry.at("shape"), all.substr(8 + header + begin, end - begin)};
  }
  return out;
}

}  // namespace kvplug::testing
