// SPDX-License-Identifier: Apache-2.0
// JSON answers of the library as text for people.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace kvplug::cli {

std::string bytes_text(uint64_t bytes);  // "113.8 MB"
std::string plan_text(const nlohmann::json& plan);
std::string explain_text(const nlohmann::json& explain);
std::string doctor_text(const nlohmann::json& host);
std::string plugin_list_text(const nlohmann::json& host);
std::string plugin_info_text(const nlohmann::json& plugin);

}  // namespace kvplug::cli
