// SPDX-License-Identifier: Apache-2.0
// The cache kind "dynamic": grows page by page with the text, in the type in which K and V arrive, on the CPU.
// Lossless; sliding and chunked layers stop growing at their window. Clones and beams share pages, copied when one
// writes.
#include <kvplug/sdk/in_host_cache.h>

namespace kvplug::dynamic {
namespace {

struct Form {
  static constexpr const char* kWord = "dynamic";
  static constexpr bool kFixed = false;
  using Pages = sdk::HeapPages;
};

}  // namespace
}  // namespace kvplug::dynamic

// The schema is the text of dynamic.options.json: there are no options.
KVPLUG_PLUGIN("dynamic", "0.2.0", "kvplug",
              {{sizeof(kvp_descriptor), "dynamic", KVP_IFACE_CACHE,
                kvplug::sdk::CachePlugin<kvplug::sdk::InHostCache<kvplug::dynamic::Form>>::iface(),
                "grows with the text and keeps all of it, exactly", R"json({
  "type": "object",
  "properties": {},
  "additionalProperties": false
}
)json"}})
