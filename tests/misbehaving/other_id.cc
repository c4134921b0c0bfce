// SPDX-License-Identifier: Apache-2.0
// Calls itself otherwise than its manifest does.
#include "plain_cache.h"

static const kvp_cache_iface g_iface = plain::table();
PLAIN_ENTRY("another_name", g_iface)
