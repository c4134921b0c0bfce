// SPDX-License-Identifier: Apache-2.0
// Its entry answers OK and gives no plugin.
#include <kvplug/abi.h>

extern "C" int32_t kvp_plugin_entry_v0(const kvp_host*, const kvp_plugin**, kvp_error*) { return KVP_OK; }
