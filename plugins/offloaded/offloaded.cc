// SPDX-License-Identifier: Apache-2.0
// The cache kinds "offloaded" and "offloaded_static": "dynamic" and "static" whose K/V lie in host memory while the
// device does not need them, or, on the CPU, in files under `disk_path`. Without one, and without an accelerator, host
// memory is the slowest tier there is, and K/V stay in it.
#include "offloaded_cache.h"

namespace kvplug::offloaded {
namespace {

std::unique_ptr<Tier> open_files(const std::string& disk_path, size_t layers) {
  return std::make_unique<FileTier>(disk_path, layers);
}
constexpr Choice kGrowing{"offloaded", false, false, open_files};
constexpr Choice kFixed{"offloaded_static", true, true, open_files};

// The text of offloaded.options.json.
constexpr char kGrowingSchema[] = R"json({
  "type": "object",
  "properties": {
    "disk_path": {
      "type": "string",
      "default": "",
      "description": "folder for the files that hold K/V; empty: K/V stay in host memory"
    },
    "offload_only_non_sliding": {
      "type": "boolean",
      "default": false,
      "description": "true: sliding and chunked layers stay in memory"
    }
  },
  "additionalProperties": false
}
)json";
// The text of offloaded_static.options.json.
constexpr char kFixedSchema[] = R"json({
  "type": "object",
  "properties": {
    "disk_path": {
      "type": "string",
      "default": "",
      "description": "folder for the files that hold K/V; empty: K/V stay in host memory"
    },
    "offload_only_non_sliding": {
      "type": "boolean",
      "default": true,
      "description": "true: sliding and chunked layers stay in memory"
    }
  },
  "additionalProperties": false
}
)json";

}  // namespace
}  // namespace kvplug::offloaded

KVPLUG_PLUGIN("offloaded", "0.1.0", "kvplug",
              {{sizeof(kvp_descriptor), "offloaded", KVP_IFACE_CACHE,
                kvplug::sdk::CachePlugin<kvplug::offloaded::OffloadedCache<kvplug::offloaded::kGrowing>>::iface(),
                "dynamic, with K/V in a slower tier but for two layers", kvplug::offloaded::kGrowingSchema},
               {sizeof(kvp_descriptor), "offloaded_static", KVP_IFACE_CACHE,
                kvplug::sdk::CachePlugin<kvplug::offloaded::OffloadedCache<kvplug::offloaded::kFixed>>::iface(),
                "static, with K/V in a slower tier but for two layers", kvplug::offloaded::kFixedSchema}})
