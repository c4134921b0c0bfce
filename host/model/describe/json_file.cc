// SPDX-License-Identifier: Apache-2.0
#include "model/describe/json_file.h"

#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"

namespace kvplug::model {
namespace {

constexpr int kMaxDepth = 64;

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::filesystem::path& file) {
  // nlohmann keeps the last of two equal keys; which one wins must not be luck, so the callback counts them.
  std::vector<std::set<std::string>> open_objects;
  const auto watch = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    using Event = nlohmann::json::parse_event_t;
    if (depth > kMaxDepth) {
      throw Error(Code::kCorrupt, "nested deeper than " + std::to_string(kMaxDepth) + " levels", "", file.string());
    }
    if (event == Event::object_start) open_objects.emplace_back();
    if (event == Event::object_end) open_objects.pop_back();
    if (event == Event::key && !open_objects.back().insert(value.get<std::string>()).second) {
      throw Error(Code::kCorrupt, "key \"" + value.get<std::string>() + "\" is given twice", "", file.string());
    }
    return true;
  };
  try {
    return nlohmann::json::parse(text, watch);
  } catch (const nlohmann::json::exception& e) {
    std::string what = e.what();
    if (const size_t bracket = what.find("] "); bracket != std::string::npos) what = what.substr(bracket + 2);
    throw Error(Code::kCorrupt, "invalid JSON: " + what, "", file.string());
  }
}

nlohmann::json read_json(const std::filesystem::path& file, uint64_t max_bytes) {
  std::error_code ec;
  const uint64_t size = std::filesystem::file_size(file, ec);
  if (ec) throw Error(Code::kNotFound, "cannot be read: " + ec.message(), "", file.string());
  if (size > max_bytes) {
    throw Error(
        Code::kCorrupt,
        std::to_string(size) + " bytes are more than the " + std::to_string(max_bytes) + " such a file may have", "",
        file.string());
  }
  std::string text(size, '\0');
  std::ifstream in(file, std::ios::binary);
  if (!in.read(text.data(), static_cast<std::streamsize>(size))) {
    throw Error(Code::kIo, "could not be read to its end", "", file.string());
  }
  return parse_json(text, file);
}

}  // namespace kvplug::model
