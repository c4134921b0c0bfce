// SPDX-License-Identifier: Apache-2.0
// The library's one export. The schema is the text of dynamic.options.json: there are no options.
#include "dynamic_cache.h"

KVPLUG_PLUGIN("dynamic", "0.1.0", "kvplug",
              {{sizeof(kvp_descriptor), "dynamic", KVP_IFACE_CACHE,
                kvplug::sdk::CachePlugin<kvplug::dynamic::DynamicCache>::iface(),
                "grows with the text and keeps all of it, exactly", R"json({
  "type": "object",
  "properties": {},
  "additionalProperties": false
}
)json"}})
