// SPDX-License-Identifier: Apache-2.0
// From document to layer: which keys exist, where each stood, what is not part of this release.
#include <algorithm>
#include <set>

#include "config/check.h"
#include "config/layers.h"
#include "config/schema.h"
#include "config/unbuilt.h"
#include "core/did_you_mean.h"
#include "core/error.h"

namespace kvplug::config {
namespace {

using nlohmann::json;

constexpr std::size_t kMaxShown = 80;

// A key as it may stand in a message.
std::string shown(std::string_view name) {
  std::string text;
  for (const char c : name.substr(0, kMaxShown)) text += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  while (name.size() > kMaxShown && !text.empty() && (static_cast<unsigned char>(text.back()) & 0x80)) text.pop_back();
  return name.size() > kMaxShown ? text + "..." : text;
}

std::string join(std::string_view section, std::string_view word) {
  return section.empty() ? std::string(word) : std::string(section) + "." + std::string(word);
}

// A known key that ends in `word` in another section, or one whose whole path is near.
std::string elsewhere(const std::string& word, const std::string& path) {
  std::vector<std::string> paths;
  for (const Key& key : keys()) {
    if (key.path.size() > word.size() && key.path.ends_with(word) && key.path[key.path.size() - word.size() - 1] == '.')
      return std::string(key.path);
    paths.emplace_back(key.path);
  }
  return did_you_mean(path, paths);
}

class Reader {
 public:
  Reader(const MergeContext& context, std::map<std::string, Origin>& without_effect)
      : context_(context), without_effect_(without_effect) {}

  void table(const std::string& path, const Node& node) {
    for (const auto& [name, member] : node.members) {
      if (is_plain(name)) {
        add(path, name, member);
      } else {
        unknown(path, shown(name), member);
      }
    }
  }

  Layer take() { return std::move(layer_); }

 private:
  static bool is_plain(const std::string& name) {
    return !name.empty() && name.size() <= kMaxShown && name.find_first_of(".[]") == std::string::npos;
  }
  std::string where(std::string_view path, const Node& node) const { return place(context_.origin, node.at, path); }
  Origin origin(const Node& node) const { return {context_.source, full_place(context_.origin, node.at)}; }

  void put(const std::string& path, json value, const Node& node) {
    if (!layer_.emplace(path, Entry{std::move(value), origin(node), where(path, node), node.value}).second)
      throw Error(Code::kConfig, "the key stands here a second time", {}, where(path, node));
  }

  void add(const std::string& section, const std::string& name, const Node& node) {
    const std::string path = join(section, name);
    const std::string general = schema_path(path);
    if (node.kind == Node::Kind::kScalar && node.value.is_null()) return;  // JSON: not given
    if (const Key* key = find_key(general)) {
      if (key->type == Type::kTable) return open_table(path, *key, node);
      put(path, check_value(*key, node, where(path, node), context_.base_dir), node);
      if (key->path == "generation.unset") check_unset(layer_.at(path), general);
      return;
    }
    if (is_list_section(general)) return list(path, node);
    if (is_section(general)) {
      if (node.kind != Node::Kind::kTable)
        throw Error(Code::kConfig, "expected a table, got " + describe(node), {}, where(path, node));
      return table(path, node);
    }
    if (general == "generation." + name || general == "prompts[].generation." + name) {
      const auto words = keys_without_effect();
      if (std::find(words.begin(), words.end(), name) != words.end()) {
        without_effect_[path] = origin(node);
        return;
      }
    }
    unknown(section, name, node);
  }

  [[noreturn]] void unknown(const std::string& section, const std::string& name, const Node& node) const {
    const std::string path = join(section, name), general = schema_path(path);
    if (general.starts_with("prompts[].generation.") && is_cache_key("generation." + name))
      throw Error(Code::kConfig, "one cache serves all prompts of a run", "move the key to [generation]",
                  where(path, node));
    if (const UnbuiltKey* unbuilt = find_unbuilt(general))
      throw Error(Code::kConfig, "not part of this release",
                  unbuilt->hint.empty() ? "remove the key" : std::string(unbuilt->hint), where(path, node));
    const std::string general_section = schema_path(section);
    const std::string title = section.empty()
                                  ? "the file"
                                  : (section.find('[') != std::string::npos && !general_section.ends_with("generation")
                                         ? "[[" + general_section.substr(0, general_section.find('[')) + "]]"
                                         : "[" + general_section + "]");
    throw_unknown_key(name, title, words_below(general_section), where(path, node), elsewhere(name, path));
  }

  void list(const std::string& path, const Node& node) {
    const bool tables = node.kind == Node::Kind::kArray &&
                        std::all_of(node.items.begin(), node.items.end(),
                                    [](const Node& item) { return item.kind == Node::Kind::kTable; });
    if (!tables)
      throw Error(Code::kConfig, "expected a list of tables ([[" + path + "]]), got " + describe(node), {},
                  where(path, node));
    put(path, node.items.size(), node);
    for (std::size_t i = 0; i < node.items.size(); ++i) {
      const std::string element = path + "[" + std::to_string(i) + "]";
      put(element, true, node.items[i]);
      table(element, node.items[i]);
    }
  }

  // Options of a cache kind are single values, paths where they are named so; variables of a template may be anything.
  void open_table(const std::string& path, const Key& key, const Node& node) {
    if (node.kind != Node::Kind::kTable)
      throw Error(Code::kConfig, "expected a table, got " + describe(node), {}, where(path, node));
    const bool options = key.path.ends_with(".cache_config");
    for (const auto& [name, member] : node.members) {
      const std::string below = join(path, shown(name));
      if (member.kind == Node::Kind::kScalar && member.value.is_null()) continue;
      if (options && member.kind != Node::Kind::kScalar)
        throw Error(Code::kConfig, "expected a number, string, true or false, got " + describe(member), {},
                    where(below, member));
      if (options && member.value.is_string() && member.value.get_ref<const std::string&>().size() > 4096)
        throw Error(Code::kConfig, "a text of more than 4096 bytes", {}, where(below, member));
      if (name.size() > kMaxShown) throw Error(Code::kConfig, "a key of more than 80 bytes", {}, where(below, member));
      json value = check_value(key, member, where(below, member), context_.base_dir);
      if (options && (name.ends_with("_path") || name.ends_with("_file")) && value.is_string() && value != "")
        value = std::filesystem::absolute(context_.base_dir / value.get<std::string>()).lexically_normal().string();
      put(join(path, name), std::move(value), member);
    }
  }

  void check_unset(const Entry& entry, const std::string& general) const {
    const std::string section = general.substr(0, general.rfind('.') + 1);
    std::vector<std::string> known;
    for (const Key& key : keys())
      if (key.path.starts_with("generation.") && !key.off.empty() &&
          find_key(section + std::string(key.path.substr(11))))
        known.emplace_back(key.path.substr(11));
    for (const json& word : entry.value) {
      const auto name = word.get<std::string>();
      if (std::find(known.begin(), known.end(), name) != known.end()) continue;
      const std::string near = name.size() > kMaxShown ? "" : did_you_mean(name, known);
      throw Error(Code::kConfig, "\"" + shown(name) + "\" is not a key that can be unset",
                  (near.empty() ? "" : "did you mean `" + near + "`? ") + "(keys: " + join_words(known) + ")",
                  entry.where);
    }
  }

  const MergeContext& context_;
  std::map<std::string, Origin>& without_effect_;
  Layer layer_;
};

void need_table(const Node& root, const MergeContext& context) {
  if (root.kind != Node::Kind::kTable)
    throw Error(Code::kConfig, "expected a table of keys, got " + describe(root), {}, context.origin);
}

}  // namespace

Layer read_document(const Node& root, const MergeContext& context, std::map<std::string, Origin>& without_effect) {
  need_table(root, context);
  Reader reader(context, without_effect);
  reader.table("", root);
  return reader.take();
}

Layer read_checkpoint(const Node& root, const MergeContext& context, std::map<std::string, Origin>& without_effect,
                      std::vector<Notice>& notices) {
  need_table(root, context);
  std::map<std::string, const Node*> last;  // JSON may repeat a key: the last one counts, as in HF
  for (const auto& [name, node] : root.members) last[name] = &node;
  Layer layer;
  for (const auto& [name, node] : last) {
    const std::string path = "generation." + name;
    const bool null = node->kind == Node::Kind::kScalar && node->value.is_null();
    const bool known = name != "unset" && find_key(path) != nullptr;
    if (null && (known || find_unbuilt(path))) continue;
    if (!known) {
      const UnbuiltKey* unbuilt = find_unbuilt(path);
      if (unbuilt == nullptr) {
        without_effect[path] = {context.source, full_place(context.origin, node->at)};
      } else if (unbuilt->neutral != "*" &&
                 (unbuilt->neutral.empty() || json::parse(unbuilt->neutral) != to_json(*node))) {
        notices.push_back({"not_built", place(context.origin, node->at, name) + ": " + describe(*node) +
                                            " is not part of this release; the run goes on without it"});
      }
      continue;
    }
    Node section, wrapped;
    section.kind = wrapped.kind = Node::Kind::kTable;
    section.members.emplace_back(name, *node);
    wrapped.members.emplace_back("generation", std::move(section));
    try {
      put_above(layer, read_document(wrapped, context, without_effect));
    } catch (const Error& error) {
      throw Error(error.code(), error.message(), "correct the file, or set model.use_generation_config = false",
                  error.where());
    }
  }
  return layer;
}

void put_above(Layer& to, Layer from) {
  for (const char* list : {"prompts", "plugins.load", "bench.cache", "diff.candidate"}) {
    if (!from.contains(list)) continue;
    const std::string prefix = std::string(list) + "[";
    auto first = to.lower_bound(prefix), last = first;
    while (last != to.end() && last->first.starts_with(prefix)) ++last;
    to.erase(first, last);
  }
  for (auto& [path, entry] : from) to[path] = std::move(entry);
}

}  // namespace kvplug::config
