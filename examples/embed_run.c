/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A whole program of the run level: the library owns the model, the application gives text and gets text as it comes.
 * Nothing but <kvplug/kvplug.h> is used.
 *
 *   embed_run MODEL_FOLDER [TEXT]
 */
#include <kvplug/kvplug.h>
#include <stdio.h>

static int32_t on_event(void* user, const kvplug_event* event) {
  if (event->type == KVPLUG_EVENT_TEXT) fwrite(event->text, 1, event->text_len, (FILE*)user);
  return 0; /* go on */
}

int main(int argc, char** argv) {
  if (argc < 2) {
    fprintf(stderr, "usage: embed_run MODEL_FOLDER [TEXT]\n");
    return 2;
  }
  char text[1024] = "";
  kvp_error err = {.struct_size = sizeof err, .buf = text, .cap = sizeof text};
  kvplug_host* host = NULL;
  kvplug_config* config = NULL;
  kvplug_model* model = NULL;
  kvplug_session* session = NULL;

  kvplug_status st = kvplug_host_create(NULL, &host, &err);
  if (st == KVP_OK) st = kvplug_config_create(host, &config, &err);
  if (st == KVP_OK) st = kvplug_config_set(config, "model.path", argv[1], &err);
  if (st == KVP_OK) st = kvplug_config_set(config, "generation.cache_implementation", "dynamic", &err);
  if (st == KVP_OK) st = kvplug_config_set(config, "generation.max_new_tokens", "32", &err);
  if (st == KVP_OK) st = kvplug_model_load(host, config, NULL, NULL, &model, &err);
  if (st == KVP_OK) st = kvplug_session_create(model, config, &session, &err);
  if (st == KVP_OK) {
    const char* prompt = argc > 2 ? argv[2] : "My favourite condiment is";
    st = kvplug_session_append_text(session, 0, prompt, KVPLUG_NTS, &err);
  }
  if (st == KVP_OK) st = kvplug_generate(session, NULL, on_event, stdout, &err);
  if (st == KVP_OK) printf("\n");

  if (st != KVP_OK) fprintf(stderr, "%s: %s\n", kvplug_status_word(st), text);
  kvplug_session_release(session);
  kvplug_model_release(model);
  kvplug_config_release(config);
  kvplug_host_release(host);
  return st == KVP_OK ? 0 : 1;
}
