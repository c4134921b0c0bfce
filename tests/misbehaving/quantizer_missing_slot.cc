// SPDX-License-Identifier: Apache-2.0
// A quantizer that lacks a required function.
#include "plain_quantizer.h"

static const kvp_quantizer_iface g_iface = [] {
  kvp_quantizer_iface iface = plain::quantizer_table();
  iface.dequantize = nullptr;
  return iface;
}();
PLAIN_QUANTIZER_ENTRY("quantizer_missing_slot", g_iface)
