/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The door: the one function a plugin library exports, and what it returns.
 *
 * A plugin exports nothing else, links neither a tensor library nor an OpenMP of its own, and is never unloaded once
 * its code has run.
 */
#ifndef KVPLUG_PLUGIN_H
#define KVPLUG_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#include "kvplug/error.h"
#include "kvplug/host.h"
#include "kvplug/status.h"
#include "kvplug/version.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Put before the definition of the entry when the library is compiled with hidden visibility. */
#if defined(__GNUC__)
#define KVP_EXPORT __attribute__((visibility("default")))
#else
#define KVP_EXPORT
#endif

/* One thing that a plugin offers. Static memory of the plugin. */
typedef struct kvp_descriptor {
  size_t struct_size;
  const char* id;             /* what `cache_implementation` or `backend` names, as acme/kivi2 */
  const char* iface_id;       /* KVP_IFACE_CACHE or KVP_IFACE_QUANTIZER */
  const void* iface;          /* the table that iface_id names: kvp_cache_iface or kvp_quantizer_iface */
  const char* summary;        /* one line for people */
  const char* options_schema; /* JSON Schema of one flat object: option names, types, defaults, ranges, descriptions.
                                 The same text as the file that the manifest names. NULL = no options */
} kvp_descriptor;

/* The plugin itself. Static memory: the entry returns the same pointer each time. */
typedef struct kvp_plugin {
  size_t struct_size;
  uint32_t abi_major; /* KVP_ABI_MAJOR and _MINOR as compiled */
  uint32_t abi_minor;
  uint32_t min_host_minor; /* the lowest minor of a host that this plugin can live with */
  uint32_t reserved;
  const char* id; /* as in the manifest */
  const char* version;
  const char* vendor;
  uint32_t n_descriptors;
  uint32_t reserved1;

  /* Returns descriptor i of n_descriptors, always the same pointer; NULL for any other i.
   * Thread: any. Allocates: no. Synchronises: no. Owns: the plugin's, static. Since 0.1. */
  const kvp_descriptor* (*descriptor)(uint32_t i);

  /* Ends what the plugin does in the background, before the process ends; may be NULL. Instances are destroyed before.
   * Thread: any, once. Allocates: no. Synchronises: yes. Owns: nothing. Since 0.1. */
  void (*quiesce)(void);
} kvp_plugin;

/* Introduces host and plugin to each other. Cheap; starts no thread, touches no accelerator; may be called more than
 * once and returns the same static pointer. Either side may refuse the other (UNSUPPORTED) with a text that names both
 * versions.
 * Thread: any. Allocates: no. Synchronises: no. Owns: host is the host's and stays valid; *out is the plugin's, static.
 * Since 0.1. */
KVP_EXPORT int32_t kvp_plugin_entry_v0(const kvp_host* host, const kvp_plugin** out, kvp_error* err);

/* The type of the entry, for whoever looks it up by KVP_PLUGIN_ENTRY_NAME. */
typedef int32_t (*kvp_plugin_entry_fn)(const kvp_host* host, const kvp_plugin** out, kvp_error* err);

#ifdef __cplusplus
}
#endif

#endif /* KVPLUG_PLUGIN_H */
