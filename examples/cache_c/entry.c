/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The door of the example cache in C: the one exported function and the tables it returns.
 *
 * Everything is static and constant but the host's table, which is noted at the first call.
 */
#include <kvplug/plugin.h>
#include <kvplug/sdk/plugin_c.h>

#include "exact.h"

/* The same text as exact_c.options.json. */
static const char options_schema[] =
    "{\n"
    "  \"type\": \"object\",\n"
    "  \"properties\": {\n"
    "    \"grow_tokens\": {\n"
    "      \"type\": \"integer\", \"default\": 64, \"minimum\": 1, \"maximum\": 65536,\n"
    "      \"description\": \"smallest capacity in tokens; storage doubles from there\"\n"
    "    }\n"
    "  }\n"
    "}\n";

static const kvp_cache_iface cache_iface = {
    sizeof(kvp_cache_iface),
    exact_probe,
    exact_plan,
    exact_create,
    exact_destroy,
    exact_lengths,
    exact_update,
    exact_reset,
    exact_gather,
    exact_crop,
    exact_set_rollback,
    exact_clone,
    NULL, /* reserve */
    exact_memory,
    NULL, /* counters */
    exact_get_extension,
};

static const kvp_descriptor descriptors[] = {{
    sizeof(kvp_descriptor),
    "example/exact_c",
    KVP_IFACE_CACHE,
    &cache_iface,
    "exact cache in C: contiguous storage that doubles, attention by the host",
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
    "example.cache-c",
    "0.1.0",
    "kvplug examples",
    sizeof(descriptors) / sizeof(descriptors[0]),
    0,
    descriptor,
    NULL, /* quiesce */
};

KVP_EXPORT int32_t kvp_plugin_entry_v0(const kvp_host* host, const kvp_plugin** out, kvp_error* err) {
  if (host->abi_major != KVP_ABI_MAJOR || host->abi_minor < plugin.min_host_minor) {
    return kvp_fail(err, KVP_UNSUPPORTED, "example.cache-c speaks plugin ABI %d.%d, the host %u.%u", KVP_ABI_MAJOR,
                    KVP_ABI_MINOR, (unsigned)host->abi_major, (unsigned)host->abi_minor);
  }
  exact_host = host;
  *out = &plugin;
  return KVP_OK;
}
