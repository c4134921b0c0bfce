// SPDX-License-Identifier: Apache-2.0
// Loading the tiny checkpoints of tests/data and their golden files.
#pragma once

#include <filesystem>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "model/exec/packed_model.h"
#include "model/exec/step_runner.h"

namespace kvplug::testing {

inline std::filesystem::path data(const std::string& path) { return std::filesystem::path(KVPLUG_TEST_DATA) / path; }

inline nlohmann::json golden(const std::string& model) {
  std::ifstream file(data("golden/generate/" + model + ".json"));
  return nlohmann::json::parse(file);
}

inline const nlohmann::json& find_case(const nlohmann::json& file, const std::string& id) {
  for (const auto& one : file.at("cases")) {
    if (one.at("id") == id) return one;
  }
  throw std::runtime_error("no golden case " + id);
}

inline std::shared_ptr<const model::PackedModel> load(const std::string& name, bool deterministic = false,
                                                      bool mmap = true) {
  const model::Description description = model::describe_model(data("models/" + name));
  const model::LoadOptions options{
      .dtype = description.checkpoint_dtype, .threads = 1, .mmap = mmap, .deterministic = deterministic};
  return std::make_shared<const model::PackedModel>(description, options, model::Progress());
}

// Logits of every position without a cache.
inline std::vector<float> all_logits(const std::shared_ptr<const model::PackedModel>& model,
                                     const std::vector<int32_t>& ids, int64_t batch) {
  const auto tokens = static_cast<int64_t>(ids.size()) / batch;
  model::StepRunner runner(model, {.max_batch = batch, .max_query = tokens, .use_cache = false}, nullptr);
  std::vector<float> logits(ids.size() * static_cast<size_t>(model->description.vocab_size));
  const model::ForwardInput input{.ids = ids.data(), .batch = batch, .tokens = tokens};
  runner.forward_all(input, nullptr, logits.data());
  return logits;
}

}  // namespace kvplug::testing
