// SPDX-License-Identifier: Apache-2.0
// The manifest of a plugin, `<library stem>.toml` beside the library: who it is and what it provides, read without
// loading any code. Read strictly: an unknown key or a wrong type is an error with file, line and column.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/options_schema.h"

namespace kvplug {

// One kind that the library provides.
struct Provided {
  std::string interface;     // KVP_IFACE_CACHE or KVP_IFACE_QUANTIZER
  std::string name;          // what cache_implementation or backend names: a built-in word or `vendor/name`
  std::string options_file;  // as written, "" = no options
  OptionsSchema schema;
};

struct Manifest {
  std::filesystem::path path;          // of the manifest, canonical
  std::filesystem::path library_path;  // absolute; need not exist
  std::string id, version, vendor, summary, license;
  uint32_t abi_major = 0, abi_minor = 0;  // the lowest that the plugin needs
  std::vector<Provided> provides;
  struct {
    std::string level = "none";  // none | basic | full, as the validator wrote it
    std::string validator, sha256;
  } conformance;

  // Throws kPlugin (kIo if the file cannot be read).
  static Manifest read(const std::filesystem::path& path);
};

}  // namespace kvplug
