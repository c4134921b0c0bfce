// SPDX-License-Identifier: Apache-2.0
#include "config/layers.h"

#include <algorithm>

#include "config/schema.h"
#include "core/error.h"

namespace kvplug::config {
namespace {

using nlohmann::json;

constexpr std::array<Source, 4> kStrongestFirst = {Source::kFlag, Source::kEnvironment, Source::kFile,
                                                   Source::kCheckpoint};

const Entry* entry_of(const Layer& layer, const std::string& path) {
  const auto found = layer.find(path);
  return found == layer.end() ? nullptr : &found->second;
}

}  // namespace

Source State::owner_of(std::string_view list) const {
  for (const Source source : kStrongestFirst)
    if (layer(source).contains(list)) return source;
  return Source::kDefault;
}

std::size_t State::count_of(std::string_view list) const {
  const Source owner = owner_of(list);
  return owner == Source::kDefault ? 0 : layer(owner).find(list)->second.value.get<std::size_t>();
}

View::View(const State& state, int prompt) : state_(state) {
  if (prompt < 0) return;
  prefix_ = "prompts[" + std::to_string(prompt) + "].";
  prompts_ = state.owner_of("prompts");
}

const Entry* View::unset_at(Source source, const std::string& prefix, std::string_view path) const {
  if (!path.starts_with("generation.")) return nullptr;
  const Entry* list = entry_of(state_.layer(source), prefix + "generation.unset");
  if (list == nullptr) return nullptr;
  const json word = std::string(path.substr(path.find('.') + 1));
  return std::find(list->value.begin(), list->value.end(), word) == list->value.end() ? nullptr : list;
}

View::Found View::find(std::string_view path) const {
  for (const Source source : kStrongestFirst) {
    for (const bool of_prompt : {true, false}) {
      if (of_prompt && (prefix_.empty() || source != prompts_)) continue;
      const std::string prefix = of_prompt ? prefix_ : "";
      const Entry* entry = entry_of(state_.layer(source), prefix + std::string(path));
      const Entry* unset = unset_at(source, prefix, path);
      if (entry != nullptr && unset != nullptr && source != Source::kFlag)
        throw Error(Code::kConfig, "the key is set here and also named in generation.unset", "keep one of the two",
                    entry->where);
      if (entry != nullptr) return {entry, nullptr, of_prompt};
      if (unset != nullptr) return {nullptr, unset, of_prompt};
    }
  }
  return {};
}

json View::value(std::string_view path) const {
  const Found found = find(path);
  if (found.entry != nullptr) return found.entry->value;
  const Key* key = find_key(schema_path(path));
  if (found.unset != nullptr) return json::parse(key->off);
  return fallback_of(*key);
}

Source View::source(std::string_view path) const {
  const Found found = find(path);
  const Entry* entry = found.entry != nullptr ? found.entry : found.unset;
  return entry != nullptr ? entry->origin.source : Source::kDefault;
}

std::string View::where(std::string_view path) const {
  const Found found = find(path);
  if (found.entry != nullptr) return found.entry->where;
  return found.unset != nullptr ? found.unset->where : std::string(path);
}

std::map<std::string, const Entry*> View::options(std::string_view path, Source floor) const {
  const std::string prefix = std::string(path) + ".";
  std::map<std::string, const Entry*> options;
  for (const Source source : kStrongestFirst) {
    if (source < floor) break;
    const Layer& layer = state_.layer(source);
    for (auto at = layer.lower_bound(prefix); at != layer.end() && at->first.starts_with(prefix); ++at)
      options.emplace(at->first.substr(prefix.size()), &at->second);
    if (unset_at(source, "", path) != nullptr) break;
  }
  return options;
}

}  // namespace kvplug::config
