/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Elements of the three types that keys and values come in: float32, float16, bfloat16. C99 knows the first only.
 */
#ifndef EXAMPLE_ELEMENT_H
#define EXAMPLE_ELEMENT_H

#include <kvplug/tensor.h>

/* True for the three types. */
int element_known(kvp_dtype dtype);
kvp_dtype element_dtype(const kvp_tensor* t);
int element_same(kvp_dtype a, kvp_dtype b);

/* Element i of a line of that type, as it is. */
float element_get(kvp_dtype dtype, const void* line, int64_t i);
/* Rounds x to the type, to nearest even; NaN stays NaN. */
void element_put(kvp_dtype dtype, void* line, int64_t i, float x);

/* Half a unit in the last place of a number just above 1: rounding to the type moves x by at most |x| times this. */
double element_rounding(kvp_dtype dtype);
/* The smallest number of the type that has all its digits. */
float element_smallest(kvp_dtype dtype);

#endif
