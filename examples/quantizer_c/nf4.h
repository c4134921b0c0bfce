/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The quantizer's functions and its instance, which nobody changes after create: any number of threads may use it.
 */
#ifndef EXAMPLE_NF4_H
#define EXAMPLE_NF4_H

#include <kvplug/call.h>
#include <kvplug/quantizer.h>

enum { N_LEVELS = 16, N_PARTS = 3, DATA = 0, SCALE = 1, CODEBOOK = 2 };

struct kvp_quantizer {
  int64_t head_dim;
  int64_t group_size;
  kvp_dtype dtype; /* of what is quantized, and of the scales */
};

/* create.c */
extern const float nf4_levels[N_LEVELS];
uint32_t nf4_spec_count(void);
int32_t nf4_spec_range(uint32_t i, kvp_qspec* low, kvp_qspec* high, kvp_error* err);
int32_t nf4_create(const kvp_qcreate* create, kvp_quantizer** self, kvp_error* err);
void nf4_destroy(kvp_quantizer* self);
int32_t nf4_describe(kvp_quantizer* self, kvp_qspec* out, kvp_error* err);
int32_t nf4_plan(kvp_quantizer* self, int64_t batch, int64_t kv_heads, int64_t tokens, int64_t head_dim, kvp_qplan* out,
                 kvp_error* err);
int32_t nf4_error_bound(kvp_quantizer* self, double* out, kvp_error* err);

/* Bytes and scales of one token of one head. */
int64_t nf4_data_bytes(const kvp_quantizer* self);
int64_t nf4_groups(const kvp_quantizer* self);

/* nf4.c */
int32_t nf4_quantize(kvp_quantizer* self, const kvp_call* call, const kvp_tensor* in, uint32_t flags,
                     const kvp_qpart* parts, uint32_t n_parts, void* workspace, kvp_error* err);
int32_t nf4_dequantize(kvp_quantizer* self, const kvp_call* call, const kvp_qpart* parts, uint32_t n_parts,
                       kvp_tensor* out, kvp_error* err);

#endif
