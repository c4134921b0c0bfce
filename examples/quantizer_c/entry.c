/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The door of the example quantizer in C: the one exported function and the tables it returns, all of them constant.
 */
#include <kvplug/plugin.h>
#include <kvplug/sdk/plugin_c.h>

#include "nf4.h"

/* The same text as nf4_c.options.json. */
static const char options_schema[] =
    "{\n"
    "  \"type\": \"object\",\n"
    "  \"properties\": {\n"
    "    \"group_size\": {\n"
    "      \"type\": \"integer\", \"default\": 64, \"minimum\": 16, \"maximum\": 256,\n"
    "      \"description\": \"channels of one token that share a scale; the last group of a head may be shorter\"\n"
    "    }\n"
    "  }\n"
    "}\n";

static const kvp_quantizer_iface quantizer_iface = {
    sizeof(kvp_quantizer_iface),
    nf4_spec_count,
    nf4_spec_range,
    nf4_create,
    nf4_destroy,
    nf4_describe,
    nf4_plan,
    nf4_quantize,
    nf4_dequantize,
    nf4_error_bound,
    NULL, /* get_extension: the cache unpacks what it attends to */
};

static const kvp_descriptor descriptors[] = {{
    sizeof(kvp_descriptor),
    "example/nf4_c",
    KVP_IFACE_QUANTIZER,
    &quantizer_iface,
    "16 levels of a normal distribution in 4 bits, a scale for each group of channels",
    options_schema,
}};

static const kvp_descriptor* descriptor(uint32_t i) {
  return i < sizeof(descriptors) / sizeof(descriptors[0]) ? &descriptors[i] : NULL;
}

static const kvp_plugin plugin = {
    sizeof(kvp_plugin),
    KVP_ABI_MAJOR,
    KVP_ABI_MINOR,
    1, /* min_host_minor */
    0,
    "example.quantizer-c",
    "0.1.0",
    "kvplug examples",
    sizeof(descriptors) / sizeof(descriptors[0]),
    0,
    descriptor,
    NULL, /* quiesce */
};

KVP_EXPORT int32_t kvp_plugin_entry_v0(const kvp_host* host, const kvp_plugin** out, kvp_error* err) {
  if (host->abi_major != KVP_ABI_MAJOR || host->abi_minor < plugin.min_host_minor) {
    return kvp_fail(err, KVP_UNSUPPORTED, "example.quantizer-c speaks plugin ABI %d.%d, the host %u.%u", KVP_ABI_MAJOR,
                    KVP_ABI_MINOR, (unsigned)host->abi_major, (unsigned)host->abi_minor);
  }
  *out = &plugin;
  return KVP_OK;
}
