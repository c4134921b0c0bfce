/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The arithmetic. A group of channels of one token has the scale a = the largest |x| in it, a number of the type itself
 * and so stored without loss; an element becomes the number of the level nearest to x / a, and comes back as level * a.
 *
 * Zeros: every code is the level 0. A group with a NaN or an infinity has the scale NaN, so that all of it comes back
 * as NaN and nothing beside it does. A scale is never smaller than the type's smallest number with all digits: below,
 * rounding would eat up the bound.
 *
 * Whatever can fail is looked at before the first byte is written.
 */
#include "nf4.h"

#include <kvplug/sdk/plugin_c.h>
#include <kvplug/status.h>
#include <math.h>

#include "element.h"

static int last_is_dense(const kvp_tensor* t) { return t->strides[3] == 1 || t->shape[3] <= 1; }

/* Keys or values [batch, heads, tokens, head_dim]. */
static int32_t check_plain(const kvp_quantizer* self, const char* name, const kvp_tensor* t, kvp_error* err) {
  if (t->device_type != KVP_DEVICE_CPU || !element_known(element_dtype(t))) {
    return kvp_fail(err, KVP_INVALID_ARGUMENT, "nf4_c: %s is not float32, float16 or bfloat16 on the CPU", name);
  }
  if (t->ndim != 4 || t->shape[3] != self->head_dim || !last_is_dense(t)) {
    return kvp_fail(err, KVP_INVALID_ARGUMENT, "nf4_c: %s is not [batch, heads, tokens, %lld] with last stride 1", name,
                    (long long)self->head_dim);
  }
  return KVP_OK;
}

/* The parts of a plan for such a tensor. `writes`: bit i = part i will be written. */
static int32_t check_parts(kvp_quantizer* self, const kvp_tensor* plain, const kvp_qpart* parts, uint32_t n_parts,
                           uint32_t writes, kvp_error* err) {
  kvp_qplan plan;
  int32_t status;
  uint32_t i, d;
  plan.struct_size = sizeof(plan);
  status = nf4_plan(self, plain->shape[0], plain->shape[1], plain->shape[2], plain->shape[3], &plan, err);
  if (status != KVP_OK) return status;
  if (n_parts != N_PARTS) {
    return kvp_fail(err, KVP_INVALID_ARGUMENT, "nf4_c: %u parts; expected %d", (unsigned)n_parts, N_PARTS);
  }
  for (i = 0; i < N_PARTS; i++) {
    const kvp_tensor *t = &parts[i].t, *want = &plan.parts[i].t;
    int fits = parts[i].role == plan.parts[i].role && t->device_type == KVP_DEVICE_CPU && t->ndim == 4 &&
               element_same(element_dtype(t), element_dtype(want)) && last_is_dense(t);
    for (d = 0; fits && d < 4; d++) fits = t->shape[d] == want->shape[d];
    if (!fits) {
      return kvp_fail(err, KVP_INVALID_ARGUMENT, "nf4_c: part %u (role %d) is not as planned: [%lld, %lld, %lld, %lld]",
                      (unsigned)i, (int)parts[i].role, (long long)want->shape[0], (long long)want->shape[1],
                      (long long)want->shape[2], (long long)want->shape[3]);
    }
    if ((writes >> i & 1u) != 0 && (t->flags & KVP_TENSOR_READ_ONLY) != 0) {
      return kvp_fail(err, KVP_INVALID_ARGUMENT, "nf4_c: part %u is read-only", (unsigned)i);
    }
  }
  return KVP_OK;
}

static int32_t check_call(const kvp_call* given, kvp_error* err) {
  kvp_call call;
  kvp_read_struct(&call, sizeof(call), given);
  if (call.device_type == KVP_DEVICE_CPU) return KVP_OK;
  return kvp_fail(err, KVP_INVALID_ARGUMENT, "nf4_c works on the CPU; the call is for device type %d",
                  (int)call.device_type);
}

/* A codebook that was frozen earlier must ascend. */
static int32_t check_codebook(const float* level, kvp_error* err) {
  int i;
  for (i = 1; i < N_LEVELS; i++) {
    if (!(level[i - 1] <= level[i] && isfinite(level[i]))) {
      return kvp_fail(err, KVP_INVALID_ARGUMENT, "nf4_c: level %d of the codebook, %g, stands behind %g", i,
                      (double)level[i], (double)level[i - 1]);
    }
  }
  return KVP_OK;
}

/* Where token (b, h, s) of a tensor begins. */
static void* line_of(const kvp_tensor* t, int64_t b, int64_t h, int64_t s) {
  const int64_t offset = b * t->strides[0] + h * t->strides[1] + s * t->strides[2];
  return (char*)t->data + offset * (t->dtype_bits / 8);
}

static int64_t group_end(const kvp_quantizer* self, int64_t g) {
  const int64_t end = (g + 1) * self->group_size;
  return end < self->head_dim ? end : self->head_dim;
}

/* The scale of the channels from .. to - 1; NaN if one of them is NaN or infinite. */
static float scale_of(kvp_dtype dtype, const void* line, int64_t from, int64_t to) {
  float most = element_smallest(dtype);
  int64_t c;
  for (c = from; c < to; c++) {
    const float size = fabsf(element_get(dtype, line, c));
    if (!isfinite(size)) return NAN;
    if (size > most) most = size;
  }
  return most;
}

/* `between[i]` lies half-way between level i and level i + 1. */
static unsigned code_of(const float* between, float x) {
  unsigned code = 0;
  int i;
  for (i = 0; i < N_LEVELS - 1; i++) code += x > between[i]; /* NaN: code 0 */
  return code;
}

static void pack_token(const kvp_quantizer* self, const float* between, const void* line, uint8_t* data, void* scales) {
  const int64_t groups = nf4_groups(self);
  int64_t g, c;
  for (c = 0; c < nf4_data_bytes(self); c++) data[c] = 0;
  for (g = 0; g < groups; g++) {
    const int64_t from = g * self->group_size, to = group_end(self, g);
    const float scale = scale_of(self->dtype, line, from, to);
    element_put(self->dtype, scales, g, scale);
    for (c = from; c < to; c++) {
      const unsigned code = code_of(between, element_get(self->dtype, line, c) / scale);
      data[c / 2] = (uint8_t)(data[c / 2] | code << (c % 2 * 4));
    }
  }
}

static void unpack_token(const kvp_quantizer* self, const float* level, const uint8_t* data, const void* scales,
                         kvp_dtype out_dtype, void* line) {
  const int64_t groups = nf4_groups(self);
  int64_t g, c;
  for (g = 0; g < groups; g++) {
    const float scale = element_get(self->dtype, scales, g);
    for (c = g * self->group_size; c < group_end(self, g); c++) {
      element_put(out_dtype, line, c, level[data[c / 2] >> (c % 2 * 4) & 15] * scale);
    }
  }
}

int32_t nf4_quantize(kvp_quantizer* self, const kvp_call* call, const kvp_tensor* in, uint32_t flags,
                     const kvp_qpart* parts, uint32_t n_parts, void* workspace, kvp_error* err) {
  const int frozen = (flags & KVP_Q_KEEP_SCALE) != 0;
  float between[N_LEVELS - 1];
  float* level;
  int64_t b, h, s;
  int32_t status = check_call(call, err);
  (void)workspace;
  if (status == KVP_OK) status = check_plain(self, "the input", in, err);
  if (status == KVP_OK && !element_same(element_dtype(in), self->dtype)) {
    status = kvp_fail(err, KVP_INVALID_ARGUMENT, "nf4_c: the input is not of the type that the instance was made for");
  }
  if (status == KVP_OK && (flags & ~KVP_Q_KEEP_SCALE) != 0) {
    status = kvp_fail(err, KVP_UNSUPPORTED, "nf4_c: quantize with flags %u", (unsigned)flags);
  }
  if (status == KVP_OK) {
    status = check_parts(self, in, parts, n_parts, frozen ? ~(1u << CODEBOOK) : ~0u, err);
  }
  if (status != KVP_OK) return status;
  level = (float*)parts[CODEBOOK].t.data;
  if (frozen) {
    status = check_codebook(level, err);
    if (status != KVP_OK) return status;
  } else {
    for (s = 0; s < N_LEVELS; s++) level[s] = nf4_levels[s];
  }
  for (s = 0; s < N_LEVELS - 1; s++) between[s] = (level[s] + level[s + 1]) / 2;
  for (b = 0; b < in->shape[0]; b++) {
    for (h = 0; h < in->shape[1]; h++) {
      for (s = 0; s < in->shape[2]; s++) {
        pack_token(self, between, line_of(in, b, h, s), (uint8_t*)line_of(&parts[DATA].t, b, h, s),
                   line_of(&parts[SCALE].t, b, h, s));
      }
    }
  }
  return KVP_OK;
}

int32_t nf4_dequantize(kvp_quantizer* self, const kvp_call* call, const kvp_qpart* parts, uint32_t n_parts,
                       kvp_tensor* out, kvp_error* err) {
  int64_t b, h, s;
  int32_t status = check_call(call, err);
  if (status == KVP_OK) status = check_plain(self, "the output", out, err);
  if (status == KVP_OK && (out->flags & KVP_TENSOR_READ_ONLY) != 0) {
    status = kvp_fail(err, KVP_INVALID_ARGUMENT, "nf4_c: the output is read-only");
  }
  if (status == KVP_OK) status = check_parts(self, out, parts, n_parts, 0, err);
  if (status != KVP_OK) return status;
  for (b = 0; b < out->shape[0]; b++) {
    for (h = 0; h < out->shape[1]; h++) {
      for (s = 0; s < out->shape[2]; s++) {
        unpack_token(self, (const float*)parts[CODEBOOK].t.data, (const uint8_t*)line_of(&parts[DATA].t, b, h, s),
                     line_of(&parts[SCALE].t, b, h, s), element_dtype(out), line_of(out, b, h, s));
      }
    }
  }
  return KVP_OK;
}
