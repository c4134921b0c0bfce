// SPDX-License-Identifier: Apache-2.0
// Errors here carry the path in `where`, so the callers need not.
#include "text/files.h"

#include <fstream>
#include <iterator>

#include "core/error.h"

namespace kvplug::text {

std::optional<std::string> read_file(const std::filesystem::path& path) {
  std::error_code status_error;
  const auto status = std::filesystem::status(path, status_error);
  if (status.type() == std::filesystem::file_type::not_found) return std::nullopt;
  std::ifstream in;
  if (status.type() == std::filesystem::file_type::regular) in.open(path, std::ios::binary);
  if (!in.is_open()) {
    const std::string reason = status_error ? status_error.message() : "not a readable file";
    throw Error(Code::kIo, "cannot read it: " + reason, {}, path.string());
  }
  std::string content{std::istreambuf_iterator<char>(in), {}};
  if (in.bad()) throw Error(Code::kIo, "cannot read it to the end", {}, path.string());
  return content;
}

std::optional<nlohmann::json> read_json_object(const std::filesystem::path& path) {
  const auto content = read_file(path);
  if (!content) return std::nullopt;
  nlohmann::json value;
  try {
    value = nlohmann::json::parse(*content);
  } catch (const nlohmann::json::exception& e) {
    throw Error(Code::kModel, std::string("not valid JSON: ") + e.what(), "copy the file again from its source",
                path.string());
  }
  if (!value.is_object()) {
    throw Error(Code::kModel, std::string("expected a JSON object, found ") + value.type_name(), {}, path.string());
  }
  return value;
}

}  // namespace kvplug::text
