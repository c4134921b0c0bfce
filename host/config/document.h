// SPDX-License-Identifier: Apache-2.0
// A parsed TOML or JSON text with the place of every key, before anything is known of its meaning. Nesting and size are
// bounded here, so that whatever walks the tree may recurse.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace kvplug::config {

struct Position {
  uint32_t line = 0, column = 0;  // from 1; line 0 = unknown
};

struct Member;

struct Node {
  enum class Kind { kTable, kArray, kScalar, kDate };
  Kind kind = Kind::kScalar;
  Position at;                  // of the key, or of the value inside an array
  nlohmann::json value;         // kScalar: bool, integer, float, string, null (JSON only)
  std::vector<Member> members;  // kTable, in the order of the text; JSON may repeat a key
  std::vector<Node> items;      // kArray
};

struct Member {
  std::string name;
  Node node;
};

inline constexpr std::size_t kMaxTextBytes = std::size_t{64} << 20;
inline constexpr int kMaxDepth = 100;

// Error(kConfig), where = "origin:line:column".
Node parse_toml(std::string_view text, std::string_view origin);
Node parse_json(std::string_view text, std::string_view origin);

// "origin:line: key"; the column is shown where it says more than "first in the line": "origin:line:column: key".
std::string place(std::string_view origin, Position at, std::string_view key);
// "origin:line:column", or the origin where there is no position.
std::string full_place(std::string_view origin, Position at);

// Values only; null members of tables are left out. Dates and nulls in arrays must have been refused before.
nlohmann::json to_json(const Node& node);
// `the string "x"`, `the integer 5`, `a list`, ...
std::string describe(const Node& node);

}  // namespace kvplug::config
