/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors: a flat description of memory that somebody else owns.
 *
 * No inner pointers, so that a tensor may be passed from memory that a garbage collector moves or checks. Frozen: it is
 * passed in arrays on hot paths. Type and device numbers are those of DLPack.
 */
#ifndef KVPLUG_TENSOR_H
#define KVPLUG_TENSOR_H

#include <stdint.h>

/* Element type. bits is the width of one lane, lanes is 1 for scalars. Frozen. */
typedef struct kvp_dtype {
  uint8_t code; /* KVP_DTYPE_… */
  uint8_t bits;
  uint16_t lanes;
} kvp_dtype;

#define KVP_DTYPE_INT 0
#define KVP_DTYPE_UINT 1
#define KVP_DTYPE_FLOAT 2 /* IEEE: f16, f32, f64 by bits */
#define KVP_DTYPE_OPAQUE 3
#define KVP_DTYPE_BFLOAT 4 /* bf16 */
#define KVP_DTYPE_COMPLEX 5
#define KVP_DTYPE_BOOL 6
#define KVP_DTYPE_FLOAT8_E3M4 7
#define KVP_DTYPE_FLOAT8_E4M3 8
#define KVP_DTYPE_FLOAT8_E4M3B11FNUZ 9
#define KVP_DTYPE_FLOAT8_E4M3FN 10
#define KVP_DTYPE_FLOAT8_E4M3FNUZ 11
#define KVP_DTYPE_FLOAT8_E5M2 12
#define KVP_DTYPE_FLOAT8_E5M2FNUZ 13
#define KVP_DTYPE_FLOAT8_E8M0FNU 14
#define KVP_DTYPE_FLOAT6_E2M3FN 15
#define KVP_DTYPE_FLOAT6_E3M2FN 16
#define KVP_DTYPE_FLOAT4_E2M1FN 17

#define KVP_DEVICE_CPU 1
#define KVP_DEVICE_CUDA 2
#define KVP_DEVICE_CUDA_HOST 3 /* pinned host memory */
#define KVP_DEVICE_METAL 8
#define KVP_DEVICE_ROCM 10
#define KVP_DEVICE_ROCM_HOST 11
#define KVP_DEVICE_CUDA_MANAGED 13
#define KVP_DEVICE_ONEAPI 14

/* Flags of a tensor. */
#define KVP_TENSOR_READ_ONLY 1u /* whoever receives it must not write through data */

#define KVP_MAX_DIMS 8

/* `data` points at element 0 (no separate byte offset). `strides` are in elements and always set for the first `ndim`
 * axes; the rest of shape and strides is not looked at. A tensor with a zero in its shape may have NULL data. Sub-byte
 * data travels as uint8. Keys and values are logically [batch, kv_heads, tokens, head_dim], the last stride 1.
 * 160 bytes. Frozen. */
typedef struct kvp_tensor {
  void* data;
  int32_t device_type; /* KVP_DEVICE_… */
  int32_t device_id;
  int32_t ndim;
  uint8_t dtype_code; /* KVP_DTYPE_… */
  uint8_t dtype_bits;
  uint16_t dtype_lanes;
  uint32_t flags; /* KVP_TENSOR_… */
  uint32_t reserved;
  int64_t shape[KVP_MAX_DIMS];
  int64_t strides[KVP_MAX_DIMS];
} kvp_tensor;

#endif /* KVPLUG_TENSOR_H */
