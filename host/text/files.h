// SPDX-License-Identifier: Apache-2.0
// Reading the small files of a model folder. Internal to this room.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace kvplug::text {

// The whole file; nothing if it does not exist. Throws Error (kIo) if it exists but cannot be read.
std::optional<std::string> read_file(const std::filesystem::path& path);

// As read_file, parsed. Throws Error (kModel) if it is not a JSON object.
std::optional<nlohmann::json> read_json_object(const std::filesystem::path& path);

}  // namespace kvplug::text
