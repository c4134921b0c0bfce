/* SPDX-License-Identifier: Apache-2.0 */
/* Built for an ABI major that this host does not speak: the entry has another name. */
#include <stdint.h>

__attribute__((visibility("default"))) int32_t kvp_plugin_entry_v7(const void* host, const void** out, void* err) {
  (void)host;
  (void)out;
  (void)err;
  return 0;
}
