// SPDX-License-Identifier: Apache-2.0
// A good plugin that needs a library which is not there at run time.
#include "plain_cache.h"

extern "C" int absent_function();

static const kvp_cache_iface g_iface = [] {
  kvp_cache_iface iface = plain::table();
  if (absent_function() != 0) iface.crop = nullptr;
  return iface;
}();
PLAIN_ENTRY("missing_dependency", g_iface)
