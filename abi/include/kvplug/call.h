/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The circumstances of a call: device, stream, and what the call must not do.
 *
 * Never NULL where a function takes it. Work is queued on `stream` of the device and nowhere else; side streams of the
 * callee are joined before what they made is used.
 */
#ifndef KVPLUG_CALL_H
#define KVPLUG_CALL_H

#include <stddef.h>
#include <stdint.h>

/* Flags of a call. */
#define KVP_CALL_PREPARED 1u /* no allocation: what is needed was reserved */
#define KVP_CALL_CAPTURE 2u  /* being recorded into a graph: no allocation, no synchronisation */
#define KVP_CALL_CHECK \
  4u /* answer what the call would answer and change nothing (crop, gather, reserve, set_rollback) */

typedef struct kvp_call {
  size_t struct_size;
  int32_t device_type; /* KVP_DEVICE_… */
  int32_t device_id;
  void* stream; /* the device's stream handle (cudaStream_t); NULL on a CPU, else the default stream */
  uint32_t flags;
  uint32_t reserved;
} kvp_call;

#endif /* KVPLUG_CALL_H */
