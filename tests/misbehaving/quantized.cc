// SPDX-License-Identifier: Apache-2.0
// No rule broken: a cache that takes quantizers, and quantizers.
#include "plain_quantizer.h"

static const kvp_quantizer_iface g_iface = [] {
  kvp_quantizer_iface iface = plain::quantizer_table();
  return iface;
}();
PLAIN_QUANTIZER_ENTRY("quantized", g_iface)
