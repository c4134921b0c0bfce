// SPDX-License-Identifier: Apache-2.0
// Says a struct_size that cannot be.
#include "plain_cache.h"

static const kvp_cache_iface g_iface = [] {
  kvp_cache_iface iface = plain::table();
  iface.struct_size = 0x7ff0123456789abc;
  return iface;
}();
PLAIN_ENTRY("lying_size", g_iface)
