// SPDX-License-Identifier: Apache-2.0
// config.json read key by key: every getter checks type and bounds and its error names file, key, value and what was
// expected. null reads as absent, as in Transformers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace kvplug::model {

class ConfigReader {
 public:
  // prefix: "rope_parameters." for a nested object, empty at the top.
  ConfigReader(const nlohmann::json& object, std::filesystem::path file, std::string prefix = {});

  bool has(const char* key) const;  // present and not null
  int64_t integer(const char* key, int64_t min, int64_t max) const;
  int64_t integer_or(const char* key, int64_t min, int64_t max, int64_t fallback) const;
  double number_or(const char* key, double min, double max, double fallback) const;
  bool boolean_or(const char* key, bool fallback) const;
  std::string string_or(const char* key, const std::string& fallback) const;
  std::optional<ConfigReader> object(const char* key) const;
  const nlohmann::json* find(const char* key) const;  // NULL when absent or null

  // Throws kModel: "<file>: <key>: <message>" with a hint.
  [[noreturn]] void fail(const std::string& key, const std::string& message, const std::string& hint = {}) const;
  const nlohmann::json& json() const { return object_; }

 private:
  const nlohmann::json& object_;
  std::filesystem::path file_;
  std::string prefix_;
};

}  // namespace kvplug::model
