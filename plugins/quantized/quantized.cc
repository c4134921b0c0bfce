// SPDX-License-Identifier: Apache-2.0
// The cache kind "quantized": K and V packed by quantizers that the host gives, the newest tokens exact.
#include "either.h"

namespace kvplug::quantized {
namespace {

// The text of quantized.options.json.
constexpr char kSchema[] = R"json({
  "type": "object",
  "properties": {
    "backend": {
      "type": "string",
      "default": "quanto",
      "description": "the quantizer that packs K and V"
    },
    "residual_length": {
      "type": "integer",
      "default": 128,
      "minimum": 0,
      "description": "newest tokens of a row that stay exact"
    },
    "sink_tokens": {
      "type": "integer",
      "default": 0,
      "minimum": 0,
      "description": "first tokens of a row that stay exact"
    },
    "quantized_kv_start": {
      "type": "integer",
      "default": 0,
      "minimum": 0,
      "description": "nothing of a row is packed up to this many tokens"
    },
    "rotation": {
      "type": "string",
      "default": "none",
      "enum": ["none", "hadamard"],
      "description": "rotate K and V before they are packed"
    },
    "hf_compat": {
      "type": "string",
      "default": "fixed",
      "enum": ["fixed", "strict"],
      "description": "fixed: blocks, packed once; strict: the reference library's schedule"
    },
    "fused_attention": {
      "type": "string",
      "default": "auto",
      "enum": ["auto", "required", "off"],
      "description": "attend over packed tokens without unpacking them"
    }
  },
  "additionalProperties": false
}
)json";

}  // namespace
}  // namespace kvplug::quantized

KVPLUG_PLUGIN("quantized", "0.1.0", "kvplug",
              {{sizeof(kvp_descriptor), "quantized", KVP_IFACE_CACHE,
                kvplug::sdk::CachePlugin<kvplug::quantized::Either>::iface(), "packs K and V, newest tokens exact",
                kvplug::quantized::kSchema}})
