/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What can be had, making and ending instances, and what they cost: everything but the arithmetic.
 */
#include <kvplug/sdk/plugin_c.h>
#include <kvplug/status.h>
#include <stdlib.h>
#include <string.h>

#include "element.h"
#include "nf4.h"

enum { LEAST_GROUP = 16, MOST_GROUP = 256, USUAL_GROUP = 64 };

/* Quantiles of a normal distribution, scaled to [-1, 1], with an exact zero: the data type NF4 of Dettmers, Pagnoni,
 * Holtzman and Zettlemoyer, "QLoRA: Efficient Finetuning of Quantized LLMs" (2023), appendix E. */
const float nf4_levels[N_LEVELS] = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

static const kvp_dtype dtypes[] = {{KVP_DTYPE_FLOAT, 32, 1}, {KVP_DTYPE_FLOAT, 16, 1}, {KVP_DTYPE_BFLOAT, 16, 1}};

static kvp_qspec spec_of(kvp_dtype dtype, int64_t group_size) {
  kvp_qspec s;
  memset(&s, 0, sizeof(s));
  s.struct_size = sizeof(s);
  s.format = KVP_FORMAT_CODEBOOK;
  s.n_levels = N_LEVELS;
  s.storage_bits = 4;
  s.group_dim = KVP_GROUP_HEAD_DIM;
  s.group_size = group_size;
  s.scale_dtype = dtype;
  s.out_dtype = dtype;
  return s;
}

uint32_t nf4_spec_count(void) { return sizeof(dtypes) / sizeof(dtypes[0]); }

int32_t nf4_spec_range(uint32_t i, kvp_qspec* low, kvp_qspec* high, kvp_error* err) {
  kvp_qspec ends[2];
  if (i >= nf4_spec_count()) {
    return kvp_fail(err, KVP_INVALID_ARGUMENT, "nf4_c: range %u of %u", (unsigned)i, (unsigned)nf4_spec_count());
  }
  ends[0] = spec_of(dtypes[i], LEAST_GROUP);
  ends[1] = spec_of(dtypes[i], MOST_GROUP);
  kvp_write_struct(low, &ends[0], sizeof(ends[0]));
  kvp_write_struct(high, &ends[1], sizeof(ends[1]));
  return KVP_OK;
}

/* The group size that is asked for, by the spec or else by the options. */
static int32_t read_group(const kvp_qcreate* create, int64_t* out, kvp_error* err) {
  static const char* const known[] = {"group_size", NULL};
  const kvp_option* unknown = kvp_unknown_option(create->options, create->n_options, known);
  const kvp_option* option = kvp_find_option(create->options, create->n_options, "group_size");
  int64_t group = USUAL_GROUP;
  if (unknown != NULL) return kvp_fail(err, KVP_INVALID_ARGUMENT, "nf4_c has no option `%s`", unknown->key);
  if (option != NULL) {
    if (option->type != KVP_OPTION_INTEGER) {
      return kvp_fail(err, KVP_INVALID_ARGUMENT, "nf4_c: group_size is a whole number");
    }
    group = option->integer;
  }
  if (create->spec != NULL) {
    kvp_qspec given, ours;
    kvp_read_struct(&given, sizeof(given), create->spec);
    group = given.group_size;
    ours = spec_of(create->dtype, group);
    if (memcmp(&given, &ours, sizeof(given)) != 0) {
      return kvp_fail(err, KVP_UNSUPPORTED,
                      "nf4_c: the spec asks for something else than a codebook of 16 levels in 4 bits, groups along "
                      "head_dim, scales and output of the type that is quantized (format %d, %u levels, %u bits)",
                      (int)given.format, (unsigned)given.n_levels, (unsigned)given.storage_bits);
    }
  }
  if (group < LEAST_GROUP || group > MOST_GROUP) {
    return kvp_fail(err, KVP_INVALID_ARGUMENT, "nf4_c: group_size is %lld; expected %d to %d", (long long)group,
                    LEAST_GROUP, MOST_GROUP);
  }
  *out = group;
  return KVP_OK;
}

int32_t nf4_create(const kvp_qcreate* given, kvp_quantizer** self, kvp_error* err) {
  kvp_qcreate create;
  kvp_quantizer* q;
  int64_t group;
  int32_t status;
  kvp_read_struct(&create, sizeof(create), given);
  if (create.role != KVP_ROLE_KEY && create.role != KVP_ROLE_VALUE) {
    return kvp_fail(err, KVP_INVALID_ARGUMENT, "nf4_c: role %d is neither keys (1) nor values (2)", (int)create.role);
  }
  if (create.head_dim < 1) {
    return kvp_fail(err, KVP_INVALID_ARGUMENT, "nf4_c: head_dim is %d; expected at least 1", (int)create.head_dim);
  }
  if (create.device_type != KVP_DEVICE_CPU) {
    return kvp_fail(err, KVP_UNSUPPORTED, "nf4_c works on the CPU; device type %d is something else",
                    (int)create.device_type);
  }
  if (!element_known(create.dtype)) {
    return kvp_fail(err, KVP_UNSUPPORTED, "nf4_c packs float32, float16 and bfloat16; not type code %d of %d bits",
                    create.dtype.code, create.dtype.bits);
  }
  status = read_group(&create, &group, err);
  if (status != KVP_OK) return status;
  q = (kvp_quantizer*)malloc(sizeof(*q));
  if (q == NULL) return kvp_fail(err, KVP_OUT_OF_MEMORY, "nf4_c: no memory for an instance");
  q->head_dim = create.head_dim;
  q->group_size = group;
  q->dtype = create.dtype;
  *self = q;
  return KVP_OK;
}

void nf4_destroy(kvp_quantizer* self) { free(self); }

int32_t nf4_describe(kvp_quantizer* self, kvp_qspec* out, kvp_error* err) {
  const kvp_qspec spec = spec_of(self->dtype, self->group_size);
  (void)err;
  kvp_write_struct(out, &spec, sizeof(spec));
  return KVP_OK;
}

int64_t nf4_data_bytes(const kvp_quantizer* self) { return (self->head_dim + 1) / 2; }
int64_t nf4_groups(const kvp_quantizer* self) { return (self->head_dim + self->group_size - 1) / self->group_size; }

static kvp_qpart part(int32_t role, uint32_t flags, kvp_dtype dtype, int64_t batch, int64_t heads, int64_t blocks,
                      int64_t n) {
  kvp_qpart p;
  memset(&p, 0, sizeof(p));
  p.role = role;
  p.flags = flags;
  p.t.device_type = KVP_DEVICE_CPU;
  p.t.ndim = 4;
  p.t.dtype_code = dtype.code;
  p.t.dtype_bits = dtype.bits;
  p.t.dtype_lanes = dtype.lanes;
  p.t.shape[0] = batch, p.t.shape[1] = heads, p.t.shape[2] = blocks, p.t.shape[3] = n;
  p.t.strides[0] = heads * blocks * n, p.t.strides[1] = blocks * n, p.t.strides[2] = n, p.t.strides[3] = 1;
  return p;
}

int32_t nf4_plan(kvp_quantizer* self, int64_t batch, int64_t kv_heads, int64_t tokens, int64_t head_dim, kvp_qplan* out,
                 kvp_error* err) {
  const kvp_dtype bytes = {KVP_DTYPE_UINT, 8, 1}, floats = {KVP_DTYPE_FLOAT, 32, 1};
  const double lines = (double)batch * (double)kv_heads * (double)tokens;
  kvp_qplan plan;
  if (head_dim != self->head_dim) {
    return kvp_fail(err, KVP_INVALID_ARGUMENT, "nf4_c: head_dim is %lld; the instance was made for %lld",
                    (long long)head_dim, (long long)self->head_dim);
  }
  if (batch < 0 || kv_heads < 0 || tokens < 0 || lines * (double)head_dim > 1e18) {
    return kvp_fail(err, KVP_INVALID_ARGUMENT, "nf4_c: plan for %lld rows of %lld heads and %lld tokens",
                    (long long)batch, (long long)kv_heads, (long long)tokens);
  }
  memset(&plan, 0, sizeof(plan));
  plan.token_block = 1;
  plan.n_parts = N_PARTS;
  plan.parts[DATA] = part(KVP_PART_DATA, 0, bytes, batch, kv_heads, tokens, nf4_data_bytes(self));
  plan.parts[SCALE] = part(KVP_PART_SCALE, 0, self->dtype, batch, kv_heads, tokens, nf4_groups(self));
  plan.parts[CODEBOOK] = part(KVP_PART_CODEBOOK, KVP_QPART_SHARED, floats, 1, 1, 1, N_LEVELS);
  plan.bits_per_element = (double)(8 * nf4_data_bytes(self) + self->dtype.bits * nf4_groups(self)) / (double)head_dim +
                          (lines > 0 ? 32.0 * (double)N_LEVELS / (lines * (double)head_dim) : 0.0);
  kvp_write_struct(out, &plan, sizeof(plan));
  return KVP_OK;
}

/* Half of the widest gap between two levels; a little for the division and the product; and the rounding to the type,
 * of a value of at most one scale. */
int32_t nf4_error_bound(kvp_quantizer* self, double* out, kvp_error* err) {
  (void)err;
  *out = ((double)nf4_levels[1] - (double)nf4_levels[0]) / 2 + 0x1p-22 + element_rounding(self->dtype);
  return KVP_OK;
}
