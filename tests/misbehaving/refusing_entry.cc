// SPDX-License-Identifier: Apache-2.0
// Its entry refuses every host, in words.
#include "plain_cache.h"

extern "C" int32_t kvp_plugin_entry_v0(const kvp_host*, const kvp_plugin**, kvp_error* err) {
  return plain::say(err, KVP_UNSUPPORTED, "test.refusing_entry 1.0 wants a host of ABI 0.9");
}
