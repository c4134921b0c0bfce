/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Error text: a buffer that the caller owns and the callee fills.
 *
 * The last argument of every call that can fail; it may be NULL, and so may its buf. The status that the call returns
 * counts; the text explains it: what thing, which value, what was expected.
 */
#ifndef KVPLUG_ERROR_H
#define KVPLUG_ERROR_H

#include <stddef.h>
#include <stdint.h>

typedef struct kvp_error {
  size_t struct_size;  /* set by the caller */
  int32_t code;        /* out: the status that the call returns */
  int32_t native_code; /* out: an error number of the layer below (errno, a driver's), 0 = none */
  char* buf;           /* the caller's; gets what fits in UTF-8, cut at a character, always NUL-terminated if cap > 0 */
  size_t cap;          /* bytes at buf, the NUL included */
  size_t len;          /* out: length of the whole text without the NUL, as snprintf would return; may exceed cap */
} kvp_error;

#endif /* KVPLUG_ERROR_H */
