/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kvplug.h: the application API. C11 and C++17; usable from any language with a C FFI. UTF-8 everywhere.
 *
 * Two levels over one library. Cache level: the engine owns the model and hands layer shapes and a choice over; it
 * gets a cache stack and calls update, attend, crop, gather, clone on kvp_tensor. No LibTorch is loaded. Run level:
 * kvplug owns the model: config, plan, model, session, generation; libkvplug_model is opened by the first call that
 * needs weights.
 *
 * Rules for every call. Handles are opaque and reference counted; a child keeps its parent alive, any order of release
 * is fine, release(NULL) does nothing. Structs begin with struct_size, set by the caller; neither side reads or writes
 * beyond it. A status other than KVP_OK fills `err` (may be NULL): "where: message" on the first line, hints on the
 * following ones. On failure the object is as it was and out-parameters are untouched, unless the comment says that it
 * is poisoned; then every call but reset and release answers KVP_POISONED. Text in is pointer and length, KVPLUG_NTS
 * means NUL-terminated; text out is a kvplug_buf to release, or borrowed as the comment says. Nothing throws, aborts,
 * prints, reads the environment or changes directory, locale or signals.
 *
 * Threads. Host, model, and a config after its last change: any thread, at once. Cache, session, generation: one thread
 * at a time, no affinity; a second one gets KVPLUG_E_BUSY.
 *
 * Promise. Within a product major version calls are only added.
 */
#ifndef KVPLUG_KVPLUG_H
#define KVPLUG_KVPLUG_H

#include <stddef.h>
#include <stdint.h>

#include <kvplug/abi.h>

#if defined(_WIN32)
#define KVPLUG_API __declspec(dllimport)
#else
#define KVPLUG_API __attribute__((visibility("default")))
#endif
#ifdef __cplusplus
extern "C" {
#endif

#define KVPLUG_NTS ((size_t)-1)

typedef struct kvplug_host kvplug_host;             /* plugins, memory accounts, logging */
typedef struct kvplug_config kvplug_config;         /* one run file, held as data */
typedef struct kvplug_cache kvplug_cache;           /* a cache stack without a model */
typedef struct kvplug_model kvplug_model;           /* weights and tokenizer, immutable */
typedef struct kvplug_session kvplug_session;       /* token history and its cache */
typedef struct kvplug_generation kvplug_generation; /* one decode in flight */
typedef struct kvplug_buf kvplug_buf;               /* bytes owned by the library */

/* 0 and the KVP_ numbers of the plugin ABI mean the same here; numbers from 100 on exist only here. */
typedef int32_t kvplug_status;
#define KVPLUG_E_CONFIG 100        /* unknown key, wrong type, wrong value */
#define KVPLUG_E_NOT_FOUND 101     /* a file, folder or key does not exist */
#define KVPLUG_E_MODEL 102         /* checkpoint unreadable or not supported */
#define KVPLUG_E_PLAN_EXCEEDED 103 /* would not fit; nothing was allocated */
#define KVPLUG_E_PLUGIN 104        /* plugin failed to load, broke a rule or failed inside */
#define KVPLUG_E_ABI 105           /* versions do not meet */
#define KVPLUG_E_BUSY 106          /* handle in use on another thread */
#define KVPLUG_END 200             /* no more events, not a failure */
#define KVPLUG_TIMEOUT 201         /* nothing yet, not a failure */

KVPLUG_API const char* kvplug_version(void);                     /* product version, static text */
KVPLUG_API uint32_t kvplug_abi_version(void);                    /* plugin ABI: major << 16 | minor */
KVPLUG_API const char* kvplug_status_word(kvplug_status status); /* "config", "out_of_memory", ...; static text */

KVPLUG_API const void* kvplug_buf_data(const kvplug_buf* buf); /* a NUL follows the data */
KVPLUG_API size_t kvplug_buf_size(const kvplug_buf* buf);
KVPLUG_API void kvplug_buf_release(kvplug_buf* buf);

/* ================================================================ host */

/* Called from any thread. level: 0 error, 1 warning, 2 info, 3 debug. text is not NUL-terminated. */
typedef void (*kvplug_log_fn)(void* user, int32_t level, const char* area, const char* text, size_t text_len);

typedef struct kvplug_host_params {
  size_t struct_size;
  kvplug_log_fn log; /* NULL: silent */
  void* log_user;
  int32_t log_level; /* messages above it are not sent */
  uint32_t reserved; /* zero */
  int32_t (*mem_alloc)(void* mem_user, const kvp_mem* mem, void** out, kvp_error* err); /* NULL: our own */
  void (*mem_free)(void* mem_user, const kvp_mem* mem, void* block);
  void* mem_user;
  const kvp_host_parallel* parallel; /* the engine's thread pool; NULL: our own. Outlives the host */
} kvplug_host_params;

/* params may be NULL. The install folder's plugins (../plugins and ../lib/kvplug/plugins beside libkvplug) are searched
   after every path added. */
KVPLUG_API kvplug_status kvplug_host_create(const kvplug_host_params* params, kvplug_host** out, kvp_error* err);
KVPLUG_API kvplug_host* kvplug_host_retain(kvplug_host* host);
KVPLUG_API void kvplug_host_release(kvplug_host* host);
/* A folder with manifests; earlier ones win nothing: two manifests with one id are an error. */
KVPLUG_API kvplug_status kvplug_host_add_plugin_path(kvplug_host* host, const char* dir, size_t len, kvp_error* err);
/* A manifest, or a library with a manifest beside it. Never unloaded. */
KVPLUG_API kvplug_status kvplug_host_load_plugin(kvplug_host* host, const char* path, size_t len, kvp_error* err);
/* {"plugins": [...], "kinds": [...], "searched": [...], "machine": {...}, "libraries": {...}}; loads no plugin code.
   With KVPLUG_DESCRIBE_MODEL libkvplug_model is opened and the versions of LibTorch and oneDNN are in it. */
#define KVPLUG_DESCRIBE_MODEL 1u
KVPLUG_API kvplug_status kvplug_host_describe(kvplug_host* host, uint32_t flags, kvplug_buf** json, kvp_error* err);

/* ================================================================ configuration */

KVPLUG_API kvplug_status kvplug_config_create(kvplug_host* host, kvplug_config** out, kvp_error* err);
KVPLUG_API void kvplug_config_release(kvplug_config* config);
/* origin names the text in messages ("run.toml"); relative paths inside are taken from its folder. */
KVPLUG_API kvplug_status kvplug_config_merge_toml(kvplug_config* config, const char* text, size_t len,
                                                  const char* origin, kvp_error* err);
KVPLUG_API kvplug_status kvplug_config_merge_json(kvplug_config* config, const char* text, size_t len,
                                                  const char* origin, kvp_error* err);
/* The strongest layer: ("generation.top_p", "0.9"). Text that is no TOML value is a string where the key is one. */
KVPLUG_API kvplug_status kvplug_config_set(kvplug_config* config, const char* key, const char* toml_value,
                                           kvp_error* err);
/* One environment variable, between file and set: ("KVPLUG_GENERATION__TOP_P", "0.9"). Others are passed over. */
KVPLUG_API kvplug_status kvplug_config_set_environment(kvplug_config* config, const char* name, const char* value,
                                                       kvp_error* err);
/* {"value": ..., "origin": "run.toml:14:3"} */
KVPLUG_API kvplug_status kvplug_config_get(const kvplug_config* config, const char* key, kvplug_buf** json,
                                           kvp_error* err);
/* Every check that needs no model. {"notices": [{"code", "text"}], "digest": "sha256:..."} */
KVPLUG_API kvplug_status kvplug_config_check(const kvplug_config* config, kvplug_buf** json, kvp_error* err);
/* TOML of every key with its origin; run again it gives the same run. The checkpoint's defaults are in it when the
   model folder can be read. */
KVPLUG_API kvplug_status kvplug_config_effective(const kvplug_config* config, kvplug_buf** toml, kvp_error* err);

/* ================================================================ cache level */

typedef struct kvplug_cache_params {
  size_t struct_size;
  int64_t batch, tokens; /* hints, -1 unknown; static kinds need tokens */
  int32_t device_type, device_id;
  uint8_t dtype_code, dtype_bits; /* K/V dtype, DLPack numbers */
  uint16_t reserved0;
  uint32_t reserved1;
} kvplug_cache_params;

/* choice: generation.cache_implementation, generation.cache_config, cache.negotiation; NULL = dynamic. A kind that
   takes quantizers has them made from the same cache_config. Loads plugin code, makes no cache. total, json may be
   NULL. */
KVPLUG_API kvplug_status kvplug_cache_plan(kvplug_host* host, const kvp_layer* layers, size_t n, size_t stride,
                                           const kvplug_config* choice, const kvplug_cache_params* params,
                                           kvp_memory* total, kvplug_buf** json, kvp_error* err);
KVPLUG_API kvplug_status kvplug_cache_create(kvplug_host* host, const kvp_layer* layers, size_t n, size_t stride,
                                             const kvplug_config* choice, const kvplug_cache_params* params,
                                             kvplug_cache** out, kvp_error* err);
KVPLUG_API kvplug_cache* kvplug_cache_retain(kvplug_cache* cache);
KVPLUG_API void kvplug_cache_release(kvplug_cache* cache);
/* Kind, plugin and attention per layer, with the reasons. */
KVPLUG_API kvplug_status kvplug_cache_explain(kvplug_cache* cache, kvplug_buf** json, kvp_error* err);
/* Ask before update: what the next update of query_len tokens will present. Host integers. */
KVPLUG_API kvplug_status kvplug_cache_lengths(kvplug_cache* cache, int32_t layer, int64_t query_len, kvp_lengths* out,
                                              kvp_error* err);
/* k, v: [batch, kv_heads, tokens, dim]. Views [batch, kv_heads, kv_len, dim] are borrowed until the next changing call
   on the cache; both NULL = append only. */
KVPLUG_API kvplug_status kvplug_cache_update(kvplug_cache* cache, const kvp_call* call, const kvp_update_args* args,
                                             kvp_tensor* view_k, kvp_tensor* view_v, kvp_error* err);
/* Append (optional) and attend in one call. KVP_UNSUPPORTED: use update and your own attention; explain tells. */
KVPLUG_API kvplug_status kvplug_cache_attend(kvplug_cache* cache, const kvp_call* call, const kvp_attend_args* args,
                                             kvp_tensor* out, kvp_tensor* lse, kvp_error* err);
/* All layers are asked first: on a refusal nothing has changed. n_remove: 1 count or one a row. */
KVPLUG_API kvplug_status kvplug_cache_crop(kvplug_cache* cache, const kvp_call* call, const int64_t* n_remove, size_t n,
                                           kvp_error* err);
/* New row i = old row src_rows[i], -1 an empty row; n is the new batch. */
KVPLUG_API kvplug_status kvplug_cache_gather(kvplug_cache* cache, const kvp_call* call, const int64_t* src_rows,
                                             size_t n, kvp_error* err);
KVPLUG_API kvplug_status kvplug_cache_set_rollback(kvplug_cache* cache, int64_t max_tokens, kvp_error* err);
KVPLUG_API kvplug_status kvplug_cache_clone(kvplug_cache* cache, const kvp_call* call, kvplug_cache** out,
                                            kvp_error* err);
KVPLUG_API kvplug_status kvplug_cache_reserve(kvplug_cache* cache, const kvp_call* call, int64_t batch, int64_t tokens,
                                              kvp_error* err);
KVPLUG_API kvplug_status kvplug_cache_reset(kvplug_cache* cache, const kvp_call* call, kvp_error* err);
/* Around the layers of one step: hints for kinds that move data between tiers. May be left out. */
KVPLUG_API kvplug_status kvplug_cache_begin_step(kvplug_cache* cache, const kvp_call* call, kvp_error* err);
KVPLUG_API kvplug_status kvplug_cache_end_step(kvplug_cache* cache, const kvp_call* call, kvp_error* err);
/* layer -1 = all. */
KVPLUG_API kvplug_status kvplug_cache_memory(kvplug_cache* cache, int32_t layer, kvp_memory* out, kvp_error* err);
/* What really ran: {"fused_attend_calls": 0, ...} */
KVPLUG_API kvplug_status kvplug_cache_counters(kvplug_cache* cache, kvplug_buf** json, kvp_error* err);

/* ================================================================ run level: look before you load */

typedef struct kvplug_plan { /* reads config.json and safetensors headers only; bytes */
  size_t struct_size;
  uint64_t weight_bytes;
  uint64_t cache_bytes_device, cache_bytes_pinned, cache_bytes_host, cache_bytes_file;
  uint64_t scratch_bytes;
  uint64_t peak_device_bytes, peak_host_bytes;
  uint64_t limit_host_bytes; /* what the run may use, headroom taken off; 0 = no limit known */
  uint32_t fits, reserved;   /* fits: 1 yes, 0 no */
} kvplug_plan;

/* out, json may be NULL. */
KVPLUG_API kvplug_status kvplug_plan_run(kvplug_host* host, const kvplug_config* config, kvplug_plan* out,
                                         kvplug_buf** json, kvp_error* err);
/* Effective settings with origins, cache per layer, what is needed and offered, linear back ends where known. */
KVPLUG_API kvplug_status kvplug_explain(kvplug_host* host, const kvplug_config* config, kvplug_buf** json,
                                        kvp_error* err);

/* ---- model ---- */

typedef int32_t (*kvplug_progress_fn)(void* user, uint64_t done, uint64_t total); /* bytes; non-zero: stop */

KVPLUG_API kvplug_status kvplug_model_load(kvplug_host* host, const kvplug_config* config, kvplug_progress_fn progress,
                                           void* user, kvplug_model** out, kvp_error* err);
KVPLUG_API kvplug_model* kvplug_model_retain(kvplug_model* model);
KVPLUG_API void kvplug_model_release(kvplug_model* model);
KVPLUG_API kvplug_status kvplug_model_describe(kvplug_model* model, kvplug_buf** json, kvp_error* err);
/* Borrowed while the model lives; for kvplug_cache_create. */
KVPLUG_API kvplug_status kvplug_model_layers(kvplug_model* model, const kvp_layer** layers, size_t* n, size_t* stride,
                                             kvp_error* err);
/* Writes up to cap ids; *count is the number there are. ids may be NULL with cap 0. */
KVPLUG_API kvplug_status kvplug_model_encode(kvplug_model* model, const char* text, size_t len, uint32_t add_special,
                                             int32_t* ids, size_t cap, size_t* count, kvp_error* err);
KVPLUG_API kvplug_status kvplug_model_decode(kvplug_model* model, const int32_t* ids, size_t n, uint32_t skip_special,
                                             kvplug_buf** text, kvp_error* err);
/* Renders the chat template. messages_json: [{"role", "content"}]; options_json (may be NULL): the [tokenizer] keys
   add_generation_prompt, continue_final_message, chat_template_kwargs, chat_template. */
KVPLUG_API kvplug_status kvplug_model_chat(kvplug_model* model, const char* messages_json, size_t len,
                                           const char* options_json, kvplug_buf** prompt, kvp_error* err);

/* ---- session: a batch of sequences and their cache; a row exists from its first append on. After a run the cache
   holds all ids of a row but the last. ---- */

KVPLUG_API kvplug_status kvplug_session_create(kvplug_model* model, const kvplug_config* config, kvplug_session** out,
                                               kvp_error* err);
/* On a cache made first (HF's past_key_values). The session retains it; until release only the session may use it. A
   config whose user names a kind as well: KVPLUG_E_CONFIG. */
KVPLUG_API kvplug_status kvplug_session_create_with_cache(kvplug_model* model, const kvplug_config* config,
                                                          kvplug_cache* cache, kvplug_session** out, kvp_error* err);
KVPLUG_API void kvplug_session_release(kvplug_session* session);
KVPLUG_API kvplug_status kvplug_session_append_ids(kvplug_session* session, uint32_t row, const int32_t* ids, size_t n,
                                                   kvp_error* err);
KVPLUG_API kvplug_status kvplug_session_append_text(kvplug_session* session, uint32_t row, const char* text, size_t len,
                                                    kvp_error* err);
/* The row shall hold exactly these ids: keeps the longest common prefix, crops and appends the rest; *reused (may be
   NULL) is the number of tokens that stay cached. */
KVPLUG_API kvplug_status kvplug_session_set_ids(kvplug_session* session, uint32_t row, const int32_t* ids, size_t n,
                                                size_t* reused, kvp_error* err);
KVPLUG_API kvplug_status kvplug_session_length(kvplug_session* session, uint32_t row, uint64_t* tokens, kvp_error* err);
KVPLUG_API kvplug_status kvplug_session_crop(kvplug_session* session, const int64_t* n_remove, size_t n,
                                             kvp_error* err);
/* From now on crop of up to max_tokens works on windowed layers too, which else keep their window alone (HF's
   activate_past_recording). A kind that cannot take back refuses, at the latest when the cache is made. */
KVPLUG_API kvplug_status kvplug_session_set_rollback(kvplug_session* session, int64_t max_tokens, kvp_error* err);
KVPLUG_API kvplug_status kvplug_session_clone(kvplug_session* session, kvplug_session** out, kvp_error* err);
KVPLUG_API kvplug_status kvplug_session_reset(kvplug_session* session, kvp_error* err);
KVPLUG_API kvplug_status kvplug_session_explain(kvplug_session* session, kvplug_buf** json, kvp_error* err);
/* {"tokens": n, "bytes": {...}, "counters": {...}} */
KVPLUG_API kvplug_status kvplug_session_stats(kvplug_session* session, kvplug_buf** json, kvp_error* err);

/* ---- generation ---- */

#define KVPLUG_EVENT_TOKEN 1  /* one new id of a row */
#define KVPLUG_EVENT_TEXT 2   /* whole UTF-8 characters, stop strings held back */
#define KVPLUG_EVENT_FINISH 3 /* one per row */
#define KVPLUG_EVENT_NOTICE 4 /* limit hit, fallback taken */

#define KVPLUG_FINISH_NONE 0
#define KVPLUG_FINISH_EOS 1
#define KVPLUG_FINISH_LENGTH 2
#define KVPLUG_FINISH_STOP_STRING 3
#define KVPLUG_FINISH_TIME 4
#define KVPLUG_FINISH_CANCELLED 5
#define KVPLUG_FINISH_ERROR 6

typedef struct kvplug_event {
  size_t struct_size; /* the library sets it for a callback, the caller sets it for _next */
  int32_t type;
  uint32_t row, beam; /* row of the session; in kvplug_run the number of the prompt */
  int32_t token_id;
  float logprob; /* of the token under the processed scores */
  int32_t finish_reason;
  uint64_t position; /* of the token in its row, padding excluded */
  const char* text;  /* valid until the next call on this generation */
  size_t text_len;
} kvplug_event;

typedef int32_t (*kvplug_event_fn)(void* user, const kvplug_event* event); /* 0 go on, else cancel; must not throw */

/* overrides: [generation] keys above those of the session, may be NULL. A loop over _start, _next, _release. Until
   a generation has ended or is released, its session answers KVPLUG_E_BUSY to every call that would change it. */
KVPLUG_API kvplug_status kvplug_generate(kvplug_session* session, const kvplug_config* overrides, kvplug_event_fn fn,
                                         void* user, kvp_error* err);
KVPLUG_API kvplug_status kvplug_generation_start(kvplug_session* session, const kvplug_config* overrides,
                                                 kvplug_generation** out, kvp_error* err);
/* The next event, computing a step when none waits. timeout_ms bounds the wait for events that are computed elsewhere;
   a step itself is not interrupted. KVPLUG_END after the last one. A failing step ends the generation. */
KVPLUG_API kvplug_status kvplug_generation_next(kvplug_generation* generation, uint32_t timeout_ms, kvplug_event* out,
                                                kvp_error* err);
KVPLUG_API void kvplug_generation_cancel(kvplug_generation* generation); /* any thread, any time, twice */
/* Of the last step: [vocab] float32, raw logits; and what was sampled from: after processors and warpers, -inf where
   filtered. Borrowed until the next call on the generation. */
KVPLUG_API kvplug_status kvplug_generation_logits(kvplug_generation* generation, uint32_t row, kvp_tensor* view,
                                                  kvp_error* err);
KVPLUG_API kvplug_status kvplug_generation_scores(kvplug_generation* generation, uint32_t row, kvp_tensor* view,
                                                  kvp_error* err);
/* Takes `id` instead of the sampled one as the newest token of the row (teacher forcing); legal after its TOKEN event.
 */
KVPLUG_API kvplug_status kvplug_generation_force(kvplug_generation* generation, uint32_t row, int32_t id,
                                                 kvp_error* err);
/* The rows' results as the `results` of the run document. */
KVPLUG_API kvplug_status kvplug_generation_result(kvplug_generation* generation, kvplug_buf** json, kvp_error* err);
KVPLUG_API void kvplug_generation_release(kvplug_generation* generation);

/* ---- a whole run file ---- */

typedef struct kvplug_run_params {
  size_t struct_size;
  kvplug_progress_fn progress; /* loading weights; may be NULL */
  kvplug_event_fn event;       /* tokens, text, ends of prompts in the order they are computed; may be NULL */
  void* user;
} kvplug_run_params;

/* Loads the model, runs every prompt of the config and gives the run document (docs/run-file.md, Output). After a
   cancel the document holds what there is. output.logits_path is written here, output.path is the caller's. */
KVPLUG_API kvplug_status kvplug_run(kvplug_host* host, const kvplug_config* config, const kvplug_run_params* params,
                                    kvplug_buf** json, kvp_error* err);

/* ---- measuring ---- */

/* what: the part that is under way, "" before the first; done of total steps. Non-zero: stop. */
typedef int32_t (*kvplug_measure_fn)(void* user, const char* what, uint64_t done, uint64_t total);

typedef struct kvplug_measure_params {
  size_t struct_size;
  kvplug_progress_fn progress; /* loading weights; may be NULL */
  kvplug_measure_fn measure;   /* may be NULL */
  void* user;
} kvplug_measure_params;

/* Speed and memory of the caches of [bench], and how fast the machine reads memory. A cache that
   fails has "error" in its rows; the others go on. */
KVPLUG_API kvplug_status kvplug_bench(kvplug_host* host, const kvplug_config* config,
                                      const kvplug_measure_params* params, kvplug_buf** json, kvp_error* err);
/* The caches of [diff] against its baseline, on the same text. Limits that were missed stand in "missed" and are no
   failure of the call. */
KVPLUG_API kvplug_status kvplug_diff(kvplug_host* host, const kvplug_config* config,
                                     const kvplug_measure_params* params, kvplug_buf** json, kvp_error* err);

#ifdef __cplusplus
}
#endif
#endif /* KVPLUG_KVPLUG_H */
