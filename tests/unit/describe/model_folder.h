// SPDX-License-Identifier: Apache-2.0
// A tiny Llama folder in a temporary place that a test then damages. describe_model of the folder as written succeeds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/error.h"
#include "model/describe/description.h"

namespace kvplug::testing {

class ModelFolder {
 public:
  ModelFolder();
  ~ModelFolder();
  ModelFolder(const ModelFolder&) = delete;
  ModelFolder& operator=(const ModelFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }
  nlohmann::json config;                                // written by describe()
  std::map<std::string, std::vector<int64_t>> tensors;  // name -> shape; all float32 zeros

  void write_config() const;
  // All tensors, or those whose names are given, into one file.
  void write_shard(const std::string& file, const std::vector<std::string>& names) const;
  void write_raw(const std::string& file, const std::string& bytes) const;
  // header text and data as a safetensors file
  void write_safetensors(const std::string& file, const std::string& header, const std::string& data) const;

  // Writes config.json and model.safetensors if the test has not, then reads the folder.
  model::Description describe() const;
  // The error that describe() throws; fails the test if there is none.
  Error error() const;

 private:
  std::filesystem::path path_;
};

}  // namespace kvplug::testing
