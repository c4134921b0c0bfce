// SPDX-License-Identifier: Apache-2.0
// A run file held as data. Layers are merged key by key: built-in defaults, the checkpoint's generation_config.json,
// the run file, the environment (pairs the program hands over), flags and set(). Every call checks what it is given
// against the schema and throws Error(kConfig) with where, message and hint, changing nothing; resolve() then checks
// what only the whole can tell and gives the typed Run. No thread safety while it changes.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "config/run.h"
#include "core/kind_options.h"

namespace kvplug::config {

// The cache kinds and quantizers that plugins provide, as data.
struct KindTable {
  Schemas schemas, quantizers;        // of the kinds; of the quantizers
  std::vector<std::string> searched;  // every place plugins were looked for, for the hint of an unknown kind
};

struct State;

class Config {
 public:
  Config();
  ~Config();
  Config(const Config&);
  Config& operator=(const Config&);
  Config(Config&&) noexcept;
  Config& operator=(Config&&) noexcept;

  // A run file; config_version is required in it. `origin` names it in messages ("run.toml"); relative paths are taken
  // from base_dir.
  void merge_toml(std::string_view text, std::string_view origin, const std::filesystem::path& base_dir);
  // The same document as JSON; null values are keys not given.
  void merge_json(std::string_view text, std::string_view origin, const std::filesystem::path& base_dir);
  // One key, strongest layer: "generation.top_p", "0.9". The value is TOML; a text that is no TOML value is taken as a
  // string where the key is one. Relative paths are taken from the working directory.
  void set(std::string_view key, std::string_view toml_value, std::string_view origin = "--set",
           Source source = Source::kFlag);
  // KVPLUG_ variables (others are passed over): KVPLUG_GENERATION__TOP_P=0.9 is generation.top_p.
  void merge_environment(std::span<const std::pair<std::string, std::string>> variables);
  // The checkpoint's generation_config.json, weakest layer above the defaults; replaces an earlier one. Strict about
  // the types of keys used here, tolerant about unknown ones (HF writes many); null = not given. The caller honours
  // model.use_generation_config; where the checkpoint has no such file it hands over the special tokens of config.json.
  void set_checkpoint(std::string_view text, std::string_view origin = "generation_config.json");

  // Every key that `above` was given, file and flags alike, as the strongest layer here.
  void overlay(const Config& above);

  // {"value": ..., "origin": "run.toml:14:3"}; a table gives an object of such. Unknown key: Error(kConfig).
  nlohmann::json get(std::string_view key) const;
  // "run.toml:14: generation.top_p" for messages about a key that others found wrong.
  std::string where(std::string_view key) const;

  // All checks, then the typed run. Without `kinds`, the kind and its cache_config are taken as they stand.
  Run resolve(const KindTable* kinds = nullptr) const;
  // A run file with every key, its value and, as a comment, its origin; run again it gives the same run.
  std::string effective_toml() const;
  // The same values as nested JSON without origins (what the digest is taken of).
  nlohmann::json effective_json() const;

 private:
  std::unique_ptr<State> state_;
};

// What a run needs beyond a valid file: a model, and for `generate` a prompt. Error(kConfig) naming what is missing.
void check_complete(const Run& run);

}  // namespace kvplug::config
