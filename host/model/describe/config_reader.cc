// SPDX-License-Identifier: Apache-2.0
#include "model/describe/config_reader.h"

#include <utility>

#include "core/error.h"

namespace kvplug::model {
namespace {

std::string shown(const nlohmann::json& value) {
  std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

std::string number_text(double value) { return nlohmann::json(value).dump(); }

}  // namespace

ConfigReader::ConfigReader(const nlohmann::json& object, std::filesystem::path file, std::string prefix)
    : object_(object), file_(std::move(file)), prefix_(std::move(prefix)) {}

const nlohmann::json* ConfigReader::find(const char* key) const {
  const auto at = object_.find(key);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

bool ConfigReader::has(const char* key) const { return find(key) != nullptr; }

int64_t ConfigReader::integer(const char* key, int64_t min, int64_t max) const {
  const nlohmann::json* value = find(key);
  const std::string expected = "expected a whole number from " + std::to_string(min) + " to " + std::to_string(max);
  if (!value) fail(key, "is missing, " + expected);
  const bool whole = value->is_number_integer() && !(value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX);
  if (!whole || value->get<int64_t>() < min || value->get<int64_t>() > max)
    fail(key, expected + ", found " + shown(*value));
  return value->get<int64_t>();
}

int64_t ConfigReader::integer_or(const char* key, int64_t min, int64_t max, int64_t fallback) const {
  return has(key) ? integer(key, min, max) : fallback;
}

double ConfigReader::number_or(const char* key, double min, double max, double fallback) const {
  const nlohmann::json* value = find(key);
  if (!value) return fallback;
  if (!value->is_number() || !(value->get<double>() >= min && value->get<double>() <= max)) {
    fail(key, "expected a number from " + number_text(min) + " to " + number_text(max) + ", found " + shown(*value));
  }
  return value->get<double>();
}

bool ConfigReader::boolean_or(const char* key, bool fallback) const {
  const nlohmann::json* value = find(key);
  if (!value) return fallback;
  if (!value->is_boolean()) fail(key, "expected true or false, found " + shown(*value));
  return value->get<bool>();
}

std::string ConfigReader::string_or(const char* key, const std::string& fallback) const {
  const nlohmann::json* value = find(key);
  if (!value) return fallback;
  if (!value->is_string()) fail(key, "expected a text, found " + shown(*value));
  return value->get<std::string>();
}

std::optional<ConfigReader> ConfigReader::object(const char* key) const {
  const nlohmann::json* value = find(key);
  if (!value) return std::nullopt;
  if (!value->is_object()) fail(key, "expected an object, found " + shown(*value));
  return ConfigReader(*value, file_, prefix_ + key + ".");
}

void ConfigReader::fail(const std::string& key, const std::string& message, const std::string& hint) const {
  throw Error(Code::kModel, prefix_ + key + ": " + message, hint, file_.string());
}

}  // namespace kvplug::model
