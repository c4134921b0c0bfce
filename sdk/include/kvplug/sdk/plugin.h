// SPDX-License-Identifier: Apache-2.0
// The whole C++ side of the SDK in one include, and the entry of a plugin library:
//
//   KVPLUG_PLUGIN("acme", "1.0.0", "Acme", {{sizeof(kvp_descriptor), "acme/cache", KVP_IFACE_CACHE,
//                  kvplug::sdk::CachePlugin<AcmeCache>::iface(), "what it does", schema}})
//
// once, in one source file, outside every namespace. Everything it makes is static; the entry may be called again.
#pragma once

#include <kvplug/sdk/attention.h>
#include <kvplug/sdk/cache_plugin.h>
#include <kvplug/sdk/host.h>
#include <kvplug/sdk/options.h>
#include <kvplug/sdk/rows.h>
#include <kvplug/sdk/status.h>
#include <kvplug/sdk/structs.h>
#include <kvplug/sdk/tensor.h>

namespace kvplug::sdk {

// What the entry does: refuses a host it cannot live with, remembers the host, hands out the plugin.
inline kvp_status enter(const kvp_host* table, const kvp_plugin& plugin, const kvp_plugin** out,
                        kvp_error* err) noexcept {
  return guard(err, [&] {
    if (table == nullptr || out == nullptr) fail(KVP_INVALID_ARGUMENT, plugin.id, ": the host gave no table");
    if (!KVP_HAS_FIELD(table, abi_minor) || table->abi_major != plugin.abi_major ||
        table->abi_minor < plugin.min_host_minor) {
      const bool told = KVP_HAS_FIELD(table, abi_minor);
      fail(KVP_UNSUPPORTED, plugin.id, " needs a host of ABI ", plugin.abi_major, ".", plugin.min_host_minor,
           " or later of the same major; the host has ABI ", told ? table->abi_major : 0, ".",
           told ? table->abi_minor : 0);
    }
    if (!KVP_HAS_FIELD(table, mem_free) || table->mem_alloc == nullptr || table->mem_free == nullptr) {
      fail(KVP_UNSUPPORTED, plugin.id, " needs a host that gives memory (mem_alloc and mem_free)");
    }
    detail::host.store(table, std::memory_order_release);
    *out = &plugin;
  });
}

}  // namespace kvplug::sdk

#define KVPLUG_PLUGIN(plugin_id, plugin_version, plugin_vendor, ...)                                                   \
  static const kvp_descriptor kvplug_descriptors[] = __VA_ARGS__;                                                      \
  static const uint32_t kvplug_n_descriptors = sizeof(kvplug_descriptors) / sizeof(kvplug_descriptors[0]);             \
  static const kvp_descriptor* kvplug_descriptor(uint32_t i) {                                                         \
    return i < kvplug_n_descriptors ? &kvplug_descriptors[i] : nullptr;                                                \
  }                                                                                                                    \
  static const kvp_plugin kvplug_plugin = {sizeof(kvp_plugin), KVP_ABI_MAJOR,  KVP_ABI_MINOR, KVP_ABI_MINOR,        0, \
                                           plugin_id,          plugin_version, plugin_vendor, kvplug_n_descriptors, 0, \
                                           kvplug_descriptor,  nullptr};                                               \
  extern "C" KVP_EXPORT int32_t KVP_PLUGIN_ENTRY(const kvp_host* host, const kvp_plugin** out, kvp_error* err) {       \
    return kvplug::sdk::enter(host, kvplug_plugin, out, err);                                                          \
  }
