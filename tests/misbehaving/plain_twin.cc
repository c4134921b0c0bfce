// SPDX-License-Identifier: Apache-2.0
// No rule broken; the same classes and inline variables as plain.cc under the same names, another instance count.
#include "plain_cache.h"

static const kvp_cache_iface g_iface = [] {
  plain::g_made = 1000;
  return plain::table();
}();
PLAIN_ENTRY("plain_twin", g_iface)
