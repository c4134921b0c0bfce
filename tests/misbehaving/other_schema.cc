// SPDX-License-Identifier: Apache-2.0
// Its descriptor's options schema is not that of its manifest.
#include "plain_cache.h"

static const kvp_cache_iface g_iface = plain::table();
static const kvp_descriptor g_descriptor = {
    sizeof(kvp_descriptor), "test/other_schema",
    KVP_IFACE_CACHE,        &g_iface,
    "a test plugin",        R"({"type": "object", "properties": {"depth": {"type": "integer"}}})"};
static const kvp_plugin g_plugin = {sizeof(kvp_plugin),
                                    KVP_ABI_MAJOR,
                                    KVP_ABI_MINOR,
                                    0,
                                    0,
                                    "test.other_schema",
                                    "1.0",
                                    "tests",
                                    1,
                                    0,
                                    [](uint32_t) { return &g_descriptor; },
                                    nullptr};

extern "C" int32_t kvp_plugin_entry_v0(const kvp_host* host, const kvp_plugin** out, kvp_error*) {
  plain::g_host = host;
  *out = &g_plugin;
  return KVP_OK;
}
