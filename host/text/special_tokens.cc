// SPDX-License-Identifier: Apache-2.0
// Follows Transformers: tokens of tokenizer_config.json that tokenizer.json lacks are added (in order of their ids),
// named special tokens included; add_bos_token / add_eos_token, if given, replace the post-processor.
#include "text/special_tokens.h"

#include <array>
#include <cstdint>
#include <string_view>

#include "core/error.h"
#include "text/files.h"

namespace kvplug::text {
namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 7> kNames = {"bos_token", "eos_token", "unk_token", "sep_token",
                                                    "pad_token", "cls_token", "mask_token"};

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& key, const std::string& expected) {
  throw Error(Code::kModel, key + ": expected " + expected, {}, path.string());
}

bool flag(const json& object, const char* key, bool fallback) {
  const auto it = object.find(key);
  return it != object.end() && it->is_boolean() ? it->get<bool>() : fallback;
}

// A token is given as its text or as an object with "content" and how it matches; the result has every field.
json full_token(const json& value, bool special_by_default, const std::filesystem::path& path, const std::string& key) {
  const json fields = value.is_string() ? json{{"content", value}} : value;
  if (!fields.is_object() || !fields.contains("content") || !fields["content"].is_string()) {
    refuse(path, key, "a token: a string, or an object with a string \"content\"");
  }
  const bool special = flag(fields, "special", special_by_default);
  return {{"content", fields["content"]},
          {"special", special},
          {"lstrip", flag(fields, "lstrip", false)},
          {"rstrip", flag(fields, "rstrip", false)},
          {"single_word", flag(fields, "single_word", false)},
          {"normalized", flag(fields, "normalized", !special)}};
}

std::map<int64_t, json> added_tokens_by_id(const json& config, const std::filesystem::path& path) {
  std::map<int64_t, json> by_id;
  const auto it = config.find("added_tokens_decoder");
  if (it == config.end() || it->is_null()) return by_id;
  if (!it->is_object()) refuse(path, "added_tokens_decoder", "an object of id -> token");
  for (const auto& [id, token] : it->items()) {
    int64_t number = 0;
    for (const char digit : id) {
      if (digit < '0' || digit > '9' || id.size() > 9) refuse(path, "added_tokens_decoder", "ids as keys, found " + id);
      number = number * 10 + (digit - '0');
    }
    by_id[number] = full_token(token, false, path, "added_tokens_decoder." + id);
  }
  return by_id;
}

}  // namespace

TokenizerSettings read_tokenizer_settings(const std::filesystem::path& folder) {
  const auto config_path = folder / "tokenizer_config.json";
  const auto map_path = folder / "special_tokens_map.json";
  const json config = read_json_object(config_path).value_or(json::object());
  const json token_map = read_json_object(map_path).value_or(json::object());

  TokenizerSettings settings;
  json added = json::array();
  for (auto& [id, token] : added_tokens_by_id(config, config_path)) added.push_back(std::move(token));
  for (const std::string_view name : kNames) {
    const bool in_config = config.contains(name);
    const json& source = in_config ? config : token_map;
    const auto it = source.find(name);
    if (it == source.end() || it->is_null()) continue;
    json token = full_token(*it, true, in_config ? config_path : map_path, std::string(name));
    token["special"] = true;
    settings.special_tokens[std::string(name)] = token["content"];
    added.push_back(std::move(token));
  }
  settings.shim_settings["added_tokens"] = std::move(added);

  if (config.contains("add_bos_token") || config.contains("add_eos_token")) {
    const auto side = [&](const char* wanted, const char* name) -> json {
      const auto token = settings.special_tokens.find(name);
      return flag(config, wanted, false) && token != settings.special_tokens.end() ? json(token->second) : json();
    };
    settings.shim_settings["template"] = {{"bos", side("add_bos_token", "bos_token")},
                                          {"eos", side("add_eos_token", "eos_token")}};
  }
  return settings;
}

}  // namespace kvplug::text
