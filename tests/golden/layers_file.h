// SPDX-License-Identifier: Apache-2.0
// The records of Transformers' cache layers: a JSON file of cases with the tensors beside it.
#pragma once

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "golden/tally.h"
#include "support/safetensors.h"
#include "support/values.h"

namespace kvplug::testing {

using nlohmann::json;

struct LayersFile {
  json cases;
  std::map<std::string, GoldenTensor> tensors;

  explicit LayersFile(const std::string& name) {
    const std::filesystem::path folder = std::filesystem::path(KVPLUG_TEST_DATA) / "golden/layers";
    std::ifstream in(folder / (name + ".json"));
    const json document = json::parse(in);
    cases = document.at("cases");
    tensors = read_safetensors(folder / document.at("tensors").get<std::string>());
  }
};

inline test::Values values_of(const GoldenTensor& tensor) {
  const std::vector<int64_t>& s = tensor.shape;
  if (s.size() != 4) throw std::runtime_error("a golden tensor that is not of four dims");
  const kvp_dtype dtype = tensor.dtype == "F32" ? test::kF32 : tensor.dtype == "F16" ? test::kF16 : test::kBF16;
  const test::Values v = test::make(dtype, {s[0], s[1], s[2], s[3]});
  if (v.memory->size() != tensor.bytes.size()) throw std::runtime_error("a golden tensor of type " + tensor.dtype);
  std::memcpy(v.memory->data(), tensor.bytes.data(), tensor.bytes.size());
  return v;
}

// The cases of quantized layers, on `quantized` with hf_compat = "strict". decisions: where ours differs, counted.
void add_strict_layer_case(Tally& tally, const LayersFile& file, const json& golden,
                           std::map<std::string, size_t>& decisions);

}  // namespace kvplug::testing
