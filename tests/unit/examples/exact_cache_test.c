/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exact_cache_test LIBRARY KIND SCHEMA [panic]: one of the example caches, opened and put through its paces by a C
 * program that knows the ABI and nothing of the language behind it. With `panic`, what happens when its code panics.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

static uint32_t state = 12345;
static int64_t below(int64_t n) {
  state = state * 1664525u + 1013904223u;
  return (int64_t)((state >> 8) % (uint32_t)n);
}

static kvp_cache* made(const kvp_option* options, size_t n) {
  kvp_cache_create wish = a_wish();
  kvp_cache* c = NULL;
  wish.options = options;
  wish.n_options = n;
  CHECK(iface->create(&wish, &c, &last_error) == KVP_OK && c != NULL);
  return c;
}

static kvp_option integer_option(const char* key, int64_t value) {
  kvp_option o;
  memset(&o, 0, sizeof(o));
  o.key = key;
  o.type = KVP_OPTION_INTEGER;
  o.integer = value;
  return o;
}

static void begin(void) {
  CHECK(host.blocks == 0 && host_live() == 0);
  host.peak = 0;
  host.owner++;
}

/* Random operations against the oracle. */
static void random_operations(void) {
  const kvp_option grow = integer_option("grow_tokens", 4);
  oracle* o = (oracle*)calloc(1, sizeof(*o));
  kvp_cache* c;
  int step, layer;
  int64_t b;
  begin();
  CHECK(o != NULL);
  c = made(&grow, 1);
  for (step = 0; step < 600; step++) {
    const int64_t what = below(10);
    int empty = 1;
    for (layer = 0; layer < N_LAYERS; layer++) empty = empty && oracle_longest(o, layer) == 0;
    if (what < 6 || empty) {
      const int64_t batch = empty ? 1 + below(4) : o->batch;
      const int64_t tokens = below(8);
      int64_t pad[MAX_ROWS], count[MAX_ROWS];
      const int use_pad = below(2) == 0, use_count = below(3) == 0;
      if (empty && tokens > 0) {
        /* a new batch, or the same: the oracle starts anew either way */
        memset(o, 0, sizeof(*o));
      }
      if (oracle_longest(o, 0) + 8 > MAX_SLOTS) continue;
      for (b = 0; b < batch; b++) {
        const oracle_row* row = &o->row[0][b];
        count[b] = use_count ? below(tokens + 1) : tokens;
        pad[b] = use_pad && row->seen == row->pad ? below(count[b] + 1) : 0;
      }
      for (layer = 0; layer < N_LAYERS; layer++) {
        update_both(c, o, layer, batch, tokens, use_pad ? pad : NULL, use_count ? count : NULL, KVP_OK);
      }
    } else if (what == 6) {
      const int64_t n = below(6);
      CHECK(iface->crop(c, &check_call, &n, 1, &last_error) == KVP_OK);
      compare(c, o);
      CHECK(iface->crop(c, &plain_call, &n, 1, &last_error) == KVP_OK);
      crop_oracle(o, n);
    } else if (what == 7) {
      int64_t src[MAX_ROWS];
      const int64_t n = 1 + below(4);
      for (b = 0; b < n; b++) src[b] = below(8) == 0 ? -1 : below(o->batch);
      CHECK(iface->gather(c, &check_call, src, n, &last_error) == KVP_OK);
      compare(c, o);
      CHECK(iface->gather(c, &plain_call, src, n, &last_error) == KVP_OK);
      gather_oracle(o, src, n);
    } else if (what == 8) {
      kvp_cache* copy = NULL;
      const uint64_t blocks = (uint64_t)host.blocks;
      host.owner++;
      CHECK(iface->clone(c, &plain_call, host.owner, &copy, &last_error) == KVP_OK && copy != NULL);
      CHECK((uint64_t)host.blocks == 2 * blocks);
      iface->destroy(c);
      c = copy;
      host.peak = host_live();
    } else if (below(8) == 0) {
      const uint64_t held = host_live();
      CHECK(iface->reset(c, &plain_call, &last_error) == KVP_OK);
      CHECK(host_live() == held);
      for (layer = 0; layer < N_LAYERS; layer++) memset(o->row[layer], 0, sizeof(o->row[layer]));
    }
    compare(c, o);
  }
  iface->destroy(c);
  CHECK(host.blocks == 0);
  free(o);
}

/* A step that ends after the first layer is taken back without harm to the other. */
static void half_a_step(void) {
  oracle* o = (oracle*)calloc(1, sizeof(*o));
  kvp_cache* c;
  const int64_t one = 1, all = 1000;
  begin();
  CHECK(o != NULL);
  c = made(NULL, 0);
  update_both(c, o, 0, 2, 5, NULL, NULL, KVP_OK);
  update_both(c, o, 1, 2, 5, NULL, NULL, KVP_OK);
  update_both(c, o, 0, 2, 1, NULL, NULL, KVP_OK);
  CHECK(iface->crop(c, &plain_call, &one, 1, &last_error) == KVP_OK);
  crop_oracle(o, 1);
  CHECK(o->row[0][0].seen == 5 && o->row[1][0].seen == 5);
  compare(c, o);
  CHECK(iface->crop(c, &plain_call, &all, 1, &last_error) == KVP_OK);
  crop_oracle(o, all);
  compare(c, o);
  memset(o, 0, sizeof(*o));
  update_both(c, o, 0, 3, 2, NULL, NULL, KVP_OK); /* empty: another batch may come */
  iface->destroy(c);
  free(o);
}

/* plan against what the allocator saw, token by token, and the peak with a gather at the end. */
static void plan_is_exact(void) {
  oracle* o = (oracle*)calloc(1, sizeof(*o));
  kvp_cache_create wish;
  kvp_cache* c;
  int64_t n;
  const int64_t src[3] = {2, 0, 1};
  int p;
  begin();
  CHECK(o != NULL);
  wish = a_wish();
  c = made(NULL, 0);
  for (n = 1; n <= 150; n++) {
    kvp_memory m = {sizeof(kvp_memory), {{0}}, {{0}}, {0}, 0};
    update_both(c, o, 0, 3, 1, NULL, NULL, KVP_OK);
    update_both(c, o, 1, 3, 1, NULL, NULL, KVP_OK);
    CHECK(iface->plan(&wish, 3, n, &m, &last_error) == KVP_OK);
    for (p = 0; p < KVP_N_PURPOSES; p++) CHECK(m.reserved[KVP_TIER_HOST][p] == host.live[p]);
    CHECK(m.unquantized == (uint64_t)(3 * n * (2 * (3 + 5) + 1 * (8 + 4))) * (dtype.bits / 8u));
    if (n == 150) {
      CHECK(iface->gather(c, &plain_call, src, 3, &last_error) == KVP_OK);
      CHECK(m.peak[KVP_TIER_HOST] == host.peak);
    }
  }
  iface->destroy(c);
  free(o);
}

/* Each allocation of an operation fails once: OUT_OF_MEMORY, nothing has changed, nothing leaks. */
static void memory_refused(void) {
  oracle* o = (oracle*)calloc(1, sizeof(*o));
  const int64_t src[4] = {1, 1, 0, -1};
  kvp_cache *c, *copy = (kvp_cache*)&host;
  int64_t n;
  int32_t status;
  uint64_t owner;
  begin();
  CHECK(o != NULL);
  c = made(NULL, 0);
  for (n = 0; n < 2; n++) {
    host.fail_in = n;
    update_both(c, o, 0, 2, 3, NULL, NULL, KVP_OUT_OF_MEMORY);
    CHECK(host.blocks == 0);
  }
  update_both(c, o, 0, 2, 60, NULL, NULL, KVP_OK);
  update_both(c, o, 1, 2, 60, NULL, NULL, KVP_OK);
  host.fail_in = 0;
  update_both(c, o, 0, 2, 10, NULL, NULL, KVP_OUT_OF_MEMORY);
  compare(c, o);
  for (n = 0; n < 3; n++) {
    host.fail_in = n;
    CHECK(iface->gather(c, &plain_call, src, 4, &last_error) == KVP_OUT_OF_MEMORY);
    compare(c, o);
    host.fail_in = n;
    owner = host.owner++;
    status = iface->clone(c, &plain_call, host.owner, &copy, &last_error);
    CHECK(status == KVP_OUT_OF_MEMORY && copy == (kvp_cache*)&host);
    host.owner = owner;
  }
  {
    const kvp_memory nothing = {sizeof(kvp_memory), {{0}}, {{0}}, {0}, 0};
    kvp_memory m = nothing;
    CHECK(iface->memory(c, -1, &m, &last_error) == KVP_OK && m.reserved[KVP_TIER_HOST][KVP_PURPOSE_KV] == host.live[0]);
  }
  iface->destroy(c);
  free(o);
}

/* A wish with one change is refused, by probe and by create, with a reason and nothing written. */
#define REFUSED(wanted, change)                                     \
  do {                                                              \
    kvp_cache_create wish = a_wish();                               \
    kvp_layer changed[N_LAYERS];                                    \
    kvp_cache_info info, untouched;                                 \
    kvp_cache* c = NULL;                                            \
    memcpy(changed, layers, sizeof(changed));                       \
    wish.layers = changed;                                          \
    memset(&untouched, 0x33, sizeof(untouched));                    \
    untouched.struct_size = sizeof(untouched);                      \
    info = untouched;                                               \
    text[0] = '\0';                                                 \
    change;                                                         \
    CHECK(iface->probe(&wish, &info, &last_error) == (wanted));     \
    CHECK(memcmp(&info, &untouched, sizeof(info)) == 0);            \
    CHECK(strlen(text) > 10 && last_error.len >= strlen(text));     \
    CHECK(iface->create(&wish, &c, NULL) == (wanted) && c == NULL); \
  } while (0)

static void wishes_refused(void) {
  const kvp_option typo = integer_option("grow_token", 4);
  const kvp_qhandle quantizer = {sizeof(kvp_qhandle), NULL, NULL, "q"};
  kvp_cache_create plain;
  kvp_cache_info found = {sizeof(kvp_cache_info), 0, 0, 0, 0, 1};
  size_t cap;
  begin();
  plain = a_wish();
  CHECK(iface->probe(&plain, &found, &last_error) == KVP_OK);
  CHECK(found.flags == KVP_CACHE_PER_LAYER_VIEWS && found.max_rollback == -1 && found.token_block == 1);
  CHECK(found.tolerance == 0);
  REFUSED(KVP_INVALID_ARGUMENT, (wish.options = &typo, wish.n_options = 1));
  CHECK(strstr(text, "grow_token") != NULL);
  REFUSED(KVP_UNSUPPORTED, wish.device_type = KVP_DEVICE_CUDA);
  REFUSED(KVP_UNSUPPORTED, wish.dtype.code = KVP_DTYPE_INT);
  REFUSED(KVP_UNSUPPORTED, wish.dtype.bits = 64);
  REFUSED(KVP_UNSUPPORTED, wish.quantizer_key = &quantizer);
  REFUSED(KVP_UNSUPPORTED, (changed[1].kind = KVP_LAYER_SLIDING, changed[1].model_layer = 17));
  CHECK(strstr(text, "17") != NULL);
  REFUSED(KVP_UNSUPPORTED, changed[0].index_dim = 4);
  REFUSED(KVP_INVALID_ARGUMENT, changed[0].kv_heads = 0);
  /* error buffers of every size */
  plain.device_type = KVP_DEVICE_CUDA;
  for (cap = 0; cap < 100; cap++) {
    char small[101];
    kvp_error e = {sizeof(kvp_error), 0, 0, NULL, 0, 0};
    memset(small, '#', sizeof(small));
    e.buf = small;
    e.cap = cap;
    CHECK(iface->probe(&plain, &found, &e) == KVP_UNSUPPORTED && e.code == KVP_UNSUPPORTED && e.len > 10);
    CHECK(small[cap] == '#');
    if (cap > 0) CHECK(strlen(small) == (e.len < cap - 1 ? e.len : cap - 1));
  }
}

static void calls_refused(void) {
  oracle* o = (oracle*)calloc(1, sizeof(*o));
  const int64_t pad[2] = {0, 1}, big[2] = {3, 1}, negative = -1, two[2] = {1, 1}, rows[2] = {0, 2};
  kvp_lengths l = {sizeof(kvp_lengths), 7, 7, 7, 7, NULL, NULL, 0};
  kvp_cache* c;
  begin();
  CHECK(o != NULL);
  c = made(NULL, 0);
  update_both(c, o, 0, 2, 2, NULL, NULL, KVP_OK);
  update_both(c, o, 1, 2, 2, NULL, NULL, KVP_OK);
  update_both(c, o, 0, 3, 1, NULL, NULL, KVP_INVALID_ARGUMENT); /* another batch */
  update_both(c, o, 0, 2, 2, pad, NULL, KVP_INVALID_ARGUMENT);  /* padding behind tokens */
  update_both(c, o, 0, 2, 2, NULL, big, KVP_INVALID_ARGUMENT);  /* more than there are */
  CHECK(iface->crop(c, &plain_call, &negative, 1, &last_error) == KVP_INVALID_ARGUMENT);
  CHECK(iface->crop(c, &plain_call, two, 2, &last_error) == KVP_UNSUPPORTED);
  CHECK(iface->gather(c, &plain_call, rows, 2, &last_error) == KVP_INVALID_ARGUMENT);
  CHECK(iface->gather(c, &plain_call, rows, 0, &last_error) == KVP_INVALID_ARGUMENT);
  CHECK(iface->gather(c, &prepared_call, rows, 1, &last_error) == KVP_INVALID_STATE);
  CHECK(iface->lengths(c, 2, 1, &l, &last_error) == KVP_INVALID_ARGUMENT && l.seen == 7);
  CHECK(iface->set_rollback(c, &plain_call, 5, &last_error) == KVP_OK);
  CHECK(iface->get_extension("kvp.nothing/1") == NULL);
  compare(c, o);
  iface->destroy(c);
  iface->destroy(NULL);
  free(o);
}

static void panic(const char* kind) {
  const kvp_option at = integer_option("panic_at", 2);
  oracle* o = (oracle*)calloc(1, sizeof(*o));
  kvp_lengths l = {sizeof(kvp_lengths), 7, 7, 7, 7, NULL, NULL, 0};
  const int64_t one = 1;
  kvp_cache *c, *copy = NULL;
  begin();
  CHECK(o != NULL);
  c = made(&at, 1);
  update_both(c, o, 0, 1, 2, NULL, NULL, KVP_OK);
  update_both(c, o, 1, 1, 2, NULL, NULL, KVP_OK);
  update_both(c, o, 0, 1, 1, NULL, NULL, KVP_INTERNAL);
  CHECK(last_error.code == KVP_INTERNAL);
  CHECK(strstr(text, kind) != NULL && strstr(text, "panic_at") != NULL);
  CHECK(iface->crop(c, &plain_call, &one, 1, &last_error) == KVP_POISONED);
  CHECK(iface->lengths(c, 0, 1, &l, &last_error) == KVP_POISONED && l.seen == 7);
  CHECK(iface->clone(c, &plain_call, host.owner, &copy, &last_error) == KVP_POISONED && copy == NULL);
  CHECK(iface->reset(c, &plain_call, &last_error) == KVP_OK);
  memset(o, 0, sizeof(*o));
  update_both(c, o, 0, 2, 3, NULL, NULL, KVP_OK);
  iface->destroy(c);
  CHECK(host.blocks == 0);
  free(o);
}

static void entry(const char* library, const char* kind, const char* schema_file) {
  void* handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
  kvp_plugin_entry_fn enter;
  const kvp_plugin *plugin = NULL, *again = NULL;
  const kvp_descriptor* d;
  kvp_host stranger = host_table;
  static char schema[4096];
  size_t n;
  FILE* f;
  if (handle == NULL) fprintf(stderr, "%s\n", dlerror());
  CHECK(handle != NULL);
  *(void**)(&enter) = dlsym(handle, KVP_PLUGIN_ENTRY_NAME);
  CHECK(enter != NULL);
  stranger.abi_major = KVP_ABI_MAJOR + 1;
  CHECK(enter(&stranger, &plugin, &last_error) == KVP_UNSUPPORTED && plugin == NULL);
  CHECK(strstr(text, "0.1") != NULL && strstr(text, "1.1") != NULL);
  CHECK(enter(&host_table, &plugin, &last_error) == KVP_OK && enter(&host_table, &again, NULL) == KVP_OK);
  CHECK(plugin == again && plugin->struct_size == sizeof(kvp_plugin));
  CHECK(plugin->abi_major == KVP_ABI_MAJOR && plugin->abi_minor == KVP_ABI_MINOR && plugin->n_descriptors == 1);
  d = plugin->descriptor(0);
  CHECK(d == plugin->descriptor(0) && plugin->descriptor(1) == NULL);
  CHECK(strcmp(d->id, kind) == 0 && strcmp(d->iface_id, KVP_IFACE_CACHE) == 0);
  f = fopen(schema_file, "rb");
  CHECK(f != NULL);
  n = fread(schema, 1, sizeof(schema) - 1, f);
  fclose(f);
  CHECK(n > 0 && strcmp(schema, d->options_schema) == 0);
  iface = (const kvp_cache_iface*)d->iface;
  CHECK(iface->struct_size == sizeof(kvp_cache_iface));
}

int main(int argc, char** argv) {
  static const kvp_dtype dtypes[] = {{KVP_DTYPE_FLOAT, 32, 1}, {KVP_DTYPE_BFLOAT, 16, 1}, {KVP_DTYPE_FLOAT, 16, 1}};
  size_t i;
  if (argc < 4) {
    fprintf(stderr, "usage: exact_cache_test LIBRARY KIND SCHEMA [panic]\n");
    return 2;
  }
  entry(argv[1], argv[2], argv[3]);
  if (argc > 4) {
    panic(argv[2]);
    return 0;
  }
  for (i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
    dtype = dtypes[i];
    random_operations();
    half_a_step();
    plan_is_exact();
    memory_refused();
    wishes_refused();
    calls_refused();
  }
  return 0;
}
