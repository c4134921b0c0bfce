// SPDX-License-Identifier: Apache-2.0
// [cache.negotiation] require: what a run insists on, checked against what the plugins declared and answered.
#include <algorithm>

#include "core/did_you_mean.h"
#include "core/negotiate.h"

namespace kvplug {
namespace {

struct Capability {
  std::string_view word;
  std::string (*missing)(const Layout&);  // "" or who lacks it
};

template <class Has>
std::string lacking(const Layout& layout, const char* what, Has has) {
  for (const Group& group : layout.groups) {
    if (!has(group)) return "cache \"" + group.plugin->descriptor.id + "\" " + what;
  }
  return {};
}

template <uint32_t flag>
bool has_flag(const Group& group) {
  return (group.info.flags & flag) != 0;
}

std::string not_fused(const Layout& layout) {
  for (const LayerPlacement& placed : layout.placements) {
    if (placed.attend != "view") continue;
    return "layer " + std::to_string(placed.model_layer) + " (" + placed.kind + "): " + placed.reason;
  }
  return {};
}

std::string lossy(const Layout& layout) {
  return lacking(layout, "may change what it stores",
                 [](const Group& group) { return !has_flag<KVP_CACHE_LOSSY>(group); });
}

std::string no_rollback(const Layout& layout) {
  return lacking(layout, "cannot take tokens back", [](const Group& group) { return group.info.max_rollback != 0; });
}

std::string no_row_crop(const Layout& layout) {
  return lacking(layout, "cannot take another count back for each row", has_flag<KVP_CACHE_ROW_CROP>);
}

std::string moving(const Layout& layout) {
  return lacking(layout, "moves its storage", has_flag<KVP_CACHE_STABLE_ADDRESS>);
}

constexpr Capability kKnown[] = {{"fused_attention", not_fused},
                                 {"lossless", lossy},
                                 {"rollback", no_rollback},
                                 {"row_crop", no_row_crop},
                                 {"stable_address", moving}};

}  // namespace

std::string why_unprepared(const Layout& layout) {
  const std::string grows = lacking(layout, "grows: its storage moves", has_flag<KVP_CACHE_STABLE_ADDRESS>);
  return grows.empty() ? not_fused(layout) : grows;
}

std::string why_uncaptured(const Layout& layout) {
  if (const std::string why = why_unprepared(layout); !why.empty()) return why;
  for (const kvp_layer& layer : layout.layers) {
    if (layer.kind == KVP_LAYER_FULL || layer.kind == KVP_LAYER_NONE) continue;
    return "layer " + std::to_string(layer.model_layer) + " (" + layer_word(layer) +
           "): only steps of full attention are recorded";
  }
  return lacking(layout, "has no " KVP_EXT_CAPTURE,
                 [](const Group& group) { return group.plugin->capture.has_value(); });
}

void check_required(const Layout& layout, std::span<const std::string> require) {
  for (const std::string& word : require) {
    const auto known = std::find_if(std::begin(kKnown), std::end(kKnown),
                                    [&](const Capability& capability) { return capability.word == word; });
    if (known == std::end(kKnown)) {
      std::vector<std::string_view> words;
      for (const Capability& capability : kKnown) words.push_back(capability.word);
      const std::string near = did_you_mean(word, words);
      throw Error(Code::kConfig, "unknown capability \"" + word + "\"",
                  (near.empty() ? "" : "did you mean \"" + near + "\"? ") + ("known: " + join_words(words)),
                  "cache.negotiation.require");
    }
    if (const std::string missing = known->missing(layout); !missing.empty()) {
      throw Error(Code::kUnsupported, "required capability " + word + " is not there: " + missing,
                  "remove it from cache.negotiation.require, or choose another cache_implementation or cache_config");
    }
  }
}

}  // namespace kvplug
