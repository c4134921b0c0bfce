// SPDX-License-Identifier: Apache-2.0
// Answers OK to create and makes nothing.
#include "plain_cache.h"

static const kvp_cache_iface g_iface = [] {
  kvp_cache_iface iface = plain::table();
  iface.create = [](const kvp_cache_create*, kvp_cache**, kvp_error*) -> int32_t { return KVP_OK; };
  return iface;
}();
PLAIN_ENTRY("empty_create", g_iface)
