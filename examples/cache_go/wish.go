// SPDX-License-Identifier: Apache-2.0

package main

// #include "border.h"
import "C"

import "unsafe"

const rowBytes = uint64(unsafe.Sizeof(row{}))

// wish is what probe, plan and create agree on.
type wish struct {
	shapes  []shape
	dtype   C.kvp_dtype
	owner   uint64
	grow    int64
	panicAt int64
}

func checkWish(create *C.kvp_cache_create) (wish, *fault) {
	d := create.dtype
	w := wish{dtype: d, owner: uint64(create.owner), grow: 64, panicAt: -1}
	for _, option := range unsafe.Slice(create.options, create.n_options) {
		switch key := C.GoString(option.key); key {
		case "grow_tokens":
			w.grow = max(int64(option.integer), 1)
		case "panic_at":
			w.panicAt = int64(option.integer)
		default:
			return w, failed(C.KVP_INVALID_ARGUMENT, "exact_go has no option `%s`", key)
		}
	}
	if create.device_type != C.KVP_DEVICE_CPU {
		return w, failed(C.KVP_UNSUPPORTED, "exact_go keeps K/V in host memory; device type %d is not the CPU",
			create.device_type)
	}
	float := d.code == C.KVP_DTYPE_FLOAT && (d.bits == 32 || d.bits == 16)
	if d.lanes != 1 || !float && (d.code != C.KVP_DTYPE_BFLOAT || d.bits != 16) {
		return w, failed(C.KVP_UNSUPPORTED,
			"exact_go stores float32, float16 and bfloat16; not type code %d of %d bits", d.code, d.bits)
	}
	if create.quantizer_key != nil || create.quantizer_value != nil {
		return w, failed(C.KVP_UNSUPPORTED, "exact_go does not quantize; it takes no `backend`")
	}
	for i := C.size_t(0); i < create.n_layers; i++ {
		var l C.kvp_layer
		C.layer_at(create, i, &l)
		if l.kind != C.KVP_LAYER_FULL || l.flags&C.KVP_LAYER_SHARED != 0 || l.index_dim != 0 {
			return w, failed(C.KVP_UNSUPPORTED,
				"exact_go serves plain full attention; layer %d is something else (kind %d)", l.model_layer, l.kind)
		}
		if l.kv_heads < 1 || l.key_dim < 1 || l.value_dim < 1 {
			return w, failed(C.KVP_INVALID_ARGUMENT, "layer %d has %d heads of %d and %d", l.model_layer, l.kv_heads,
				l.key_dim, l.value_dim)
		}
		dim := [2]int64{int64(l.key_dim), int64(l.value_dim)}
		w.shapes = append(w.shapes, shape{heads: int64(l.kv_heads), dim: dim, element: int64(d.bits) / 8})
	}
	return w, nil
}

func (w *wish) plan(batch, tokens int64, m *C.kvp_memory) *fault {
	const most = ^uint64(0) / 4
	if batch < 0 || tokens < 0 || uint64(tokens) > most/2 {
		return failed(C.KVP_INVALID_ARGUMENT, "plan for %d rows of %d tokens", batch, tokens)
	}
	var used, held, rows uint64
	for _, s := range w.shapes {
		more := s.bytes(batch, capacityFor(w.grow, tokens))
		if more > most-held {
			return failed(C.KVP_INVALID_ARGUMENT, "%d rows of %d tokens are beyond all memory", batch, tokens)
		}
		held += more
		used += s.bytes(batch, tokens)
	}
	if tokens > 0 {
		rows = uint64(batch) * uint64(len(w.shapes)) * rowBytes
	}
	m.used[C.KVP_TIER_HOST][C.KVP_PURPOSE_KV] = C.uint64_t(used)
	m.reserved[C.KVP_TIER_HOST][C.KVP_PURPOSE_KV] = C.uint64_t(held)
	m.used[C.KVP_TIER_HOST][C.KVP_PURPOSE_OTHER] = C.uint64_t(rows)
	m.reserved[C.KVP_TIER_HOST][C.KVP_PURPOSE_OTHER] = C.uint64_t(rows)
	// gather fills new blocks before it gives the old ones back
	m.peak[C.KVP_TIER_HOST] = C.uint64_t(2 * (held + rows))
	m.unquantized = C.uint64_t(used)
	return nil
}
