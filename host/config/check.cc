// SPDX-License-Identifier: Apache-2.0
#include "config/check.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "core/did_you_mean.h"
#include "core/error.h"

namespace kvplug::config {
namespace {

using nlohmann::json;

class Checker {
 public:
  Checker(const Key& key, const std::string& where, const std::filesystem::path& base)
      : key_(key), where_(where), base_(base) {}

  json check(const Node& node) const {
    switch (key_.type) {
      case Type::kBool:
        if (!is_scalar(node) || !node.value.is_boolean()) wrong_type("true or false", node);
        return node.value;
      case Type::kInteger: return integer(node);
      case Type::kNumber: return number(node);
      case Type::kString: return string(node, "a string");
      case Type::kWord: return word(node);
      case Type::kPath: return path(node);
      case Type::kSize: return size(node);
      case Type::kStrings:
        if (is_scalar(node) && node.value.is_string()) return json::array({node.value});
        return list(node, "a string or a list of strings", [&](const Node& item) { return string(item, "a string"); });
      case Type::kWords:
        if (is_scalar(node) && node.value.is_string()) return json::array({word(node)});
        return list(node, "a list of words", [&](const Node& item) { return word(item); });
      case Type::kPaths:
        if (is_scalar(node) && node.value.is_string()) return json::array({path(node)});
        return list(node, "a list of paths", [&](const Node& item) { return path(item); });
      case Type::kIds:
        if (is_scalar(node) && node.value.is_number()) return json::array({integer(node)});
        return list(node, "a token id or a list of them", [&](const Node& item) { return integer(item); });
      case Type::kIdLists:
        return list(node, "a list of lists of token ids", [&](const Node& inner) {
          return list(inner, "a list of token ids", [&](const Node& item) { return integer(item); });
        });
      case Type::kMessages: return list(node, "a list of messages", [&](const Node& item) { return message(item); });
      case Type::kTable: break;
    }
    wrong_type("a table", node);
  }

 private:
  static bool is_scalar(const Node& node) { return node.kind == Node::Kind::kScalar; }

  [[noreturn]] void fail(const std::string& message, const std::string& hint = {}) const {
    throw Error(Code::kConfig, message, hint, where_);
  }
  [[noreturn]] void wrong_type(const std::string& expected, const Node& node) const {
    fail("expected " + expected + ", got " + describe(node));
  }

  template <class Each>
  json list(const Node& node, const char* expected, Each each) const {
    if (node.kind != Node::Kind::kArray) wrong_type(expected, node);
    json result = json::array();
    for (const Node& item : node.items) result.push_back(each(item));
    return result;
  }

  json integer(const Node& node) const {
    if (!is_scalar(node) || !node.value.is_number_integer()) wrong_type("an integer", node);
    const bool huge = node.value.is_number_unsigned() && node.value.get<uint64_t>() > uint64_t{INT64_MAX};
    if (huge || !inside(static_cast<double>(node.value.get<int64_t>())))
      fail(node.value.dump() + " is out of range; " + describe_range(key_.range, true));
    return node.value.get<int64_t>();
  }

  json number(const Node& node) const {
    if (!is_scalar(node) || !node.value.is_number()) wrong_type("a number", node);
    const auto value = node.value.get<double>();
    if (!std::isfinite(value)) fail("expected a finite number, got " + std::string(std::isnan(value) ? "nan" : "inf"));
    if (!inside(value)) fail(node.value.dump() + " is out of range; " + describe_range(key_.range, false));
    return value;
  }

  bool inside(double value) const {
    const Range& range = key_.range;
    return (range.above_min ? value > range.min : value >= range.min) &&
           (range.below_max ? value < range.max : value <= range.max);
  }

  std::string string(const Node& node, const char* expected) const {
    if (!is_scalar(node) || !node.value.is_string()) wrong_type(expected, node);
    auto text = node.value.get<std::string>();
    if (text.find('\0') != std::string::npos && key_.type != Type::kMessages) fail("a string with a NUL character");
    return text;
  }

  json word(const Node& node) const {
    const std::string text = string(node, "a word");
    const std::vector<std::string> words = split_words(key_.words);
    if (std::find(words.begin(), words.end(), text) != words.end()) return text;
    if (key_.path == "model.device" && text.starts_with("cuda:")) {
      const std::string number = text.substr(5);
      const bool digits = !number.empty() && number.find_first_not_of("0123456789") == std::string::npos;
      if (digits && number.size() < 3) return text;
      fail("\"" + text + "\" names no device", "cuda:N, with N from 0 to 99, is one of several: cuda:0");
    }
    const std::string near = text.size() > 80 ? "" : did_you_mean(text, words);
    fail(text.size() > 80 ? describe(node) + " is not one of the allowed words"
                          : "\"" + text + "\" is not one of the allowed words",
         (near.empty() ? "" : "did you mean `" + near + "`? ") + "(allowed: " + join_words(words) + ")");
  }

  json path(const Node& node) const {
    const std::string text = string(node, "a path");
    const std::vector<std::string> words = split_words(key_.words);  // "-", "auto": no paths
    if (std::find(words.begin(), words.end(), text) != words.end()) return text;
    if (text.empty()) fail("an empty path");
    return std::filesystem::absolute(base_ / text).lexically_normal().string();
  }

  json size(const Node& node) const {
    if (is_scalar(node) && node.value.is_number_integer()) return integer(node);
    const std::string expected =
        "a size such as 512000000 or \"512MiB\"" + std::string(key_.words.empty() ? "" : ", or \"auto\"");
    if (!is_scalar(node) || !node.value.is_string()) wrong_type(expected, node);
    const auto text = node.value.get<std::string>();
    if (!key_.words.empty() && text == key_.words) return text;
    double amount = 0;
    const auto [rest, problem] =
        std::from_chars(text.data(), text.data() + text.size(), amount, std::chars_format::fixed);
    const std::optional<double> unit = unit_of(std::string_view(rest, text.data() + text.size()));
    if (problem != std::errc() || !unit) wrong_type(expected, node);
    const double bytes = std::round(amount * *unit);
    if (!inside(bytes) || bytes > 9e18) fail(describe(node) + " is out of range; " + describe_range(key_.range, true));
    return static_cast<int64_t>(bytes);
  }

  static std::optional<double> unit_of(std::string_view unit) {
    while (unit.starts_with(' ')) unit.remove_prefix(1);
    if (unit.empty() || unit == "B") return 1.0;
    const std::size_t power = std::string_view("kMGT").find(unit[0] == 'K' ? 'k' : unit[0]);
    if (power == std::string_view::npos) return std::nullopt;
    if (unit.substr(1) == "iB") return std::pow(1024.0, static_cast<double>(power + 1));
    if (unit.substr(1) == "B") return std::pow(1000.0, static_cast<double>(power + 1));
    return std::nullopt;
  }

  json message(const Node& node) const {
    if (node.kind != Node::Kind::kTable) wrong_type("a message { role = ..., content = ... }", node);
    refuse_nulls(node);
    const json table = to_json(node);
    if (!table.contains("role") || !table["role"].is_string()) fail("a message without `role` (a string)");
    if (!table.contains("content") || !(table["content"].is_string() || table["content"].is_array()))
      fail("a message without `content` (a string)");
    return table;
  }

 public:
  // Free values go into JSON and back into TOML: no dates, no null inside lists.
  void refuse_nulls(const Node& node, bool in_list = false) const {
    if (node.kind == Node::Kind::kDate || (in_list && is_scalar(node) && node.value.is_null()))
      wrong_type("a string, number, true, false, list or table", node);
    if (is_scalar(node) && node.value.is_number_float() && !std::isfinite(node.value.get<double>()))
      fail("expected a finite number");
    if (is_scalar(node) && node.value.is_number_unsigned() && node.value.get<uint64_t>() > uint64_t{INT64_MAX})
      fail(node.value.dump() + " is out of range");
    for (const auto& [name, member] : node.members) refuse_nulls(member);
    for (const Node& item : node.items) refuse_nulls(item, true);
  }

 private:
  const Key& key_;
  const std::string& where_;
  const std::filesystem::path& base_;
};

}  // namespace

json check_value(const Key& key, const Node& node, const std::string& where, const std::filesystem::path& base_dir) {
  const Checker checker(key, where, base_dir);
  if (key.type == Type::kTable) {
    checker.refuse_nulls(node);
    return to_json(node);
  }
  return checker.check(node);
}

void throw_unknown_key(const std::string& word, const std::string& title, const std::vector<std::string>& known,
                       const std::string& where, const std::string& elsewhere) {
  std::string hint = did_you_mean(word, known);
  const bool near = !hint.empty();
  if (!near) hint = elsewhere;
  std::vector<std::string> shown = known;
  if (near && shown.size() > 4) {
    shown.resize(3);
    shown.emplace_back("...");
  }
  if (shown.empty()) shown.emplace_back("none");
  if (!hint.empty()) hint = "did you mean `" + hint + "`? ";
  throw Error(Code::kConfig, "unknown key", hint + "(keys of " + title + ": " + join_words(shown) + ")", where);
}

json check_cache_option(const std::string& kind, const KindTable& kinds, const KindOptions& options,
                        const std::string& option, const json& value, const std::string& where) {
  const std::optional<OptionProblem> problem = options.check(option, value);
  if (!problem) return KindOptions::normal(option, value);
  if (problem->message != KindOptions::kUnknownKey) throw Error(Code::kConfig, problem->message, problem->hint, where);
  const auto knows = [&](const auto& other) {
    if (other.first == kind) return false;
    const auto takes = [&](const auto& quantizer) { return quantizer_takes(quantizer.second, option); };
    return other.second.find(option) != nullptr ||
           (takes_quantizers(other.second) && std::any_of(kinds.quantizers.begin(), kinds.quantizers.end(), takes));
  };
  const std::vector<std::string> known = options.keys();
  const auto owner = std::find_if(kinds.schemas.begin(), kinds.schemas.end(), knows);
  if (owner != kinds.schemas.end())
    throw Error(Code::kConfig, "a key of \"" + owner->first + "\", not of \"" + kind + "\"",
                "remove the key, or use cache_implementation = \"" + owner->first + "\" (keys of \"" + kind +
                    "\": " + (known.empty() ? "none" : join_words(known)) + ")",
                where);
  throw_unknown_key(option, "\"" + kind + "\"", known, where);
}

}  // namespace kvplug::config
