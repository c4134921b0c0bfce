// SPDX-License-Identifier: Apache-2.0
// The cache kind "static": a fixed capacity, create's `tokens`, in memory that is taken once and never moves: with the
// first reserve or update, for its batch. Attention reads the filled part only, so the bits are those of "dynamic".
// Sliding and chunked layers hold their window, or the capacity if that is smaller. A larger batch later takes more
// memory beside what there is; a smaller one runs in it. Clones copy.
#include <kvplug/sdk/in_host_cache.h>

namespace kvplug::fixed {
namespace {

struct Form {
  static constexpr const char* kWord = "static";
  static constexpr bool kFixed = true;
  using Pages = sdk::SlabPages;
};

}  // namespace
}  // namespace kvplug::fixed

// The schema is the text of static.options.json: there are no options.
KVPLUG_PLUGIN("static", "0.1.0", "kvplug",
              {{sizeof(kvp_descriptor), "static", KVP_IFACE_CACHE,
                kvplug::sdk::CachePlugin<kvplug::sdk::InHostCache<kvplug::fixed::Form>>::iface(),
                "a fixed capacity, taken once: every decode step finds its memory ready", R"json({
  "type": "object",
  "properties": {},
  "additionalProperties": false
}
)json"}})
