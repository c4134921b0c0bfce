// SPDX-License-Identifier: Apache-2.0
// Cannot make an instance, and says why.
#include "plain_cache.h"

static const kvp_cache_iface g_iface = [] {
  kvp_cache_iface iface = plain::table();
  iface.create = [](const kvp_cache_create*, kvp_cache**, kvp_error* err) -> int32_t {
    return plain::say(err, KVP_IO, "the folder /nowhere cannot be made");
  };
  return iface;
}();
PLAIN_ENTRY("failing_create", g_iface)
