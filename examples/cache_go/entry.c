/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The door of the example cache in Go: the one exported function, the tables it returns, and a thin wrapper for each
 * slot.
 *
 * What cgo exports has no `const` in its prototypes, so that it cannot fill the tables itself; and what is read or
 * written by struct_size is done here, so that Go sees structs of today only. An instance is a number (cgo.Handle) in
 * the clothes of a pointer: pointers into Go's memory may not be kept by C.
 */
#include <kvplug/sdk/plugin_c.h>

#include "_cgo_export.h"
#include "border.h"

static const kvp_host* host;

int32_t host_alloc(const kvp_mem* mem, void** out) { return host->mem_alloc(host->ctx, mem, out, NULL); }
void host_free(const kvp_mem* mem, void* data) { host->mem_free(host->ctx, mem, data); }

void layer_at(const kvp_cache_create* create, size_t i, kvp_layer* out) {
  kvp_read_struct(out, sizeof(*out), KVP_AT(kvp_layer, create->layers, create->layer_stride, i));
}

static int32_t probe(const kvp_cache_create* given, kvp_cache_info* out, kvp_error* err) {
  kvp_cache_create create;
  kvp_cache_info info = {0};
  int32_t status;
  kvp_read_struct(&create, sizeof(create), given);
  status = goProbe(&create, &info, err);
  if (status == KVP_OK) kvp_write_struct(out, &info, sizeof(info));
  return status;
}

static int32_t plan(const kvp_cache_create* given, int64_t batch, int64_t tokens, kvp_memory* out, kvp_error* err) {
  kvp_cache_create create;
  kvp_memory memory = {0};
  int32_t status;
  kvp_read_struct(&create, sizeof(create), given);
  status = goPlan(&create, batch, tokens, &memory, err);
  if (status == KVP_OK) kvp_write_struct(out, &memory, sizeof(memory));
  return status;
}

static int32_t create(const kvp_cache_create* given, kvp_cache** self, kvp_error* err) {
  kvp_cache_create create;
  uintptr_t made;
  int32_t status;
  kvp_read_struct(&create, sizeof(create), given);
  status = goCreate(&create, &made, err);
  if (status == KVP_OK) *self = (kvp_cache*)made;
  return status;
}

static void destroy(kvp_cache* self) {
  if (self != NULL) goDestroy((uintptr_t)self);
}

static int32_t lengths(kvp_cache* self, int32_t layer, int64_t query_len, kvp_lengths* out, kvp_error* err) {
  kvp_lengths answer;
  int32_t status;
  kvp_read_struct(&answer, sizeof(answer), out);
  status = goLengths((uintptr_t)self, layer, query_len, &answer, err);
  if (status == KVP_OK) kvp_write_struct(out, &answer, sizeof(answer));
  return status;
}

static int32_t update(kvp_cache* self, const kvp_call* call, const kvp_update_args* given, kvp_tensor* out_k,
                      kvp_tensor* out_v, kvp_error* err) {
  kvp_update_args args;
  kvp_read_struct(&args, sizeof(args), given);
  return goUpdate((uintptr_t)self, call->flags, &args, out_k, out_v, err);
}

static int32_t reset(kvp_cache* self, const kvp_call* call, kvp_error* err) {
  (void)call;
  return goReset((uintptr_t)self, err);
}

static int32_t gather(kvp_cache* self, const kvp_call* call, const int64_t* src_rows, int64_t n, kvp_error* err) {
  return goGather((uintptr_t)self, call->flags, (int64_t*)src_rows, n, err);
}

static int32_t crop(kvp_cache* self, const kvp_call* call, const int64_t* n_remove, int64_t n, kvp_error* err) {
  return goCrop((uintptr_t)self, call->flags, (int64_t*)n_remove, n, err);
}

static int32_t set_rollback(kvp_cache* self, const kvp_call* call, int64_t max_tokens, kvp_error* err) {
  (void)call;
  return goSetRollback((uintptr_t)self, max_tokens, err);
}

static int32_t clone(kvp_cache* self, const kvp_call* call, uint64_t owner, kvp_cache** out, kvp_error* err) {
  uintptr_t made;
  int32_t status;
  (void)call;
  status = goClone((uintptr_t)self, owner, &made, err);
  if (status == KVP_OK) *out = (kvp_cache*)made;
  return status;
}

static int32_t memory(kvp_cache* self, int32_t layer, kvp_memory* out, kvp_error* err) {
  kvp_memory memory = {0};
  const int32_t status = goMemory((uintptr_t)self, layer, &memory, err);
  if (status == KVP_OK) kvp_write_struct(out, &memory, sizeof(memory));
  return status;
}

static const void* get_extension(const char* id) {
  (void)id;
  return NULL;
}

/* The same text as exact_go.options.json. */
static const char options_schema[] =
    "{\n"
    "  \"type\": \"object\",\n"
    "  \"properties\": {\n"
    "    \"grow_tokens\": {\n"
    "      \"type\": \"integer\", \"default\": 64, \"minimum\": 1, \"maximum\": 65536,\n"
    "      \"description\": \"smallest capacity in tokens; storage doubles from there\"\n"
    "    },\n"
    "    \"panic_at\": {\n"
    "      \"type\": \"integer\", \"default\": -1, \"minimum\": -1,\n"
    "      \"description\": \"number of the update (from 0, over all layers) that panics, to show what then happens; "
    "-1: none\"\n"
    "    }\n"
    "  }\n"
    "}\n";

static const kvp_cache_iface cache_iface = {
    sizeof(kvp_cache_iface),
    probe,
    plan,
    create,
    destroy,
    lengths,
    update,
    reset,
    gather,
    crop,
    set_rollback,
    clone,
    NULL /* reserve */,
    memory,
    NULL /* counters */,
    get_extension,
};

static const kvp_descriptor descriptors[] = {{
    sizeof(kvp_descriptor),
    "example/exact_go",
    KVP_IFACE_CACHE,
    &cache_iface,
    "exact cache in Go: contiguous storage that doubles, attention by the host",
    options_schema,
}};

static const kvp_descriptor* descriptor(uint32_t i) { return i == 0 ? &descriptors[0] : NULL; }

static const kvp_plugin plugin = {
    sizeof(kvp_plugin),
    KVP_ABI_MAJOR,
    KVP_ABI_MINOR,
    1, /* min_host_minor */
    0,
    "example.cache-go",
    "0.1.0",
    "kvplug examples",
    1, /* n_descriptors */
    0,
    descriptor,
    NULL, /* quiesce */
};

KVP_EXPORT int32_t kvp_plugin_entry_v0(const kvp_host* given, const kvp_plugin** out, kvp_error* err) {
  if (given->abi_major != KVP_ABI_MAJOR || given->abi_minor < plugin.min_host_minor) {
    return kvp_fail(err, KVP_UNSUPPORTED, "example.cache-go speaks plugin ABI %d.%d, the host %u.%u", KVP_ABI_MAJOR,
                    KVP_ABI_MINOR, (unsigned)given->abi_major, (unsigned)given->abi_minor);
  }
  host = given;
  *out = &plugin;
  return KVP_OK;
}
