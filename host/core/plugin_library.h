// SPDX-License-Identifier: Apache-2.0
// A plugin library in this process: inspected, loaded once, its tables checked and completed, never unloaded.
//
// The table of loaded libraries is the process's, keyed by file (device, inode), and is never destroyed: once code of a
// library has run it stays mapped. A library that is refused after its code ran keeps its refusal. Tables are
// normalised once: min(size) bytes are copied, required slots checked, absent optional ones filled with a function that
// answers UNSUPPORTED, so that no call site tests for NULL.
#pragma once

#include <kvplug/abi.h>

#include <atomic>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"

namespace kvplug {

class PluginLibrary;

// One descriptor, with its table as this host knows it.
struct Descriptor {
  std::string id, iface_id, summary;
  std::optional<std::string> options_schema;
};

struct CachePlugin {
  PluginLibrary* library = nullptr;
  Descriptor descriptor;
  kvp_cache_iface iface{};                 // every slot may be called
  std::optional<kvp_attend_ext> attend;    // every slot may be called
  std::optional<kvp_offload_ext> offload;  // likewise
  std::optional<kvp_capture_ext> capture;  // likewise
};

struct QuantizerPlugin {
  PluginLibrary* library = nullptr;
  Descriptor descriptor;
  kvp_quantizer_iface iface{};            // every slot may be called
  std::optional<kvp_qattend_ext> attend;  // likewise
};

class PluginLibrary {
 public:
  // Loads the library at `path` or finds it loaded. Throws kPlugin, kAbi or kIo; the message names the file.
  static PluginLibrary& load(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return path_; }  // canonical
  const std::string& id() const { return id_; }
  const std::string& version() const { return version_; }
  const std::string& vendor() const { return vendor_; }
  const std::vector<std::unique_ptr<CachePlugin>>& caches() const { return caches_; }
  const std::vector<std::unique_ptr<QuantizerPlugin>>& quantizers() const { return quantizers_; }

  // After INTERNAL no further instance is made: throws kPlugin with what happened.
  void check_usable() const;

  // What a failed call of this library is to its caller: an Error that names plugin, file, call and reason. INTERNAL
  // marks the library as bad. `status` as returned, `text` as written by the plugin.
  [[noreturn]] void fail(const char* call, kvp_status status, const std::string& text);

 private:
  explicit PluginLibrary(std::filesystem::path path) : path_(std::move(path)) {}
  void open();
  void introduce(kvp_plugin_entry_fn entry);
  void take_descriptor(const kvp_descriptor* given, uint32_t index);
  Error broken(const std::string& what) const;

  const std::filesystem::path path_;
  std::string id_, version_, vendor_;
  std::vector<std::unique_ptr<CachePlugin>> caches_;
  std::vector<std::unique_ptr<QuantizerPlugin>> quantizers_;
  std::optional<Error> refused_;  // the code has run, but the host will not use it

  std::atomic<bool> bad_{false};
  mutable std::mutex bad_mutex_;
  std::string bad_reason_;
};

}  // namespace kvplug
