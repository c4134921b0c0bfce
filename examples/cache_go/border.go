// SPDX-License-Identifier: Apache-2.0

// The smallest complete kvplug cache, in Go: the border.
//
// Every function that C calls runs its work inside guard: what goes wrong becomes a status and a text, and a panic becomes
// INTERNAL. An instance that panicked answers POISONED until it is reset.
package main

// #cgo CFLAGS: -I${SRCDIR}/../../abi/include -I${SRCDIR}/../../sdk/include
// #include "border.h"
import "C"

import (
	"fmt"
	"runtime/cgo"
	"unicode/utf8"
	"unsafe"
)

const kind = "example/exact_go"

// fault is why a call fails.
type fault struct {
	status int32
	text   string
}

func failed(status int32, format string, args ...any) *fault {
	return &fault{status, fmt.Sprintf(format, args...)}
}

// report writes the text of a failure, cut at a character, as the caller's buffer allows.
func report(err *C.kvp_error, f *fault) C.int32_t {
	if err == nil {
		return C.int32_t(f.status)
	}
	err.code, err.native_code, err.len = C.int32_t(f.status), 0, C.size_t(len(f.text))
	if err.buf != nil && err.cap > 0 {
		keep := min(len(f.text), int(err.cap)-1)
		for keep < len(f.text) && keep > 0 && !utf8.RuneStart(f.text[keep]) {
			keep--
		}
		buf := unsafe.Slice((*byte)(unsafe.Pointer(err.buf)), err.cap)
		copy(buf, f.text[:keep])
		buf[keep] = 0
	}
	return C.int32_t(f.status)
}

// guard runs body; no panic leaves it.
func guard(err *C.kvp_error, body func() *fault) (status C.int32_t) {
	defer func() {
		if p := recover(); p != nil {
			status = report(err, failed(C.KVP_INTERNAL, "%s panicked: %v", kind, p))
		}
	}()
	if f := body(); f != nil {
		return report(err, f)
	}
	return C.KVP_OK
}

// on runs body on an instance that is not poisoned.
func on(self C.uintptr_t, err *C.kvp_error, body func(c *cache) *fault) C.int32_t {
	c := cgo.Handle(self).Value().(*cache)
	if c.poisoned {
		return report(err, failed(C.KVP_POISONED,
			"%s: an earlier call lost this cache; only reset and destroy are possible", kind))
	}
	status := guard(err, func() *fault { return body(c) })
	c.poisoned = status >= C.KVP_DEVICE
	return status
}

//export goProbe
func goProbe(create *C.kvp_cache_create, out *C.kvp_cache_info, err *C.kvp_error) C.int32_t {
	return guard(err, func() *fault {
		_, f := checkWish(create)
		out.flags, out.max_rollback, out.token_block = C.KVP_CACHE_PER_LAYER_VIEWS, -1, 1
		return f
	})
}

//export goPlan
func goPlan(create *C.kvp_cache_create, batch, tokens C.int64_t, out *C.kvp_memory, err *C.kvp_error) C.int32_t {
	return guard(err, func() *fault {
		w, f := checkWish(create)
		if f != nil {
			return f
		}
		return w.plan(int64(batch), int64(tokens), out)
	})
}

//export goCreate
func goCreate(create *C.kvp_cache_create, out *C.uintptr_t, err *C.kvp_error) C.int32_t {
	return guard(err, func() *fault {
		w, f := checkWish(create)
		if f == nil {
			*out = C.uintptr_t(cgo.NewHandle(newCache(w)))
		}
		return f
	})
}

//export goDestroy
func goDestroy(self C.uintptr_t) {
	guard(nil, func() *fault {
		handle := cgo.Handle(self)
		handle.Value().(*cache).destroy()
		handle.Delete()
		return nil
	})
}

//export goLengths
func goLengths(self C.uintptr_t, layer C.int32_t, queryLen C.int64_t, out *C.kvp_lengths, err *C.kvp_error) C.int32_t {
	return on(self, err, func(c *cache) *fault { return c.lengths(int32(layer), int64(queryLen), out) })
}

//export goUpdate
func goUpdate(self C.uintptr_t, flags C.uint32_t, args *C.kvp_update_args, outK, outV *C.kvp_tensor,
	err *C.kvp_error) C.int32_t {
	return on(self, err, func(c *cache) *fault { return c.update(uint32(flags), args, outK, outV) })
}

//export goReset
func goReset(self C.uintptr_t, err *C.kvp_error) C.int32_t {
	c := cgo.Handle(self).Value().(*cache)
	status := guard(err, func() *fault { c.reset(); return nil })
	c.poisoned = status != C.KVP_OK
	return status
}

//export goGather
func goGather(self C.uintptr_t, flags C.uint32_t, src *C.int64_t, n C.int64_t, err *C.kvp_error) C.int32_t {
	return on(self, err, func(c *cache) *fault { return c.gather(uint32(flags), unsafe.Slice(src, max(n, 0))) })
}

//export goCrop
func goCrop(self C.uintptr_t, flags C.uint32_t, nRemove *C.int64_t, n C.int64_t, err *C.kvp_error) C.int32_t {
	return on(self, err, func(c *cache) *fault { return c.crop(uint32(flags), unsafe.Slice(nRemove, max(n, 0))) })
}

//export goSetRollback
func goSetRollback(self C.uintptr_t, maxTokens C.int64_t, err *C.kvp_error) C.int32_t {
	return on(self, err, func(*cache) *fault {
		if maxTokens < 0 {
			return failed(C.KVP_INVALID_ARGUMENT, "rollback of %d tokens", maxTokens)
		}
		return nil // crop of any depth always works
	})
}

//export goClone
func goClone(self C.uintptr_t, owner C.uint64_t, out *C.uintptr_t, err *C.kvp_error) C.int32_t {
	return on(self, err, func(c *cache) *fault {
		twin, f := c.clone(uint64(owner))
		if f == nil {
			*out = C.uintptr_t(cgo.NewHandle(twin))
		}
		return f
	})
}

//export goMemory
func goMemory(self C.uintptr_t, layer C.int32_t, out *C.kvp_memory, err *C.kvp_error) C.int32_t {
	return on(self, err, func(c *cache) *fault { return c.memory(int32(layer), out) })
}

// A library has no main; c-shared wants one.
func main() {}
