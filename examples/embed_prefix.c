/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A prefix computed once and used many times: the session of a system text is cloned for each question, and only what
 * the question adds is computed. The text is matched by ids, so a question may well change how the prefix's last
 * characters are cut into tokens; the ids that no longer fit are computed again.
 *
 *   embed_prefix MODEL_FOLDER [CACHE_KIND]
 */
#include <kvplug/kvplug.h>
#include <stdio.h>
#include <string.h>

enum { MAX_IDS = 512, CAPACITY = 1024 };

static int32_t on_event(void* user, const kvplug_event* event) {
  if (event->type == KVPLUG_EVENT_TEXT) fwrite(event->text, 1, event->text_len, (FILE*)user);
  return 0; /* go on */
}

static int32_t ignore(void* user, const kvplug_event* event) {
  (void)user;
  (void)event;
  return 0;
}

/* Clones the prefix, gives the clone prefix and question, and generates. */
static kvplug_status answer(kvplug_model* model, kvplug_session* prefix, const char* text, kvp_error* err) {
  kvplug_session* session = NULL;
  int32_t ids[MAX_IDS];
  size_t n = 0, reused = 0;
  kvplug_status st = kvplug_session_clone(prefix, &session, err);
  if (st == KVP_OK) st = kvplug_model_encode(model, text, KVPLUG_NTS, 1, ids, MAX_IDS, &n, err);
  if (st == KVP_OK) st = kvplug_session_set_ids(session, 0, ids, n, &reused, err);
  if (st == KVP_OK) printf("%zu of %zu ids were cached: ", reused, n);
  if (st == KVP_OK) st = kvplug_generate(session, NULL, on_event, stdout, err);
  if (st == KVP_OK) printf("\n");
  kvplug_session_release(session);
  return st;
}

int main(int argc, char** argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: embed_prefix MODEL_FOLDER [CACHE_KIND]\n");
    return 2;
  }
  static const char* const prefix_text = "You are a helpful assistant. ";
  static const char* const questions[] = {"Help me to write a blogpost about travelling.",
                                          "What is the capital of France?"};
  char text[1024] = "", capacity[16];
  kvp_error err = {.struct_size = sizeof err, .buf = text, .cap = sizeof text};
  kvplug_host* host = NULL;
  kvplug_config *config = NULL, *one_token = NULL;
  kvplug_model* model = NULL;
  kvplug_session* prefix = NULL;
  const char* kind = argc > 2 ? argv[2] : "static";
  snprintf(capacity, sizeof capacity, "%d", CAPACITY);

  kvplug_status st = kvplug_host_create(NULL, &host, &err);
  if (st == KVP_OK) st = kvplug_config_create(host, &config, &err);
  if (st == KVP_OK) st = kvplug_config_set(config, "model.path", argv[1], &err);
  if (st == KVP_OK) st = kvplug_config_set(config, "generation.cache_implementation", kind, &err);
  if (st == KVP_OK && strcmp(kind, "static") == 0) {
    st = kvplug_config_set(config, "generation.max_cache_len", capacity, &err);
  }
  if (st == KVP_OK) st = kvplug_config_set(config, "generation.max_new_tokens", "20", &err);
  if (st == KVP_OK) st = kvplug_model_load(host, config, NULL, NULL, &model, &err);
  if (st == KVP_OK) st = kvplug_session_create(model, config, &prefix, &err);
  if (st == KVP_OK) st = kvplug_session_append_text(prefix, 0, prefix_text, KVPLUG_NTS, &err);

  /* One token is generated, so that the whole prefix is computed; the token itself is not wanted. */
  if (st == KVP_OK) st = kvplug_config_create(host, &one_token, &err);
  if (st == KVP_OK) st = kvplug_config_set(one_token, "generation.max_new_tokens", "1", &err);
  if (st == KVP_OK) st = kvplug_generate(prefix, one_token, ignore, NULL, &err);

  for (size_t i = 0; st == KVP_OK && i < sizeof questions / sizeof questions[0]; ++i) {
    char whole[256];
    snprintf(whole, sizeof whole, "%s%s", prefix_text, questions[i]);
    st = answer(model, prefix, whole, &err);
  }

  if (st != KVP_OK) fprintf(stderr, "%s: %s\n", kvplug_status_word(st), text);
  kvplug_session_release(prefix);
  kvplug_model_release(model);
  kvplug_config_release(one_token);
  kvplug_config_release(config);
  kvplug_host_release(host);
  return st == KVP_OK ? 0 : 1;
}
