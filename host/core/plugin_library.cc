// SPDX-License-Identifier: Apache-2.0
#include "core/plugin_library.h"

#include <sys/stat.h>

#include <algorithm>
#include <boost/dll/shared_library.hpp>
#include <cstring>
#include <map>
#include <utility>

#include "core/host_services.h"
#include "core/inspect.h"
#include "core/normalise.h"
#include "core/plugin_call.h"

namespace kvplug {
namespace {

namespace fs = std::filesystem;
using FileKey = std::pair<dev_t, ino_t>;

struct Loaded {
  std::mutex mutex;
  std::map<FileKey, std::unique_ptr<PluginLibrary>> libraries;
  std::vector<std::unique_ptr<boost::dll::shared_library>> mapped;  // Never unloaded.
};

Loaded& loaded() {
  static Loaded& table = *new Loaded;
  return table;
}

std::string abi_text(uint32_t major, uint32_t minor) { return std::to_string(major) + "." + std::to_string(minor); }

// The line of the dynamic loader inside Boost's message, without the library's own path.
std::string loader_text(const std::string& text) {
  constexpr std::string_view kMark = "dlerror system message: ";
  const std::size_t mark = text.find(kMark);
  if (mark == std::string::npos) return text;
  std::string line = text.substr(mark + kMark.size());
  if (const std::size_t end = line.rfind("): "); end != std::string::npos) line.resize(end);
  return line;
}

}  // namespace

PluginLibrary& PluginLibrary::load(const fs::path& given) {
  std::error_code failed;
  const fs::path path = fs::canonical(given, failed);
  struct stat file{};
  if (failed || stat(path.c_str(), &file) != 0) {
    throw Error(Code::kPlugin, "there is no such library", {}, given.string());
  }
  const FileKey key{file.st_dev, file.st_ino};
  Loaded& table = loaded();
  const auto find = [&]() -> PluginLibrary* {
    const auto found = table.libraries.find(key);
    if (found == table.libraries.end()) return nullptr;
    if (found->second->refused_) throw Error(*found->second->refused_);
    return found->second.get();
  };
  {
    const std::lock_guard lock(table.mutex);
    if (PluginLibrary* library = find()) return *library;
  }

  // No lock is held while code of the plugin runs. Two threads that load the same file both get here; the loader maps
  // it once, the entry may be called twice, and the first result is kept.
  inspect_library(path);
  std::unique_ptr<PluginLibrary> library(new PluginLibrary(path));
  library->open();
  const std::lock_guard lock(table.mutex);
  table.libraries.try_emplace(key, std::move(library));
  return *find();
}

// Throws if the file cannot be mapped. From the moment that code may have run, failures are kept in refused_.
void PluginLibrary::open() {
  namespace dll = boost::dll;
  auto library = std::make_unique<dll::shared_library>();
  try {
    library->load(path_, dll::load_mode::rtld_now | dll::load_mode::rtld_local);
  } catch (const std::exception& error) {
    throw Error(Code::kPlugin, "the system cannot load it: " + loader_text(error.what()), {}, path_.string());
  }
  dll::shared_library& mapped = *library;
  {
    const std::lock_guard lock(loaded().mutex);
    loaded().mapped.push_back(std::move(library));
  }
  try {
    introduce(&mapped.get<std::remove_pointer_t<kvp_plugin_entry_fn>>(KVP_PLUGIN_ENTRY_NAME));
  } catch (const Error& error) {
    refused_ = error;
  } catch (const std::exception& error) {
    refused_ = broken(error.what());
  }
}

Error PluginLibrary::broken(const std::string& what) const { return Error(Code::kPlugin, what, {}, path_.string()); }

void PluginLibrary::introduce(kvp_plugin_entry_fn entry) {
  const kvp_plugin* given = nullptr;
  ErrorText text;
  const kvp_status status = try_plugin(text, entry, HostServices::table(), &given);
  const std::string host_abi = abi_text(KVP_ABI_MAJOR, KVP_ABI_MINOR);
  if (status != KVP_OK) {
    throw Error(status == KVP_UNSUPPORTED ? Code::kAbi : Code::kPlugin,
                "its entry refused this host (plugin ABI " + host_abi + ") with status " + std::to_string(status) +
                    ": " + text.text(),
                {}, path_.string());
  }
  if (given == nullptr) throw broken("its entry answered OK without a plugin");

  const auto plugin = copy_table<kvp_plugin>(given, "kvp_plugin", path_);
  const std::string plugin_abi = abi_text(plugin.abi_major, plugin.abi_minor);
  if (plugin.abi_major != KVP_ABI_MAJOR) {
    throw Error(Code::kAbi, "is built for plugin ABI " + plugin_abi + ", this host speaks " + host_abi,
                "build the plugin against this host's headers, or use a host of its version", path_.string());
  }
  if (plugin.min_host_minor > KVP_ABI_MINOR) {
    throw Error(Code::kAbi,
                "is built for plugin ABI " + plugin_abi + " and needs a host of " +
                    abi_text(KVP_ABI_MAJOR, plugin.min_host_minor) + " or later, this host speaks " + host_abi,
                "update the host, or use an older version of the plugin", path_.string());
  }
  id_ = required_text(plugin.id, "kvp_plugin.id", path_);
  version_ = required_text(plugin.version, "kvp_plugin.version", path_);
  vendor_ = required_text(plugin.vendor, "kvp_plugin.vendor", path_);
  if (plugin.descriptor == nullptr) throw broken("kvp_plugin.descriptor is NULL");
  if (plugin.n_descriptors == 0 || plugin.n_descriptors > 1000) {
    throw broken("n_descriptors is " + std::to_string(plugin.n_descriptors) + ", expected 1 to 1000");
  }
  for (uint32_t i = 0; i < plugin.n_descriptors; ++i) take_descriptor(plugin.descriptor(i), i);
}

void PluginLibrary::take_descriptor(const kvp_descriptor* given, uint32_t index) {
  const std::string name = "descriptor " + std::to_string(index);
  if (given == nullptr) throw broken(name + " is NULL");
  const auto table = copy_table<kvp_descriptor>(given, name, path_);
  Descriptor descriptor;
  descriptor.id = required_text(table.id, name + ".id", path_);
  descriptor.iface_id = required_text(table.iface_id, name + ".iface_id", path_);
  descriptor.summary = table.summary == nullptr ? "" : valid_utf8(table.summary);
  if (table.options_schema != nullptr) descriptor.options_schema = table.options_schema;
  if (table.iface == nullptr) throw broken(name + ".iface is NULL");

  const std::string iface_name = "\"" + descriptor.id + "\" (" + descriptor.iface_id + ")";
  if (descriptor.iface_id == KVP_IFACE_CACHE) {
    auto plugin = std::make_unique<CachePlugin>();
    plugin->library = this;
    plugin->iface = normalise_cache(table.iface, iface_name, path_);
    plugin->attend = normalise_attend(plugin->iface.get_extension(KVP_EXT_ATTEND), iface_name, path_);
    plugin->offload = normalise_offload(plugin->iface.get_extension(KVP_EXT_OFFLOAD), iface_name, path_);
    plugin->capture = normalise_capture(plugin->iface.get_extension(KVP_EXT_CAPTURE), iface_name, path_);
    plugin->descriptor = std::move(descriptor);
    caches_.push_back(std::move(plugin));
  } else if (descriptor.iface_id == KVP_IFACE_QUANTIZER) {
    auto plugin = std::make_unique<QuantizerPlugin>();
    plugin->library = this;
    plugin->iface = normalise_quantizer(table.iface, iface_name, path_);
    plugin->attend = normalise_quant_attend(plugin->iface.get_extension(KVP_EXT_QUANT_ATTEND), iface_name, path_);
    plugin->descriptor = std::move(descriptor);
    quantizers_.push_back(std::move(plugin));
  } else {
    throw broken("interface \"" + descriptor.iface_id + "\" of \"" + descriptor.id + "\" is unknown to this host");
  }
}

void PluginLibrary::check_usable() const {
  if (!bad_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(bad_mutex_);
  throw Error(Code::kPlugin,
              "plugin \"" + id_ + "\" is not used any more in this process, since it failed inside: " + bad_reason_,
              "report this to \"" + vendor_ + "\", or choose another cache", path_.string());
}

void PluginLibrary::fail(const char* call, kvp_status status, const std::string& text) {
  Code code = static_cast<Code>(status);
  std::string reason = text;
  if (status < 0 || status >= 100 || std::strcmp(code_word(code), "internal") == 0) {
    // INTERNAL itself, or a number that this host does not know: the group still tells what is left of the instance.
    if (status != KVP_INTERNAL) reason += (reason.empty() ? "" : " ") + ("(status " + std::to_string(status) + ")");
    code = KVP_IS_POISONING(status) ? Code::kInternal : Code::kPlugin;
  }
  if (reason.empty()) reason = std::string(code_word(code)) + ", without a reason";
  const std::string message = "plugin \"" + id_ + "\" (" + path_.string() + "): " + call + ": " + reason;
  if (code != Code::kInternal) throw Error(code, message);
  {
    const std::lock_guard lock(bad_mutex_);
    if (bad_reason_.empty()) bad_reason_ = std::string(call) + ": " + reason;
    bad_.store(true, std::memory_order_release);
  }
  throw PluginFault(code, message);
}

}  // namespace kvplug
