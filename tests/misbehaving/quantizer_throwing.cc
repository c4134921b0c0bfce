// SPDX-License-Identifier: Apache-2.0
// Lets a C++ exception out of the quantizer's create.
#include "plain_quantizer.h"

static const kvp_quantizer_iface g_iface = [] {
  kvp_quantizer_iface iface = plain::quantizer_table();
  iface.create = [](const kvp_qcreate*, kvp_quantizer**, kvp_error*) -> int32_t { throw 1; };
  return iface;
}();
PLAIN_QUANTIZER_ENTRY("quantizer_throwing", g_iface)
