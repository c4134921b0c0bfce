// SPDX-License-Identifier: Apache-2.0
// Answers OK to the quantizer's create without an instance.
#include "plain_quantizer.h"

static const kvp_quantizer_iface g_iface = [] {
  kvp_quantizer_iface iface = plain::quantizer_table();
  iface.create = [](const kvp_qcreate*, kvp_quantizer**, kvp_error*) -> int32_t { return KVP_OK; };
  return iface;
}();
PLAIN_QUANTIZER_ENTRY("quantizer_empty", g_iface)
