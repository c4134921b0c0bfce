// SPDX-License-Identifier: Apache-2.0
// No rule broken: what the others are measured by.
#include "plain_cache.h"

static const kvp_cache_iface g_iface = plain::table();
PLAIN_ENTRY("plain", g_iface)
