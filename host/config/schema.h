// SPDX-License-Identifier: Apache-2.0
// The one table of keys: parsing, did-you-mean, --print-effective-config and docs/run-file.md are read off it. A key
// whose feature this release lacks is not here but in unbuilt.h, so no key is accepted and then ignored.
#pragma once

#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvplug::config {

enum class Type {
  kBool,
  kInteger,
  kNumber,
  kString,
  kWord,      // one of Key::words
  kPath,      // made absolute, unless it is one of Key::words
  kSize,      // bytes: an integer or "512MiB"; "auto" where Key::words says so
  kStrings,   // list of strings, or one string
  kWords,     // list out of Key::words
  kPaths,     // list of paths
  kIds,       // token ids: one or a list
  kIdLists,   // list of lists of token ids
  kTable,     // free keys below it
  kMessages,  // [{role, content, ...}, ...]
};

struct Range {
  double min = -std::numeric_limits<double>::infinity(), max = std::numeric_limits<double>::infinity();
  bool above_min = false, below_max = false;  // the bound itself is outside
};

struct Key {
  std::string_view path;  // "generation.top_p"; "prompts[].text" for the tables of a list
  Type type;
  std::string_view fallback;  // the default as JSON text, "" = none
  std::string_view help;
  std::string_view words = {};  // kWord, kWords, kSize, kPath: "text|json|jsonl"
  Range range = {};             // kInteger, kNumber, kSize and the elements of kIds, kIdLists
  std::string_view off = {};    // the value as JSON text that HF's None stands for; "null" where the key is then absent
  std::string_view example = {};  // TOML, for keys without a default
};

std::span<const Key> keys();  // in the order of the file

// By path with [] for indices; a [generation] key below "prompts[].generation" is the key itself. Null when unknown.
const Key* find_key(std::string_view schema_path);
// "run", "generation", "prompts[]", "prompts[].generation", ... and "" for the top.
bool is_section(std::string_view schema_path);
// "prompts", "plugins.load", "bench.cache", "diff.candidate".
bool is_list_section(std::string_view schema_path);
// The words known directly below a section, in order.
std::vector<std::string> words_below(std::string_view section);
// True for the [generation] keys that choose the cache, which a single prompt cannot set.
bool is_cache_key(std::string_view path);

// "prompts[2].text" -> "prompts[].text"
std::string schema_path(std::string_view path);
std::vector<std::string> split_words(std::string_view words);
// "expected more than 0 and at most 1"
std::string describe_range(const Range& range, bool integer);
nlohmann::json fallback_of(const Key& key);  // null when the key has no default

}  // namespace kvplug::config
