// SPDX-License-Identifier: Apache-2.0
// Lacks a required function.
#include "plain_cache.h"

static const kvp_cache_iface g_iface = [] {
  kvp_cache_iface iface = plain::table();
  iface.update = nullptr;
  return iface;
}();
PLAIN_ENTRY("missing_slot", g_iface)
