// SPDX-License-Identifier: Apache-2.0
// Cannot make a quantizer for values, and says why.
#include "plain_quantizer.h"

static const kvp_quantizer_iface g_iface = [] {
  kvp_quantizer_iface iface = plain::quantizer_table();
  iface.create = [](const kvp_qcreate* create, kvp_quantizer** self, kvp_error* err) -> int32_t {
    if (create->role == KVP_ROLE_VALUE) return plain::say(err, KVP_IO, "the codebook is gone");
    return plain::create_quantizer(create, self, err);
  };
  return iface;
}();
PLAIN_QUANTIZER_ENTRY("quantizer_failing", g_iface)
