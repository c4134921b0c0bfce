/* SPDX-License-Identifier: Apache-2.0 */
/* C door to the Rust library `kvplug_text`: Hugging Face tokenizers (tokenizer.json) and chat templates (Jinja).
 *
 * Text is UTF-8 with an explicit length, never NUL-terminated. Functions returning int32_t give 0 on success; otherwise
 * *error is set (when error is not NULL) and the other out-parameters are untouched. Bytes and ids handed out belong to
 * the caller and go back through the matching _free. Handles are immutable after creation: any number of threads may
 * use one at the same time. Nothing unwinds, prints or aborts here: a Rust panic becomes an error.
 */
#ifndef KVPLUG_TEXT_H
#define KVPLUG_TEXT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kvtext_tokenizer kvtext_tokenizer;
typedef struct kvtext_template kvtext_template;

/* Borrowed text; data may be NULL when size is 0. */
typedef struct kvtext_view {
  const char* data;
  size_t size;
} kvtext_view;

/* Owned text: kvtext_bytes_free. */
typedef struct kvtext_bytes {
  char* data;
  size_t size;
} kvtext_bytes;

/* Owned token ids: kvtext_ids_free. */
typedef struct kvtext_ids {
  uint32_t* data;
  size_t size;
} kvtext_ids;

/* Free and reset to {NULL, 0}; a reset or zeroed value may be freed again. */
void kvtext_bytes_free(kvtext_bytes* bytes);
void kvtext_ids_free(kvtext_ids* ids);

/* json: the content of tokenizer.json. Truncation and padding set there are switched off, as Transformers does.
 * settings: a JSON object, or empty:
 *   "added_tokens": [{"content", "special", "lstrip", "rstrip", "single_word", "normalized"}] to add unless already
 * added; "template": {"bos": token or null, "eos": token or null} replaces the post-processor by "bos text eos". */
int32_t kvtext_tokenizer_load(kvtext_view json, kvtext_view settings, kvtext_tokenizer** out, kvtext_bytes* error);
void kvtext_tokenizer_free(kvtext_tokenizer* tokenizer);

/* Number of tokens, added ones included. */
size_t kvtext_tokenizer_vocab_size(const kvtext_tokenizer* tokenizer);

/* add_special: run the post-processor that puts BOS, EOS and the like. */
int32_t kvtext_tokenizer_encode(const kvtext_tokenizer* tokenizer, kvtext_view text, int32_t add_special,
                                kvtext_ids* out, kvtext_bytes* error);

/* Unknown ids decode to nothing; so do special tokens when skip_special is not 0. */
int32_t kvtext_tokenizer_decode(const kvtext_tokenizer* tokenizer, const uint32_t* ids, size_t n, int32_t skip_special,
                                kvtext_bytes* out, kvtext_bytes* error);

/* The id of a token given by its exact content, -1 if there is none. */
int64_t kvtext_tokenizer_token_to_id(const kvtext_tokenizer* tokenizer, kvtext_view token);

/* The content of a token as the vocabulary spells it; an error for an unknown id. */
int32_t kvtext_tokenizer_id_to_token(const kvtext_tokenizer* tokenizer, uint32_t id, kvtext_bytes* out,
                                     kvtext_bytes* error);

/* What a streaming decoder must know of an id: a sum of these; 0 = unknown id. */
#define KVTEXT_TOKEN_KNOWN 1u
#define KVTEXT_TOKEN_SPECIAL 2u /* left out of decoded text under skip_special */
#define KVTEXT_TOKEN_BYTE 4u    /* a byte-fallback token such as <0xE2>: its text depends on the byte tokens after it */
uint32_t kvtext_tokenizer_token_flags(const kvtext_tokenizer* tokenizer, uint32_t id);

/* Compiles a chat template; syntax errors name the line. */
int32_t kvtext_template_compile(kvtext_view source, kvtext_template** out, kvtext_bytes* error);
void kvtext_template_free(kvtext_template* chat_template);

#define KVTEXT_ADD_GENERATION_PROMPT 1u
#define KVTEXT_CONTINUE_FINAL_MESSAGE 2u
/* messages: JSON array of objects. special_tokens, kwargs: JSON objects (or empty) of further template variables;
 * kwargs win over special_tokens. flags: a sum of the above. */
int32_t kvtext_template_render(const kvtext_template* chat_template, kvtext_view messages, kvtext_view special_tokens,
                               kvtext_view kwargs, uint32_t flags, kvtext_bytes* out, kvtext_bytes* error);

#ifdef __cplusplus
}
#endif
#endif
