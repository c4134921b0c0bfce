// SPDX-License-Identifier: Apache-2.0
// Inside of Config: every given value under its flat path ("generation.top_p", "prompts[0].text",
// "generation.cache_config.nbits"), one map per strength, and the view that finds the strongest.
#pragma once

#include <array>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "config/document.h"
#include "config/run.h"

namespace kvplug::config {

struct Entry {
  nlohmann::json value;
  Origin origin;
  std::string where;       // for Error
  nlohmann::json written;  // as given, before paths were made absolute; null for lists and tables
};

// A list of tables ("prompts", "plugins.load") has an entry of its own that holds the count.
using Layer = std::map<std::string, Entry, std::less<>>;

inline constexpr int kSources = 5;  // indices: Source

struct State {
  std::array<Layer, kSources> layers;  // kDefault stays empty: defaults are in the schema
  std::array<std::map<std::string, Origin>, kSources> without_effect;
  std::vector<Notice> checkpoint_notices;

  const Layer& layer(Source source) const { return layers[static_cast<std::size_t>(source)]; }
  Layer& layer(Source source) { return layers[static_cast<std::size_t>(source)]; }
  // The strongest layer that has this list of tables; kDefault: none.
  Source owner_of(std::string_view list) const;
  std::size_t count_of(std::string_view list) const;
};

struct MergeContext {
  std::string origin;
  Source source = Source::kFile;
  std::filesystem::path base_dir;
};

// Reads a whole document into a fresh layer; `without_effect` gets HF keys that change nothing.
Layer read_document(const Node& root, const MergeContext& context, std::map<std::string, Origin>& without_effect);
// The keys of a generation_config.json.
Layer read_checkpoint(const Node& root, const MergeContext& context, std::map<std::string, Origin>& without_effect,
                      std::vector<Notice>& notices);
// Adds `from` on top of `to`; lists of tables are replaced as a whole.
void put_above(Layer& to, Layer from);

// Values as one prompt (or the run itself, prompt = -1) sees them.
class View {
 public:
  explicit View(const State& state, int prompt = -1);

  struct Found {
    const Entry* entry = nullptr;  // null: default, or unset
    const Entry* unset = nullptr;  // the `unset` list that names it
    bool of_prompt = false;
  };
  // Throws Error(kConfig) when one and the same level both sets and unsets the key.
  Found find(std::string_view path) const;

  nlohmann::json value(std::string_view path) const;  // null when absent
  Source source(std::string_view path) const;         // kDefault for defaults; of the list for unset keys
  std::string where(std::string_view path) const;
  // Options below a table key, strongest first choice each; entries weaker than `floor` are left out.
  std::map<std::string, const Entry*> options(std::string_view path, Source floor = Source::kCheckpoint) const;

 private:
  const Entry* unset_at(Source source, const std::string& prefix, std::string_view path) const;

  const State& state_;
  std::string prefix_;  // "prompts[2]." or ""
  Source prompts_ = Source::kDefault;
};

}  // namespace kvplug::config
