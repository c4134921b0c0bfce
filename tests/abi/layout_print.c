/* SPDX-License-Identifier: Apache-2.0 */
/* Prints today's layout in the form of golden_layout.txt, to append new fields to that file by hand. */
#include <stdio.h>

#include "layout.h"

int main(void) {
  size_t i;
  for (i = 0; i < layout_n_rows; i++) {
    const layout_row* r = &layout_rows[i];
    if (r->field == NULL) {
      printf("%s %lu\n", r->type, (unsigned long)r->size);
    } else {
      printf("  %s %lu %lu\n", r->field, (unsigned long)r->offset, (unsigned long)r->size);
    }
  }
  return 0;
}
