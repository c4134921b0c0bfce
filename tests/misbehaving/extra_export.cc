// SPDX-License-Identifier: Apache-2.0
// Exports a second function.
#include "plain_cache.h"

static const kvp_cache_iface g_iface = plain::table();
PLAIN_ENTRY("extra_export", g_iface)

extern "C" KVP_EXPORT int kvp_helper() { return 1; }
