/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The version of the plugin ABI, the name of the one exported function, and the rule by which structs grow.
 *
 * Ground rules of every header in this folder: C99 and C++11; only <stdint.h> and <stddef.h>; fixed-width integers;
 * no enum, bool, long, bit-field, union, variable argument list or struct by value crosses the border; nothing unwinds
 * across it. Enumerations are int32_t with named constants; an unknown value means "not supported". 64-bit
 * little-endian targets.
 *
 * Every function comment ends with one line of five facts:
 *   Thread        any: from any thread, also concurrently; instance: any thread, never two calls at once on the
 * instance Allocates     whether memory may be taken from the host's allocator during the call Synchronises  whether
 * the call may wait for a device Owns          who owns what is passed and returned Since         first ABI version
 * that has it
 */
#ifndef KVPLUG_VERSION_H
#define KVPLUG_VERSION_H

#include <stddef.h>
#include <stdint.h>

/* While the major is 0 the ABI may change with every commit. A host and a plugin of different majors never meet: the
 * major is part of the entry's name. Within a major, a higher minor only adds. */
#define KVP_ABI_MAJOR 0
#define KVP_ABI_MINOR 1

/* The exported function, as an identifier and as text for the dynamic loader. */
#define KVP_PLUGIN_ENTRY kvp_plugin_entry_v0
#define KVP_PLUGIN_ENTRY_NAME "kvp_plugin_entry_v0"

/* Growth. A struct that can grow starts with `size_t struct_size`, set by whoever fills it in to sizeof(the struct) as
 * compiled. Fields are only ever appended. A field exists iff struct_size covers it wholly; a field that does not exist
 * reads as zero, and zero means the behaviour from before the field. Structs end without padding, so that sizeof tells
 * versions apart. Structs marked "frozen" have no struct_size and never change. */
#define KVP_HAS_FIELD(ptr, field) \
  ((size_t)((const unsigned char*)(&(ptr)->field + 1) - (const unsigned char*)(ptr)) <= (ptr)->struct_size)

/* Element i of an array of growable structs; `stride` is the size the array was compiled with, in bytes. */
#define KVP_AT(type, base, stride, i) \
  ((const type*)(const void*)((const unsigned char*)(base) + (size_t)(i) * (size_t)(stride)))

#endif /* KVPLUG_VERSION_H */
