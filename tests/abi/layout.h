/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The layout of the ABI as a C99 compiler sees it: one row per struct (field NULL, offset 0) and one per field.
 */
#ifndef KVPLUG_TESTS_ABI_LAYOUT_H
#define KVPLUG_TESTS_ABI_LAYOUT_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct layout_row {
  const char* type;
  const char* field;
  size_t offset;
  size_t size;
} layout_row;

extern const layout_row layout_rows[];
extern const size_t layout_n_rows;

#ifdef __cplusplus
}
#endif

#endif
