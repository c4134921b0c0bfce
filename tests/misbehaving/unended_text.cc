// SPDX-License-Identifier: Apache-2.0
// Fills the error buffer to the brim with bytes that are no UTF-8, does not end it, and returns a status of its own.
#include "plain_cache.h"

static const kvp_cache_iface g_iface = [] {
  kvp_cache_iface iface = plain::table();
  iface.create = [](const kvp_cache_create*, kvp_cache**, kvp_error* err) -> int32_t {
    std::memset(err->buf, 0xff, err->cap);
    err->len = SIZE_MAX;
    return 27;
  };
  return iface;
}();
PLAIN_ENTRY("unended_text", g_iface)
