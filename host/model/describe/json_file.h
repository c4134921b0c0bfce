// SPDX-License-Identifier: Apache-2.0
// JSON from a file that nobody vouches for: bounded size and depth, no duplicate keys, errors that name file and place.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

namespace kvplug::model {

// Parses text that came from `file` (for messages). Throws kCorrupt: invalid JSON, deeper than 64, a key given twice.
nlohmann::json parse_json(std::string_view text, const std::filesystem::path& file);

// Reads and parses a whole file of at most `max_bytes`. Throws kNotFound, kIo, kCorrupt.
nlohmann::json read_json(const std::filesystem::path& file, uint64_t max_bytes = 64u << 20);

}  // namespace kvplug::model
