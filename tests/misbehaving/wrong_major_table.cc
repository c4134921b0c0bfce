// SPDX-License-Identifier: Apache-2.0
// Says another ABI major in its table than in the entry's name.
#include <kvplug/abi.h>

static const kvp_plugin g_plugin = {sizeof(kvp_plugin),
                                    9,
                                    4,
                                    0,
                                    0,
                                    "test.wrong_major_table",
                                    "1.0",
                                    "tests",
                                    1,
                                    0,
                                    [](uint32_t) -> const kvp_descriptor* { return nullptr; },
                                    nullptr};

extern "C" int32_t kvp_plugin_entry_v0(const kvp_host*, const kvp_plugin** out, kvp_error*) {
  *out = &g_plugin;
  return KVP_OK;
}
