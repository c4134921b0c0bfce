/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conversions to and from DLPack's DLTensor, without including DLPack.
 *
 * DLTensor is passed as void *: the bytes are copied to and from kvp_dltensor below, which mirrors its layout, so that
 * the header needs no dlpack.h and breaks no aliasing rule. With dlpack.h at hand:
 *   DLTensor dl;   kvp_tensor_to_dltensor(&t, &dl);      dl.shape and dl.strides point into t: t must outlive dl
 *   kvp_tensor t;  kvp_tensor_from_dltensor(&dl, &t);    t is a flat copy; the memory it describes stays dl's
 * READ_ONLY has no counterpart in DLTensor and is lost.
 */
#ifndef KVPLUG_INTEROP_DLPACK_H
#define KVPLUG_INTEROP_DLPACK_H

#include <stddef.h>
#include <stdint.h>

#include "kvplug/status.h"
#include "kvplug/tensor.h"

/* The layout of DLTensor. */
typedef struct kvp_dltensor {
  void* data;
  int32_t device_type;
  int32_t device_id;
  int32_t ndim;
  kvp_dtype dtype;
  int64_t* shape;
  int64_t* strides; /* NULL = row-major and compact */
  uint64_t byte_offset;
} kvp_dltensor;

/* Describes the memory of `t` as a DLTensor whose shape and strides lie in `t`.
 * Thread: any. Allocates: no. Synchronises: no. Owns: t must outlive the DLTensor. Since 0.1. */
static inline void kvp_tensor_to_dltensor(kvp_tensor* t, void* dltensor) {
  kvp_dltensor d;
  const unsigned char* from = (const unsigned char*)&d;
  unsigned char* to = (unsigned char*)dltensor;
  size_t i;
  d.data = t->data;
  d.device_type = t->device_type;
  d.device_id = t->device_id;
  d.ndim = t->ndim;
  d.dtype.code = t->dtype_code;
  d.dtype.bits = t->dtype_bits;
  d.dtype.lanes = t->dtype_lanes;
  d.shape = t->shape;
  d.strides = t->strides;
  d.byte_offset = 0;
  for (i = 0; i < sizeof(d); i++) to[i] = from[i];
}

/* Describes the memory of a DLTensor. More than 8 axes: UNSUPPORTED, `t` untouched.
 * Thread: any. Allocates: no. Synchronises: no. Owns: the memory stays the DLTensor's owner's. Since 0.1. */
static inline int32_t kvp_tensor_from_dltensor(const void* dltensor, kvp_tensor* t) {
  kvp_dltensor d;
  const unsigned char* from = (const unsigned char*)dltensor;
  unsigned char* to = (unsigned char*)&d;
  int64_t compact = 1;
  int32_t a;
  size_t i;
  for (i = 0; i < sizeof(d); i++) to[i] = from[i];
  if (d.ndim < 0 || d.ndim > KVP_MAX_DIMS) return KVP_UNSUPPORTED;
  t->data = d.data == NULL ? NULL : (void*)((unsigned char*)d.data + d.byte_offset);
  t->device_type = d.device_type;
  t->device_id = d.device_id;
  t->ndim = d.ndim;
  t->dtype_code = d.dtype.code;
  t->dtype_bits = d.dtype.bits;
  t->dtype_lanes = d.dtype.lanes;
  t->flags = 0;
  t->reserved = 0;
  for (a = KVP_MAX_DIMS - 1; a >= 0; a--) {
    t->shape[a] = a < d.ndim ? d.shape[a] : 0;
    t->strides[a] = a >= d.ndim ? 0 : d.strides != NULL ? d.strides[a] : compact;
    if (a < d.ndim) compact *= d.shape[a];
  }
  return KVP_OK;
}

#endif /* KVPLUG_INTEROP_DLPACK_H */
