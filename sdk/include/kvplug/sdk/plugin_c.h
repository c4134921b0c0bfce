/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Helpers for plugins written in C: fill in an error, find an option, read and write structs.
 *
 * Header only, C99, and the standard library's stdio and string. Nothing here takes memory.
 */
#ifndef KVPLUG_SDK_PLUGIN_C_H
#define KVPLUG_SDK_PLUGIN_C_H

#include <kvplug/error.h>
#include <kvplug/options.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Length of text[0..len) without the character at its end that is cut in the middle, if there is one.
 * Thread: any. Since 0.1. */
static inline size_t kvp_utf8_whole(const char* text, size_t len) {
  size_t lead = len;
  size_t need;
  while (lead > 0 && len - lead < 3 && ((unsigned char)text[lead - 1] & 0xC0u) == 0x80u) lead--;
  if (lead == 0) return len;
  lead--;
  need = (unsigned char)text[lead] >= 0xF0u   ? 4
         : (unsigned char)text[lead] >= 0xE0u ? 3
         : (unsigned char)text[lead] >= 0xC0u ? 2
                                              : 1;
  return len - lead < need ? lead : len;
}

/* Writes a formatted text into `err` (may be NULL), cut at a character if it does not fit, and returns `status`, so
 * that a failing call ends with  return kvp_fail(err, KVP_UNSUPPORTED, "…", …);  A text is at most 1023 bytes. Thread:
 * any. Since 0.1. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
static inline int32_t
kvp_fail(kvp_error* err, int32_t status, const char* format, ...) {
  char text[1024];
  va_list list;
  int written;
  size_t len, keep;
  if (err == NULL) return status;
  va_start(list, format);
  written = vsnprintf(text, sizeof(text), format, list);
  va_end(list);
  len = written < 0 ? 0 : (size_t)written;
  err->code = status;
  err->native_code = 0;
  err->len = len;
  if (err->buf != NULL && err->cap > 0) {
    keep = len < sizeof(text) ? len : sizeof(text) - 1;
    if (keep > err->cap - 1) keep = err->cap - 1;
    if (keep < len) keep = kvp_utf8_whole(text, keep);
    memcpy(err->buf, text, keep);
    err->buf[keep] = '\0';
  }
  return status;
}

/* The option of that key, or NULL. Thread: any. Since 0.1. */
static inline const kvp_option* kvp_find_option(const kvp_option* options, size_t n, const char* key) {
  size_t i;
  for (i = 0; i < n; i++) {
    if (strcmp(options[i].key, key) == 0) return &options[i];
  }
  return NULL;
}

/* The first option whose key is not in the NULL-terminated list `known`, or NULL. Thread: any. Since 0.1. */
static inline const kvp_option* kvp_unknown_option(const kvp_option* options, size_t n, const char* const* known) {
  size_t i, j;
  for (i = 0; i < n; i++) {
    for (j = 0; known[j] != NULL && strcmp(options[i].key, known[j]) != 0; j++) {
    }
    if (known[j] == NULL) return &options[i];
  }
  return NULL;
}

/* Reads a growable struct of any version into one of today's: what the giver does not know is zero.
 *   kvp_cache_create c; kvp_read_struct(&c, sizeof(c), given);
 * Thread: any. Since 0.1. */
static inline void kvp_read_struct(void* today, size_t size, const void* given) {
  size_t given_size;
  memcpy(&given_size, given, sizeof(given_size));
  memset(today, 0, size);
  memcpy(today, given, given_size < size ? given_size : size);
  memcpy(today, &size, sizeof(size));
}

/* Writes today's struct into the caller's of any version: the fields that both know; the caller's struct_size stays.
 * Thread: any. Since 0.1. */
static inline void kvp_write_struct(void* given, const void* today, size_t size) {
  size_t given_size;
  memcpy(&given_size, given, sizeof(given_size));
  if (given_size < size) size = given_size;
  if (size > sizeof(size_t)) {
    memcpy((char*)given + sizeof(size_t), (const char*)today + sizeof(size_t), size - sizeof(size_t));
  }
}

#endif /* KVPLUG_SDK_PLUGIN_C_H */
