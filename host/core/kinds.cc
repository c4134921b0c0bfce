// SPDX-License-Identifier: Apache-2.0
#include "core/kinds.h"

#include <algorithm>
#include <cctype>

#include "core/did_you_mean.h"
#include "core/error.h"

namespace kvplug {
namespace {

constexpr std::string_view kCacheKinds[] = {"dynamic", "static", "offloaded", "offloaded_static", "quantized", "mamba"};
constexpr std::string_view kQuantizers[] = {"quanto", "hqq", "fp8"};
constexpr RetiredKind kRetired[] = {
    {"sliding_window", "static"},
    {"hybrid_chunked", "static"},
    {"hybrid", "dynamic"},
    {"offloaded_hybrid", "offloaded_static"},
    {"offloaded_hybrid_chunked", "offloaded_static"},
};

bool contains(std::span<const std::string_view> words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

bool valid_half(std::string_view half) {
  return !half.empty() && half.front() != '.' && std::all_of(half.begin(), half.end(), [](unsigned char c) {
    return std::islower(c) || std::isdigit(c) || c == '_' || c == '-' || c == '.';
  });
}

std::string known_and_places(const std::vector<std::string>& registered, const std::vector<std::string>& places) {
  std::string text = "known kinds: " + (registered.empty() ? "none" : join_words(registered));
  text += "\n  searched: " + (places.empty() ? "no folder" : join_words(places));
  return text;
}

}  // namespace

std::span<const std::string_view> builtin_cache_kinds() { return kCacheKinds; }
bool is_static(std::string_view kind) { return kind == "static" || kind == "offloaded_static"; }
bool has_capacity(std::string_view kind) { return is_static(kind) || kind.find('/') != std::string_view::npos; }
std::span<const std::string_view> builtin_quantizers() { return kQuantizers; }
std::span<const RetiredKind> retired_kinds() { return kRetired; }

bool valid_kind_name(std::string_view name, std::span<const std::string_view> builtin) {
  if (contains(builtin, name)) return true;
  const std::size_t slash = name.find('/');
  return slash != std::string_view::npos && valid_half(name.substr(0, slash)) && valid_half(name.substr(slash + 1));
}

KindChoice choose_kind(std::string_view word, const std::vector<std::string>& registered,
                       const std::vector<std::string>& places) {
  KindChoice choice{std::string(word), {}};
  const auto retired = std::find_if(std::begin(kRetired), std::end(kRetired),
                                    [&](const RetiredKind& entry) { return entry.word == word; });
  if (retired != std::end(kRetired)) {
    choice.kind = retired->now;
    choice.notice =
        "cache_implementation \"" + std::string(word) + "\" is a retired word and means \"" + choice.kind + "\"";
  }
  if (std::find(registered.begin(), registered.end(), choice.kind) != registered.end()) return choice;

  const std::string quoted = "cache \"" + choice.kind + "\"";
  if (word == "paged") {
    throw Error(Code::kConfig,
                quoted + " is refused: paging is how a serving engine lays out its own batches, not a kind of cache",
                "use \"dynamic\"; " + known_and_places(registered, places));
  }
  if (contains(kCacheKinds, choice.kind)) {
    const std::string from = choice.notice.empty() ? "" : " (" + choice.notice + ")";
    if (choice.kind == "dynamic") {
      throw Error(Code::kConfig, quoted + " not found: its plugin is in none of the folders searched" + from,
                  known_and_places(registered, places));
    }
    throw Error(Code::kConfig, quoted + " is not part of this release" + from, known_and_places(registered, places));
  }
  std::string hint = did_you_mean(word, registered);
  hint = hint.empty() ? "" : "did you mean \"" + hint + "\"? ";
  throw Error(Code::kConfig, quoted + " not found", hint + known_and_places(registered, places));
}

}  // namespace kvplug
