// SPDX-License-Identifier: Apache-2.0
// Says a struct_size of the quantizer that cannot be.
#include "plain_quantizer.h"

static const kvp_quantizer_iface g_iface = [] {
  kvp_quantizer_iface iface = plain::quantizer_table();
  iface.struct_size = 0x7ff0123456789abc;
  return iface;
}();
PLAIN_QUANTIZER_ENTRY("quantizer_lying_size", g_iface)
