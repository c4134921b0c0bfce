// SPDX-License-Identifier: Apache-2.0
// The public face: each way a value can come in, turned into a document and merged into its layer.
#include "config/config.h"

#include <algorithm>

#include "config/document.h"
#include "config/effective.h"
#include "config/input.h"
#include "config/layers.h"
#include "config/schema.h"
#include "core/did_you_mean.h"
#include "core/error.h"

namespace kvplug::config {
namespace {

using nlohmann::json;

void check_version(const Node& root, const std::string& origin) {
  for (const auto& [name, node] : root.members)
    if (name == "config_version") return;
  throw Error(Code::kConfig, "config_version is missing", "the first line of a run file is: config_version = 1",
              origin);
}

void merge(State& state, const Node& root, const MergeContext& context) {
  std::map<std::string, Origin> without_effect;
  Layer layer = read_document(root, context, without_effect);
  put_above(state.layer(context.source), std::move(layer));
  state.without_effect[static_cast<std::size_t>(context.source)].merge(without_effect);
}

// Keys whose value may be given without quotes on a command line.
bool takes_bare_text(std::string_view key) {
  if (const Key* known = find_key(key)) {
    switch (known->type) {
      case Type::kString:
      case Type::kWord:
      case Type::kPath:
      case Type::kSize:
      case Type::kStrings:
      case Type::kWords:
      case Type::kPaths: return true;
      default: return false;
    }
  }
  const Key* table = find_key(key.substr(0, key.rfind('.')));
  return table != nullptr && table->type == Type::kTable;
}

bool only_text(std::string_view key) {
  const Key* known = find_key(key);
  return known != nullptr && (known->type == Type::kString || known->type == Type::kWord || known->type == Type::kPath);
}

Node text_node(std::string_view text) {
  Node node;
  node.value = std::string(text);
  return node;
}

Node value_node(std::string_view key, std::string_view text, const std::string& where) {
  try {
    Node document = parse_toml("value = " + std::string(text) + "\n", {});
    if (document.members.size() == 1 && document.members[0].name == "value") {
      Node node = std::move(document.members[0].node);
      const bool is_text = node.kind == Node::Kind::kScalar && node.value.is_string();
      return only_text(key) && !is_text ? text_node(text) : node;
    }
  } catch (const Error& error) {
    if (!takes_bare_text(key)) throw Error(Code::kConfig, error.message(), "expected a TOML value", where);
  }
  if (!takes_bare_text(key)) throw Error(Code::kConfig, "expected one TOML value", {}, where);
  return text_node(text);
}

void forget_positions(Node& node) {
  node.at = {};
  for (auto& [name, member] : node.members) forget_positions(member);
  for (Node& item : node.items) forget_positions(item);
}

}  // namespace

Config::Config() : state_(std::make_unique<State>()) {}
Config::~Config() = default;
Config::Config(const Config& other) : state_(std::make_unique<State>(*other.state_)) {}
Config& Config::operator=(const Config& other) {
  *state_ = *other.state_;
  return *this;
}
Config::Config(Config&&) noexcept = default;
Config& Config::operator=(Config&&) noexcept = default;

void Config::merge_toml(std::string_view text, std::string_view origin, const std::filesystem::path& base_dir) {
  const MergeContext context{std::string(origin), Source::kFile, base_dir};
  const Node root = parse_toml(text, origin);
  check_version(root, context.origin);
  merge(*state_, root, context);
}

void Config::merge_json(std::string_view text, std::string_view origin, const std::filesystem::path& base_dir) {
  const MergeContext context{std::string(origin), Source::kFile, base_dir};
  const Node root = parse_json(text, origin);
  if (root.kind == Node::Kind::kTable) check_version(root, context.origin);
  merge(*state_, root, context);
}

void Config::set(std::string_view key, std::string_view toml_value, std::string_view origin, Source source) {
  const MergeContext context{std::string(origin), source, {}};
  const std::string where = place(origin, {}, key);
  if (key.empty() || key.size() > 1000 || !is_utf8(key) || !is_utf8(toml_value))
    throw Error(Code::kConfig, "expected KEY=VALUE in UTF-8, such as generation.top_p=0.9", {}, std::string(origin));
  if (std::count(key.begin(), key.end(), '.') > 8) throw Error(Code::kConfig, "unknown key", {}, where);
  Node node = value_node(key, toml_value, where);
  forget_positions(node);
  for (std::string_view rest = key;;) {
    const std::size_t dot = rest.rfind('.');
    Node table;
    table.kind = Node::Kind::kTable;
    table.members.emplace_back(std::string(rest.substr(dot == std::string_view::npos ? 0 : dot + 1)), std::move(node));
    node = std::move(table);
    if (dot == std::string_view::npos) break;
    rest = rest.substr(0, dot);
  }
  merge(*state_, node, context);
}

void Config::overlay(const Config& above) {
  for (const Source source : {Source::kFile, Source::kEnvironment, Source::kFlag}) {
    put_above(state_->layer(Source::kFlag), above.state_->layer(source));
  }
}

void Config::merge_environment(std::span<const std::pair<std::string, std::string>> variables) {
  Config next(*this);
  for (const auto& [name, value] : variables) {
    constexpr std::string_view kPrefix = "KVPLUG_";
    if (!name.starts_with(kPrefix) || name.find("__") == std::string::npos) continue;
    std::string key = name.substr(kPrefix.size());
    for (std::size_t at = 0; (at = key.find("__", at)) != std::string::npos;) key.replace(at, 2, ".");
    std::transform(key.begin(), key.end(), key.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
    next.set(key, value, name, Source::kEnvironment);
  }
  *this = std::move(next);
}

void Config::set_checkpoint(std::string_view text, std::string_view origin) {
  const MergeContext context{std::string(origin), Source::kCheckpoint, {}};
  std::map<std::string, Origin> without_effect;
  std::vector<Notice> notices;
  Layer layer = read_checkpoint(parse_json(text, origin), context, without_effect, notices);
  state_->layer(Source::kCheckpoint) = std::move(layer);
  state_->without_effect[static_cast<std::size_t>(Source::kCheckpoint)] = std::move(without_effect);
  state_->checkpoint_notices = std::move(notices);
}

json Config::get(std::string_view key) const {
  json found;
  for (const EffectiveValue& value : effective_values(*state_)) {
    const std::string path = value.section.empty() ? value.name : value.section + "." + value.name;
    const json entry = {{"value", value.value}, {"origin", value.origin.text}};
    if (path == key) return entry;
    const bool below =
        path.size() > key.size() && path.starts_with(key) && (path[key.size()] == '.' || path[key.size()] == '[');
    if (below) found[path.substr(key.size() + (path[key.size()] == '.' ? 1 : 0))] = entry;
  }
  if (!found.is_null()) return found;
  if (const Key* known = find_key(schema_path(key)); known != nullptr && known->type == Type::kTable)
    return {{"value", json::object()}, {"origin", "default"}};
  if (is_list_section(schema_path(key))) return {{"value", json::array()}, {"origin", "default"}};
  std::vector<std::string> paths;
  for (const Key& known : keys()) paths.emplace_back(known.path);
  const std::string near = key.size() < 100 ? did_you_mean(key, paths) : "";
  throw Error(Code::kConfig, "unknown key", near.empty() ? "" : "did you mean `" + near + "`?", std::string(key));
}

std::string Config::where(std::string_view key) const {
  for (const Source source : {Source::kFlag, Source::kEnvironment, Source::kFile, Source::kCheckpoint}) {
    const auto found = state_->layer(source).find(key);
    if (found != state_->layer(source).end()) return found->second.where;
  }
  return std::string(key);
}

std::string Config::effective_toml() const { return effective_text(effective_values(*state_)); }
json Config::effective_json() const { return nested_json(effective_values(*state_)); }

}  // namespace kvplug::config
