// SPDX-License-Identifier: Apache-2.0
// Panics in create, catches it and says so, as the contract wants; the host must not use it again.
#include "plain_cache.h"

static const kvp_cache_iface g_iface = [] {
  kvp_cache_iface iface = plain::table();
  iface.create = [](const kvp_cache_create*, kvp_cache**, kvp_error* err) -> int32_t {
    return plain::say(err, KVP_INTERNAL, "panicked at 'index out of range'");
  };
  return iface;
}();
PLAIN_ENTRY("panicking_create", g_iface)
