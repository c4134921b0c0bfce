// SPDX-License-Identifier: Apache-2.0
// All plugins that one host knows: manifests found in folders or named one by one; code is loaded at first use.
//
// Folders are searched in the order in which they were added: the run file's, those of KVPLUG_PLUGIN_PATH (which the
// program reads and hands on), the install folder. The current folder is never searched. Names, summaries and options
// schemas of every kind are known without loading code. Two manifests with one id, or with one kind, are an error;
// the same manifest found twice (links, a folder named twice) is not. Thread-safe; no lock is held during plugin calls.
#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/host_services.h"
#include "core/kind_options.h"
#include "core/kinds.h"
#include "core/manifest.h"
#include "core/plugin_library.h"

namespace kvplug {

class Registry {
 public:
  explicit Registry(HostServices& host) : host_(host) {}  // host outlives the registry

  HostServices& host() { return host_; }

  // Reads the manifests in `folder`, which must be absolute. A missing folder is noted, not an error; a file that is
  // not a good manifest, or a library without one, becomes a line of problems() and a warning or info in the log.
  // Throws kPlugin for a second manifest with a known id or kind; nothing of the folder is taken then.
  void add_search_path(const std::filesystem::path& folder);

  // One plugin by its manifest, or by its library with the manifest beside it. `sha256`: hex digest that the library
  // must have, "" = not checked. Its code is loaded at once, so that a bad one fails here. Throws kPlugin or kAbi.
  // Returns its manifest, which lives as long as the registry.
  const Manifest& load(const std::filesystem::path& path, std::string_view sha256 = {});

  // What the manifest's [conformance] must show before a library is loaded: none, basic or full.
  void set_min_conformance(std::string level);

  std::vector<std::string> cache_kinds() const;  // sorted; names alone, nothing is loaded
  std::vector<std::string> quantizers() const;
  std::vector<std::string> places() const;    // every folder and file tried, with what was wrong with it
  std::vector<std::string> problems() const;  // one line for each file that is not used

  // The word of a run file, retired ones mapped. Throws kConfig that lists known kinds and places().
  KindChoice choose(std::string_view word) const { return choose_kind(word, cache_kinds(), places()); }

  // nullptr if nobody provides it. The pointers live as long as the registry.
  const OptionsSchema* schema(std::string_view interface, std::string_view name) const;
  Schemas quantizer_schemas() const;  // by name
  const Manifest* manifest(std::string_view interface, std::string_view name) const;
  std::vector<const Manifest*> manifests() const;

  // Loads the library if need be and checks it against its manifest. Throws kConfig for an unknown name (see choose),
  // kPlugin or kAbi for a library that is no good. The references live for ever.
  const CachePlugin& cache(std::string_view kind);
  const QuantizerPlugin& quantizer(std::string_view name);

  // {"plugins": [{id, version, vendor, summary, license, abi, manifest, library, conformance, provides}], "problems"}
  nlohmann::json describe() const;

 private:
  struct Entry {
    const Manifest* manifest;
    const Provided* provided;
  };
  Entry find(std::string_view interface, std::string_view name) const;  // nulls if unknown
  void check_new(const std::vector<std::unique_ptr<Manifest>>& fresh) const;
  void check_digest(const Manifest& manifest, std::string_view sha256) const;
  const Manifest* known(const Manifest& manifest) const;  // the same file, read before
  void note_place(std::string place);
  void note_problem(int32_t level, std::string line);
  PluginLibrary& open(const Manifest& manifest) const;
  void check_conformance(const Manifest& manifest) const;

  HostServices& host_;
  mutable std::mutex mutex_;  // guards all below
  std::vector<std::unique_ptr<Manifest>> manifests_;
  std::vector<std::string> places_, problems_;
  std::string min_conformance_ = "none";
};

}  // namespace kvplug
