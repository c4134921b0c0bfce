// SPDX-License-Identifier: Apache-2.0
#include "config/effective.h"

#include <algorithm>
#include <charconv>

#include "config/schema.h"
#include "core/sha256.h"

namespace kvplug::config {
namespace {

using nlohmann::json;
using State_ = EffectiveValue::State;

void add_plain(std::vector<EffectiveValue>& out, const View& view, const Key& key) {
  const std::size_t dot = key.path.rfind('.');
  EffectiveValue value;
  if (dot != std::string_view::npos) value.section = key.path.substr(0, dot);
  value.name = key.path.substr(dot == std::string_view::npos ? 0 : dot + 1);
  const std::string path(key.path);
  if (key.type == Type::kTable) {
    const bool cache = path == "generation.cache_config";
    const bool own_kind = view.source("generation.cache_implementation") > Source::kCheckpoint;
    for (const auto& [name, entry] : view.options(path, cache && own_kind ? Source::kFile : Source::kCheckpoint)) {
      EffectiveValue option{value.section, value.name + "." + name, entry->value, entry->origin, State_::kGiven, false};
      option.comment = cache && entry->origin.source == Source::kCheckpoint;
      out.push_back(std::move(option));
    }
    return;
  }
  const View::Found found = view.find(path);
  value.value = view.value(path);
  if (found.entry != nullptr) {
    value.state = State_::kGiven;
    value.origin = found.entry->origin;
  } else if (found.unset != nullptr) {
    value.state = State_::kUnset;
    value.origin = found.unset->origin;
  } else if (value.value.is_null()) {
    value.state = State_::kAbsent;
  }
  // Given by nobody, max_length means new tokens; written down, it means the whole sequence.
  if (path == "generation.max_length" && value.state == State_::kDefault) value.state = State_::kAbsent;
  // A kind that no user named may give way, and a prompt's start does when its last message is to be continued.
  value.comment = (path == "generation.cache_implementation" && value.origin.source <= Source::kCheckpoint) ||
                  (path == "tokenizer.add_generation_prompt" && value.state == State_::kDefault);
  out.push_back(std::move(value));
}

// Only what the list's own entries say, less what a stronger layer overrules.
void add_list(std::vector<EffectiveValue>& out, const State& state, const std::string& list) {
  const Layer& layer = state.layer(state.owner_of(list));
  for (std::size_t i = 0; i < state.count_of(list); ++i) {
    const std::string element = list + "[" + std::to_string(i) + "]", prefix = element + ".";
    const View view(state, list == "prompts" ? static_cast<int>(i) : -1);
    for (auto at = layer.lower_bound(prefix); at != layer.end() && at->first.starts_with(prefix); ++at) {
      const std::string name = at->first.substr(prefix.size());
      json value = at->second.value;
      if (name == "generation.unset") {
        std::erase_if(value.get_ref<json::array_t&>(), [&](const json& word) {
          const View::Found found = view.find("generation." + word.get<std::string>());
          return found.unset == nullptr || !found.of_prompt;
        });
      } else if (name.starts_with("generation.") && view.find(name).entry != &at->second) {
        continue;
      }
      out.push_back({element, name, std::move(value), at->second.origin, State_::kGiven, false});
    }
  }
}

bool bare(const std::string& key) {
  return !key.empty() && std::all_of(key.begin(), key.end(), [](unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-';
  });
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += '\\';
      result += c;
    } else if (c == '\n') {
      result += "\\n";
    } else if (c == '\t') {
      result += "\\t";
    } else if (byte < 0x20 || byte == 0x7f) {
      constexpr char kHex[] = "0123456789ABCDEF";
      result += std::string("\\u00") + kHex[byte >> 4] + kHex[byte & 15];
    } else {
      result += c;
    }
  }
  return result + "\"";
}

std::string toml_key(const std::string& key) { return bare(key) ? key : quoted(key); }

// "top_p", "cache_config.nbits"; the part below a free table may need quotes.
std::string toml_path(const std::string& name) {
  for (const char* table : {"cache_config.", "chat_template_kwargs."})
    if (name.starts_with(table)) return table + toml_key(name.substr(std::string_view(table).size()));
  return name;
}

std::string number(double value) {
  char text[40];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  std::string result(text, end);
  return result.find_first_of(".e") == std::string::npos ? result + ".0" : result;
}

void put_line(std::string& text, const std::string& line, const std::string& comment) {
  constexpr std::size_t kColumn = 44;
  text += line + std::string(line.size() < kColumn ? kColumn - line.size() : 1, ' ') + "# " + comment + "\n";
}

std::string one_line(std::string text) {
  std::replace_if(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return text;
}

}  // namespace

std::string toml_value(const json& value) {
  if (value.is_string()) return quoted(value.get<std::string>());
  if (value.is_number_float()) return number(value.get<double>());
  if (value.is_array()) {
    std::string text = "[";
    for (const json& item : value) text += (text.size() == 1 ? "" : ", ") + toml_value(item);
    return text + "]";
  }
  if (value.is_object()) {
    std::string text = "{";
    for (const auto& [key, item] : value.items())
      text += (text.size() == 1 ? " " : ", ") + toml_key(key) + " = " + toml_value(item);
    return text + (text.size() == 1 ? "}" : " }");
  }
  return value.dump();
}

std::vector<EffectiveValue> effective_values(const State& state) {
  std::vector<EffectiveValue> values;
  const View view(state);
  std::string list;
  std::vector<std::string> unset;
  for (const Key& key : keys()) {
    if (const std::size_t bracket = key.path.find('['); bracket != std::string_view::npos) {
      const std::string name(key.path.substr(0, bracket));
      if (name != list) add_list(values, state, name);
      list = name;
    } else if (key.path == "generation.unset") {
      EffectiveValue value{"generation", "unset", json::array(), {}, State_::kDefault, false};
      for (const Key& other : keys()) {
        if (!other.path.starts_with("generation.")) continue;
        const View::Found found = view.find(other.path);
        if (found.unset == nullptr) continue;
        value.value.push_back(other.path.substr(other.path.find('.') + 1));
        value.origin = found.unset->origin;
        value.state = State_::kGiven;
      }
      values.push_back(std::move(value));
    } else {
      add_plain(values, view, key);
    }
  }
  return values;
}

json nested_json(const std::vector<EffectiveValue>& values) {
  json root = json::object();
  for (const EffectiveValue& value : values) {
    if (value.state == State_::kAbsent || value.state == State_::kUnset) continue;
    json* at = &root;
    std::string path = value.section.empty() ? value.name : value.section + "." + value.name;
    while (!path.empty()) {
      // The name below a free table may hold dots of its own.
      const bool free_below = path.starts_with("cache_config.") || path.starts_with("chat_template_kwargs.");
      const std::size_t dot = path.find('.');
      std::string part = path.substr(0, dot);
      path = dot == std::string::npos ? "" : path.substr(dot + 1);
      const std::size_t bracket = part.find('[');
      at = &(*at)[part.substr(0, bracket)];
      if (bracket != std::string::npos) at = &(*at)[std::stoul(part.substr(bracket + 1))];
      if (free_below) {
        at = &(*at)[path];
        path.clear();
      }
    }
    *at = value.value;
  }
  return root;
}

std::string digest_of(const std::vector<EffectiveValue>& values) {
  return "sha256:" + sha256_hex(nested_json(values).dump());
}

std::string effective_text(const std::vector<EffectiveValue>& values) {
  std::string text, section;
  for (const EffectiveValue& value : values) {
    if (value.section != section) {
      const std::size_t bracket = value.section.find('[');
      text +=
          "\n" +
          (bracket == std::string::npos ? "[" + value.section + "]" : "[[" + value.section.substr(0, bracket) + "]]") +
          "\n";
      section = value.section;
    }
    const std::string key = toml_path(value.name);
    switch (value.state) {
      case State_::kAbsent:
        put_line(text, "# " + key, value.value.is_null() ? "not set" : "not set: " + toml_value(value.value));
        break;
      case State_::kUnset: put_line(text, "# " + key, "unset by " + one_line(value.origin.text)); break;
      default:
        put_line(text, (value.comment ? "# " : "") + key + " = " + toml_value(value.value),
                 one_line(value.origin.text));
    }
  }
  return text;
}

}  // namespace kvplug::config
