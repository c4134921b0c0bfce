// SPDX-License-Identifier: Apache-2.0
// TOML text to a Node tree; the only file of this room that knows toml++, which bounds the nesting of values but not
// the length of dotted keys, whose tables nest just as deep and are freed recursively: they are bounded before it sees
// the text.
#include <algorithm>
#include <sstream>

#include "config/document.h"
#include "core/error.h"
#include "core/toml.h"

namespace kvplug::config {
namespace {

static_assert(TOML_MAX_NESTED_VALUES < kMaxDepth);

Position position_of(const toml::source_position& at) { return {at.line, at.column}; }

// The end of a string that starts at `i` (its opening quote), or text.size().
std::size_t skip_string(std::string_view text, std::size_t i) {
  const char quote = text[i];
  const std::string_view three = quote == '"' ? R"(""")" : "'''";
  const bool multi = text.substr(i, 3) == three;
  for (i += multi ? 3 : 1; i < text.size(); ++i) {
    if (quote == '"' && text[i] == '\\') {
      ++i;
    } else if (multi ? text.substr(i, 3) == three : text[i] == quote || text[i] == '\n') {
      i += multi ? 3 : 1;
      for (int k = 0; multi && k < 2 && i < text.size() && text[i] == quote; ++k) ++i;  // """a"""" ends in a quote
      return i;
    }
  }
  return text.size();
}

void refuse_long_dotted_keys(std::string_view text, std::string_view origin) {
  constexpr int kMaxParts = 32;
  uint32_t line = 1;
  int dots = 0;
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '"' || c == '\'') {
      const std::size_t end = std::min(skip_string(text, i), text.size());
      line += static_cast<uint32_t>(std::count(text.begin() + static_cast<std::ptrdiff_t>(i),
                                               text.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
      i = end;
      continue;
    }
    if (c == '#') {
      i = std::min(text.find('\n', i), text.size());
      continue;
    }
    if (c == '\n') ++line;
    if (c == '\n' || c == '=' || c == ',' || c == '[' || c == ']' || c == '{' || c == '}') dots = 0;
    if (c == '.' && ++dots >= kMaxParts)
      throw Error(Code::kConfig, "a dotted key of more than " + std::to_string(kMaxParts) + " parts", {},
                  std::string(origin) + ":" + std::to_string(line));
    ++i;
  }
}

Node convert(const toml::node& from, Position at) {
  Node node;
  node.at = at;
  if (const auto* table = from.as_table()) {
    node.kind = Node::Kind::kTable;
    for (const auto& [key, member] : *table)
      node.members.emplace_back(std::string(key.str()), convert(member, position_of(key.source().begin)));
    std::sort(node.members.begin(), node.members.end(), [](const auto& a, const auto& b) {
      return std::pair(a.node.at.line, a.node.at.column) < std::pair(b.node.at.line, b.node.at.column);
    });
  } else if (const auto* array = from.as_array()) {
    node.kind = Node::Kind::kArray;
    for (const toml::node& item : *array) node.items.push_back(convert(item, position_of(item.source().begin)));
  } else if (const auto* text = from.as_string()) {
    node.value = text->get();
  } else if (const auto* integer = from.as_integer()) {
    node.value = integer->get();
  } else if (const auto* number = from.as_floating_point()) {
    node.value = number->get();
  } else if (const auto* boolean = from.as_boolean()) {
    node.value = boolean->get();
  } else {
    node.kind = Node::Kind::kDate;
  }
  return node;
}

}  // namespace

Node parse_toml(std::string_view text, std::string_view origin) {
  if (text.size() > kMaxTextBytes)
    throw Error(Code::kConfig, "larger than " + std::to_string(kMaxTextBytes >> 20) + " MiB", {}, std::string(origin));
  refuse_long_dotted_keys(text, origin);
  try {
    return convert(toml::parse(text), {});
  } catch (const toml::parse_error& error) {
    throw Error(Code::kConfig, "not valid TOML: " + std::string(error.description()), {},
                full_place(origin, position_of(error.source().begin)));
  }
}

}  // namespace kvplug::config
