/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An exact cache for full attention: it keeps K and V as they came and lends them out again; the host attends.
 *
 * Whatever can fail, checks and memory, comes before the first change.
 */
#include "exact.h"

#include <kvplug/call.h>
#include <kvplug/sdk/plugin_c.h>
#include <kvplug/status.h>
#include <stdlib.h>
#include <string.h>

#include "storage.h"

int32_t exact_lengths(kvp_cache* self, int32_t layer_index, int64_t query_len, kvp_lengths* out, kvp_error* err) {
  kvp_lengths answer;
  size_t b;
  kvp_read_struct(&answer, sizeof(answer), out);
  if (layer_index < 0 || (size_t)layer_index >= self->n_layers || query_len < 0) {
    return kvp_fail(err, KVP_INVALID_ARGUMENT, "lengths of layer %d of %d for %lld tokens", (int)layer_index,
                    (int)self->n_layers, (long long)query_len);
  }
  if ((answer.row_seen != NULL || answer.row_pad != NULL) && self->batch > 0 && answer.n_rows > (size_t)self->batch) {
    return kvp_fail(err, KVP_INVALID_ARGUMENT, "n_rows is %d; the cache holds %d rows", (int)answer.n_rows,
                    (int)self->batch);
  }
  answer.seen = longest(self, layer_index);
  answer.max = -1;
  answer.kv_len = answer.seen + query_len;
  answer.kv_offset = 0;
  for (b = 0; b < answer.n_rows; b++) {
    const row none = {0, 0};
    const row r = self->batch > 0 ? rows_of(self, layer_index)[b] : none;
    if (answer.row_seen != NULL) answer.row_seen[b] = r.seen;
    if (answer.row_pad != NULL) answer.row_pad[b] = r.pad;
  }
  kvp_write_struct(out, &answer, sizeof(answer));
  return KVP_OK;
}

/* K or V of an update: [batch, heads, tokens, dim] of the cache's type, last stride 1. */
static int32_t check_tensor(const kvp_cache* c, const layer* l, int part, const kvp_tensor* t, kvp_error* err) {
  if (t->ndim != 4 || t->shape[1] != l->heads || t->shape[3] != l->dim[part] || t->shape[0] < 1 || t->shape[2] < 0 ||
      (t->strides[3] != 1 && t->shape[3] > 1)) {
    return kvp_fail(err, KVP_INVALID_ARGUMENT, "%s is not [batch, %lld, tokens, %lld] with last stride 1",
                    part == 0 ? "k" : "v", (long long)l->heads, (long long)l->dim[part]);
  }
  if (t->dtype_code != c->dtype.code || t->dtype_bits != c->dtype.bits || t->dtype_lanes != 1 ||
      t->device_type != KVP_DEVICE_CPU) {
    return kvp_fail(err, KVP_INVALID_ARGUMENT, "%s is not of the type and device that the cache was made for",
                    part == 0 ? "k" : "v");
  }
  return KVP_OK;
}

static int32_t check_rows(const kvp_cache* c, const kvp_update_args* a, int fresh, kvp_error* err) {
  const int64_t batch = a->k->shape[0], tokens = a->k->shape[2];
  int64_t b;
  for (b = 0; b < batch; b++) {
    const int64_t count = a->count == NULL ? tokens : a->count[b];
    const int64_t pad = a->pad == NULL ? 0 : a->pad[b];
    if (count < 0 || count > tokens || pad < 0 || pad > count) {
      return kvp_fail(err, KVP_INVALID_ARGUMENT, "row %d: count %lld and pad %lld of %lld tokens", (int)b,
                      (long long)count, (long long)pad, (long long)tokens);
    }
    if (pad > 0 && !fresh && rows_of(c, a->layer)[b].seen > rows_of(c, a->layer)[b].pad) {
      return kvp_fail(err, KVP_INVALID_ARGUMENT, "row %d: padding behind tokens", (int)b);
    }
  }
  return KVP_OK;
}

/* Makes room for `tokens` more in the layer, and first, in an empty cache, for another batch. All or nothing. */
static int32_t make_room(kvp_cache* c, int32_t layer_index, int64_t batch, int64_t tokens, const kvp_call* call,
                         kvp_error* err) {
  layer* l = &c->layers[layer_index];
  const int fresh = batch != c->batch;
  const int64_t need = (fresh ? 0 : longest(c, layer_index)) + tokens;
  const int64_t capacity = capacity_for(c->grow, need);
  block rows, kv;
  int64_t b;
  size_t i;
  int32_t status;
  if (!fresh && capacity <= l->capacity) return KVP_OK;
  if ((call->flags & (KVP_CALL_PREPARED | KVP_CALL_CAPTURE)) != 0) {
    return kvp_fail(err, KVP_INVALID_STATE, "%lld tokens need memory, which a prepared call may not take",
                    (long long)need);
  }
  if (fresh) {
    status = take_rows(c, batch, &rows, err);
    if (status != KVP_OK) return status;
  }
  status = take(c, KVP_PURPOSE_KV, layer_bytes(l, element(c), batch, capacity), &kv, err);
  if (status != KVP_OK) {
    if (fresh) give(c, &rows);
    return status;
  }
  if (fresh) {
    give(c, &c->rows);
    c->rows = rows;
    for (i = 0; i < c->n_layers; i++) {
      give(c, &c->layers[i].kv);
      c->layers[i].capacity = 0;
    }
    c->batch = batch;
  } else {
    for (b = 0; b < batch; b++) {
      copy_row(c, l, l, batch, b, kv.data, batch, capacity, b, rows_of(c, layer_index)[b].seen);
    }
    give(c, &l->kv);
  }
  l->kv = kv;
  l->capacity = capacity;
  return KVP_OK;
}

static void view(const kvp_cache* c, const layer* l, int part, int64_t kv_len, kvp_tensor* out) {
  memset(out, 0, sizeof(*out));
  out->data = l->kv.data == NULL ? NULL : at(c, l, l->kv.data, c->batch, l->capacity, part, 0, 0, 0);
  out->device_type = KVP_DEVICE_CPU;
  out->ndim = 4;
  out->dtype_code = c->dtype.code;
  out->dtype_bits = c->dtype.bits;
  out->dtype_lanes = 1;
  out->flags = KVP_TENSOR_READ_ONLY;
  out->shape[0] = c->batch;
  out->shape[1] = l->heads;
  out->shape[2] = kv_len;
  out->shape[3] = l->dim[part];
  out->strides[3] = 1;
  out->strides[2] = l->dim[part];
  out->strides[1] = l->capacity * l->dim[part];
  out->strides[0] = l->heads * out->strides[1];
}

int32_t exact_update(kvp_cache* self, const kvp_call* call, const kvp_update_args* given, kvp_tensor* out_k,
                     kvp_tensor* out_v, kvp_error* err) {
  kvp_update_args a;
  layer* l;
  int64_t b, tokens = 0, kv_len;
  kvp_read_struct(&a, sizeof(a), given);
  if (a.layer < 0 || (size_t)a.layer >= self->n_layers) {
    return kvp_fail(err, KVP_INVALID_ARGUMENT, "layer %d of %d", (int)a.layer, (int)self->n_layers);
  }
  if ((a.k == NULL) != (a.v == NULL) || (out_k == NULL) != (out_v == NULL)) {
    return kvp_fail(err, KVP_INVALID_ARGUMENT, "K and V, and their views, come together or not at all");
  }
  l = &self->layers[a.layer];
  if (a.k != NULL) {
    int32_t status = check_tensor(self, l, 0, a.k, err);
    if (status == KVP_OK) status = check_tensor(self, l, 1, a.v, err);
    if (status != KVP_OK) return status;
    if (a.k->shape[0] != a.v->shape[0] || a.k->shape[2] != a.v->shape[2]) {
      return kvp_fail(err, KVP_INVALID_ARGUMENT, "k and v differ in batch or tokens");
    }
    tokens = a.k->shape[2];
  }
  kv_len = longest(self, a.layer) + tokens;
  if (tokens > 0) {
    const int64_t batch = a.k->shape[0];
    const int fresh = batch != self->batch;
    int32_t status;
    if (fresh && !is_empty(self)) {
      return kvp_fail(err, KVP_INVALID_ARGUMENT, "the batch is %lld; the cache holds %lld rows", (long long)batch,
                      (long long)self->batch);
    }
    status = check_rows(self, &a, fresh, err);
    if (status == KVP_OK) status = make_room(self, a.layer, batch, tokens, call, err);
    if (status != KVP_OK) return status;
    for (b = 0; b < batch; b++) {
      row* r = &rows_of(self, a.layer)[b];
      const int64_t count = a.count == NULL ? tokens : a.count[b];
      const int64_t pad = a.pad == NULL ? 0 : a.pad[b];
      zero_slots(self, l, b, r->seen, r->seen + pad);
      store(self, l, 0, a.k, b, pad, count, r->seen + pad);
      store(self, l, 1, a.v, b, pad, count, r->seen + pad);
      r->seen += count;
      r->pad += pad;
    }
  }
  if (out_k != NULL) {
    for (b = 0; b < self->batch; b++) zero_slots(self, l, b, rows_of(self, a.layer)[b].seen, kv_len);
    view(self, l, 0, kv_len, out_k);
    view(self, l, 1, kv_len, out_v);
  }
  return KVP_OK;
}

int32_t exact_reset(kvp_cache* self, const kvp_call* call, kvp_error* err) {
  (void)call;
  (void)err;
  if (self->rows.data != NULL) memset(self->rows.data, 0, self->rows.mem.bytes);
  return KVP_OK;
}

int32_t exact_crop(kvp_cache* self, const kvp_call* call, const int64_t* n_remove, int64_t n, kvp_error* err) {
  int64_t b;
  size_t i;
  if (n != 1) return kvp_fail(err, KVP_UNSUPPORTED, "exact_c drops the same number of tokens from every row");
  if (n_remove[0] < 0) return kvp_fail(err, KVP_INVALID_ARGUMENT, "crop of %lld tokens", (long long)n_remove[0]);
  if ((call->flags & KVP_CALL_CHECK) != 0) return KVP_OK;
  for (b = 0; b < self->batch; b++) {
    int64_t seen = 0;
    /* in the middle of a step the layers differ: the newest tokens are those of the longest */
    for (i = 0; i < self->n_layers; i++) {
      if (rows_of(self, (int32_t)i)[b].seen > seen) seen = rows_of(self, (int32_t)i)[b].seen;
    }
    seen = n_remove[0] < seen ? seen - n_remove[0] : 0;
    for (i = 0; i < self->n_layers; i++) {
      row* r = &rows_of(self, (int32_t)i)[b];
      if (r->seen > seen) r->seen = seen;
      if (r->pad > r->seen) r->pad = r->seen;
    }
  }
  return KVP_OK;
}

int32_t exact_set_rollback(kvp_cache* self, const kvp_call* call, int64_t max_tokens, kvp_error* err) {
  (void)self; /* crop of any depth always works */
  (void)call;
  if (max_tokens < 0) return kvp_fail(err, KVP_INVALID_ARGUMENT, "rollback of %lld tokens", (long long)max_tokens);
  return KVP_OK;
}

int32_t exact_gather(kvp_cache* self, const kvp_call* call, const int64_t* src_rows, int64_t n, kvp_error* err) {
  kvp_cache* next;
  int64_t b;
  size_t i;
  int32_t status;
  if (n < 1) return kvp_fail(err, KVP_INVALID_ARGUMENT, "gather to %lld rows", (long long)n);
  for (b = 0; b < n; b++) {
    if (src_rows[b] < -1 || (self->batch > 0 && src_rows[b] >= self->batch)) {
      return kvp_fail(err, KVP_INVALID_ARGUMENT, "src_rows[%d] is %lld; the cache holds %lld rows", (int)b,
                      (long long)src_rows[b], (long long)self->batch);
    }
  }
  if ((call->flags & (KVP_CALL_PREPARED | KVP_CALL_CAPTURE)) != 0) {
    return kvp_fail(err, KVP_INVALID_STATE, "gather needs memory, which a prepared call may not take");
  }
  if ((call->flags & KVP_CALL_CHECK) != 0) return KVP_OK;
  next = empty_twin(self, self->owner);
  if (next == NULL) return kvp_fail(err, KVP_OUT_OF_MEMORY, "no memory for the new rows");
  next->held = self->held;
  next->peak = self->peak;
  status = copy_rows(self, src_rows, n, next, err);
  self->peak = next->peak;
  if (status == KVP_OK) {
    self->held = next->held;
    give(self, &self->rows);
    self->rows = next->rows;
    self->batch = n;
    for (i = 0; i < self->n_layers; i++) {
      give(self, &self->layers[i].kv);
      self->layers[i] = next->layers[i];
    }
  }
  free(next);
  return status;
}

int32_t exact_clone(kvp_cache* self, const kvp_call* call, uint64_t owner, kvp_cache** out, kvp_error* err) {
  kvp_cache* twin = empty_twin(self, owner);
  int32_t status = KVP_OK;
  (void)call;
  if (twin == NULL) return kvp_fail(err, KVP_OUT_OF_MEMORY, "no memory for a clone");
  if (self->batch > 0) status = copy_rows(self, NULL, self->batch, twin, err);
  if (status != KVP_OK) {
    free(twin);
    return status;
  }
  *out = twin;
  return KVP_OK;
}
