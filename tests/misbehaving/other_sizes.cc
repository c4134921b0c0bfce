// SPDX-License-Identifier: Apache-2.0
// No rule broken: built against other minors. The plugin table ends before quiesce, the descriptor and the interface
// have a tail that this host does not know.
#include "plain_cache.h"

struct LongIface {
  kvp_cache_iface known;
  void* tail[4];
};
struct LongDescriptor {
  kvp_descriptor known;
  void* tail[2];
};
static const LongIface g_iface = [] {
  LongIface iface{plain::table(), {&iface, &iface, &iface, &iface}};
  iface.known.struct_size = sizeof(LongIface);
  return iface;
}();
static const LongDescriptor g_descriptor = {
    {sizeof(LongDescriptor), "test/other_sizes", KVP_IFACE_CACHE, &g_iface, "a test plugin", plain::kSchema},
    {&plain::g_host, &plain::g_host}};
static const kvp_plugin g_plugin = {offsetof(kvp_plugin, quiesce),
                                    KVP_ABI_MAJOR,
                                    KVP_ABI_MINOR + 7,
                                    KVP_ABI_MINOR,
                                    0,
                                    "test.other_sizes",
                                    "1.0",
                                    "tests",
                                    1,
                                    0,
                                    [](uint32_t i) { return i == 0 ? &g_descriptor.known : nullptr; },
                                    reinterpret_cast<void (*)()>(16)};

extern "C" int32_t kvp_plugin_entry_v0(const kvp_host* host, const kvp_plugin** out, kvp_error*) {
  plain::g_host = host;
  *out = &g_plugin;
  return KVP_OK;
}
