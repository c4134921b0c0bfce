/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Options: the resolved values of the keys that a descriptor's options schema declares.
 *
 * The host checks values against the schema and fills in defaults, so that a plugin finds every key that has a default.
 * A key that the plugin does not know is INVALID_ARGUMENT with the key in the message.
 */
#ifndef KVPLUG_OPTIONS_H
#define KVPLUG_OPTIONS_H

#include <stdint.h>

#define KVP_OPTION_BOOLEAN 1 /* integer: 0 or 1 */
#define KVP_OPTION_INTEGER 2 /* integer */
#define KVP_OPTION_NUMBER 3  /* number */
#define KVP_OPTION_TEXT 4    /* text: UTF-8, NUL-terminated */

/* Keys and texts are valid during the call only. Frozen. */
typedef struct kvp_option {
  const char* key;
  const char* text;
  int64_t integer;
  double number;
  int32_t type; /* KVP_OPTION_… : which of the three above holds the value */
  uint32_t reserved;
} kvp_option;

#endif /* KVPLUG_OPTIONS_H */
