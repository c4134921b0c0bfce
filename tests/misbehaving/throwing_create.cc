// SPDX-License-Identifier: Apache-2.0
// Lets a C++ exception cross the border.
#include <stdexcept>

#include "plain_cache.h"

static const kvp_cache_iface g_iface = [] {
  kvp_cache_iface iface = plain::table();
  iface.create = [](const kvp_cache_create*, kvp_cache**, kvp_error*) -> int32_t {
    throw std::runtime_error("thrown in create");
  };
  return iface;
}();
PLAIN_ENTRY("throwing_create", g_iface)
