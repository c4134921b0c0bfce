// SPDX-License-Identifier: Apache-2.0
// What both readers share, and the JSON reader: nlohmann's event parser over an iterator that knows where it is,
// because the parser itself does not tell where a key stood.
#include "config/document.h"

#include <algorithm>
#include <iterator>

#include "core/error.h"

namespace kvplug::config {

using nlohmann::json;

std::string full_place(std::string_view origin, Position at) {
  std::string text(origin);
  if (at.line != 0) text += ":" + std::to_string(at.line) + ":" + std::to_string(at.column);
  return text;
}

std::string place(std::string_view origin, Position at, std::string_view key) {
  std::string text = at.column > 1 ? full_place(origin, at) : std::string(origin);
  if (at.line != 0 && at.column <= 1) text += ":" + std::to_string(at.line);
  return text.empty() ? std::string(key) : text + ": " + std::string(key);
}

json to_json(const Node& node) {
  switch (node.kind) {
    case Node::Kind::kTable: {
      json table = json::object();
      for (const auto& [key, member] : node.members)
        if (!member.value.is_null() || member.kind != Node::Kind::kScalar) table[key] = to_json(member);
      return table;
    }
    case Node::Kind::kArray: {
      json list = json::array();
      for (const Node& item : node.items) list.push_back(to_json(item));
      return list;
    }
    default: return node.value;
  }
}

std::string describe(const Node& node) {
  if (node.kind == Node::Kind::kTable) return "a table";
  if (node.kind == Node::Kind::kArray) return "a list";
  if (node.kind == Node::Kind::kDate) return "a date or time";
  if (node.value.is_null()) return "null";
  if (node.value.is_boolean()) return node.value.get<bool>() ? "true" : "false";
  if (node.value.is_string()) {
    std::string text = node.value.get<std::string>();
    if (text.size() > 60) {
      std::size_t cut = 60;
      while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
      text = text.substr(0, cut) + "...";
    }
    return "the string " + json(text).dump(-1, ' ', false, json::error_handler_t::replace);
  }
  return (node.value.is_number_float() ? "the number " : "the integer ") + node.value.dump();
}

namespace {

// Counts what the parser has taken.
class Cursor {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;
  Cursor(const char* at, const char** reached) : at_(at), reached_(reached) {}
  reference operator*() const { return *at_; }
  Cursor& operator++() {
    *reached_ = ++at_;
    return *this;
  }
  Cursor operator++(int) {
    Cursor before = *this;
    ++*this;
    return before;
  }
  bool operator==(const Cursor& other) const { return at_ == other.at_; }
  bool operator!=(const Cursor& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** reached_;
};

class JsonBuilder {
 public:
  JsonBuilder(std::string_view text, std::string_view origin, const char** reached)
      : text_(text), origin_(origin), reached_(reached), line_start_(text.data()), counted_(text.data()) {}

  bool null() { return scalar(nullptr); }
  bool boolean(bool value) { return scalar(value); }
  bool number_integer(json::number_integer_t value) { return scalar(value); }
  bool number_unsigned(json::number_unsigned_t value) { return scalar(value); }
  bool number_float(json::number_float_t value, const std::string&) { return scalar(value); }
  bool string(std::string& value) { return scalar(value); }
  bool binary(json::binary_t&) { return false; }  // JSON text has none
  bool start_object(std::size_t) { return open(Node::Kind::kTable); }
  bool start_array(std::size_t) { return open(Node::Kind::kArray); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& name) {
    const Position after = position(*reached_);
    const auto width = static_cast<uint32_t>(name.size() + 2);
    stack_.back().members.emplace_back(name, Node{});
    stack_.back().members.back().node.at = {after.line, after.column > width ? after.column - width : 1};
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const json::exception& error) {
    std::string message = error.what();
    if (const auto colon = message.rfind(": "); colon != std::string::npos) message = message.substr(colon + 2);
    throw Error(Code::kConfig, "not valid JSON: " + message, {}, full_place(origin_, position(*reached_)));
  }
  Node take() { return std::move(root_); }

 private:
  bool scalar(json value) {
    Node node;
    node.value = std::move(value);
    return add(std::move(node));
  }
  bool open(Node::Kind kind) {
    if (static_cast<int>(stack_.size()) >= kMaxDepth)
      throw Error(Code::kConfig, "nested more than " + std::to_string(kMaxDepth) + " levels deep", {},
                  full_place(origin_, position(*reached_)));
    Node node;
    node.kind = kind;
    stack_.push_back(std::move(node));
    return true;
  }
  bool close() {
    Node node = std::move(stack_.back());
    stack_.pop_back();
    return add(std::move(node));
  }
  bool add(Node node) {
    if (stack_.empty()) {
      root_ = std::move(node);
    } else if (Node& parent = stack_.back(); parent.kind == Node::Kind::kTable) {
      node.at = parent.members.back().node.at;
      parent.members.back().node = std::move(node);
    } else {
      node.at = position(*reached_);
      parent.items.push_back(std::move(node));
    }
    return true;
  }
  // Positions are asked for in rising order, so each byte is looked at once.
  Position position(const char* at) {
    for (; counted_ < at; ++counted_) {
      if (*counted_ != '\n') continue;
      ++line_;
      line_start_ = counted_ + 1;
    }
    return {line_, static_cast<uint32_t>(at - std::min(line_start_, at)) + 1};
  }

  std::string_view text_, origin_;
  const char** reached_;
  const char* line_start_;
  const char* counted_;
  uint32_t line_ = 1;
  std::vector<Node> stack_;
  Node root_;
};

}  // namespace

Node parse_json(std::string_view text, std::string_view origin) {
  if (text.size() > kMaxTextBytes)
    throw Error(Code::kConfig, "larger than " + std::to_string(kMaxTextBytes >> 20) + " MiB", {}, std::string(origin));
  const char* reached = text.data();
  JsonBuilder builder(text, origin, &reached);
  json::sax_parse(Cursor(text.data(), &reached), Cursor(text.data() + text.size(), &reached), &builder);
  return builder.take();
}

}  // namespace kvplug::config
