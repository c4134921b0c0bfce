/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Status codes: what every call that can fail returns.
 *
 * The group tells what is left of the instance. Below 30, unknown numbers included: nothing has changed and the
 * instance is as it was. From 30 on: the instance is poisoned; only reset and destroy are legal. 100 and up belong to
 * the application API. Numbers are never reused. On failure, out-parameters are untouched.
 */
#ifndef KVPLUG_STATUS_H
#define KVPLUG_STATUS_H

#include <stdint.h>

typedef int32_t kvp_status;

#define KVP_OK 0

/* The caller's affair. */
#define KVP_UNSUPPORTED 10      /* a legal wish that this implementation does not serve */
#define KVP_INVALID_ARGUMENT 11 /* the arguments contradict the contract or each other */
#define KVP_INVALID_STATE 12    /* legal arguments at the wrong time, as a crop beyond what is kept */
#define KVP_CAPACITY 13         /* a fixed capacity is exhausted */
#define KVP_CANCELLED 14        /* stopped on request */

/* The surroundings. */
#define KVP_OUT_OF_MEMORY 20 /* the allocator said no */
#define KVP_IO 21            /* reading or writing a file failed */
#define KVP_CORRUPT 22       /* data that was read does not hold together */

/* The instance is lost. */
#define KVP_DEVICE 30   /* the accelerator reported an error */
#define KVP_INTERNAL 31 /* a caught panic or a broken invariant */
#define KVP_POISONED 32 /* an earlier call ended with 30 or above: reset or destroy first */

/* True if the instance is lost after a call that returned `status`. */
#define KVP_IS_POISONING(status) ((status) >= 30)

#endif /* KVPLUG_STATUS_H */
