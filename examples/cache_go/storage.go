// SPDX-License-Identifier: Apache-2.0

package main

// #include "border.h"
import "C"

import (
	"math/bits"
	"unsafe"
)

// What the cache holds: blocks of the host's memory, and one layer's keys and values in such a block. The garbage
// collector knows nothing of them: who takes a block gives it back.

// books are the bytes held now and at most, of all blocks of one instance.
type books struct{ held, peak uint64 }

// block is memory from the host, booked on the instance's owner token.
type block struct {
	mem  C.kvp_mem
	data unsafe.Pointer
}

func (b *books) take(owner uint64, purpose int, bytes uint64) (block, *fault) {
	taken := block{mem: C.kvp_mem{
		struct_size: C.size_t(unsafe.Sizeof(C.kvp_mem{})),
		owner:       C.uint64_t(owner),
		bytes:       C.uint64_t(bytes),
		align:       64,
		tier:        C.KVP_TIER_HOST,
		purpose:     C.int32_t(purpose),
		device_type: C.KVP_DEVICE_CPU,
	}}
	if status := C.host_alloc(&taken.mem, &taken.data); status != C.KVP_OK {
		return block{}, failed(int32(status), "the host has no %d bytes", bytes)
	}
	b.held += bytes
	b.peak = max(b.peak, b.held)
	return taken, nil
}

func (b *books) give(given *block) {
	if given.data != nil {
		C.host_free(&given.mem, given.data)
	}
	b.held -= uint64(given.mem.bytes)
	*given = block{}
}

// capacityFor is the first of grow * 1, 2, 4, … that holds the tokens: a function of their number alone, so that plan can
// tell it.
func capacityFor(grow, tokens int64) int64 {
	if tokens <= 0 {
		return 0
	}
	capacity := grow
	for capacity < tokens {
		capacity *= 2
	}
	return capacity
}

// shape is what a layer is; no storage.
type shape struct {
	heads   int64
	dim     [2]int64 // of K, of V
	element int64    // bytes
}

// bytes of the layer, or the largest number if that is beyond all memory.
func (s *shape) bytes(batch, tokens int64) uint64 {
	product := uint64((s.dim[0] + s.dim[1]) * s.element)
	for _, factor := range []int64{s.heads, batch, tokens} {
		high, low := bits.Mul64(product, uint64(factor))
		if high != 0 {
			return ^uint64(0)
		}
		product = low
	}
	return product
}

// storage holds keys and values of one layer: K [batch, heads, capacity, dim[0]], and behind it V likewise.
type storage struct {
	shape
	batch, capacity int64
	block           block
}

// line is the bytes of one slot of K (part 0) or V (part 1).
func (s *storage) line(part int) int64 { return s.dim[part] * s.element }

// at gives n bytes from a slot of K or V on.
func (s *storage) at(part int, b, h, slot, n int64) []byte {
	offset := ((b*s.heads+h)*s.capacity + slot) * s.line(part)
	if part == 1 {
		offset += s.batch * s.heads * s.capacity * s.line(0)
	}
	return unsafe.Slice((*byte)(unsafe.Add(s.block.data, offset)), n)
}

// copyRow copies the first tokens of a row of another storage.
func (s *storage) copyRow(toRow int64, from *storage, fromRow, tokens int64) {
	for part := 0; part < 2 && tokens > 0; part++ {
		n := tokens * s.line(part)
		for h := int64(0); h < s.heads; h++ {
			copy(s.at(part, toRow, h, 0, n), from.at(part, fromRow, h, 0, n))
		}
	}
}

// zero zeroes slots begin to end-1 of a row.
func (s *storage) zero(b, begin, end int64) {
	for part := 0; part < 2 && begin < end; part++ {
		for h := int64(0); h < s.heads; h++ {
			clear(s.at(part, b, h, begin, (end-begin)*s.line(part)))
		}
	}
}

// store copies tokens begin to end-1 of row b of the call to the slots from slot on.
func (s *storage) store(part int, t *C.kvp_tensor, b, begin, end, slot int64) {
	n := s.line(part)
	for h := int64(0); h < s.heads; h++ {
		for i := begin; i < end; i++ {
			offset := (b*int64(t.strides[0]) + h*int64(t.strides[1]) + i*int64(t.strides[2])) * s.element
			copy(s.at(part, b, h, slot+i-begin, n), unsafe.Slice((*byte)(unsafe.Add(t.data, offset)), n))
		}
	}
}

// view is a borrowed view of the first slots of all rows.
func (s *storage) view(part int, dtype C.kvp_dtype, kvLen int64) C.kvp_tensor {
	t := C.kvp_tensor{
		device_type: C.KVP_DEVICE_CPU,
		ndim:        4,
		dtype_code:  dtype.code,
		dtype_bits:  dtype.bits,
		dtype_lanes: dtype.lanes,
		flags:       C.KVP_TENSOR_READ_ONLY,
	}
	if s.block.data != nil {
		t.data = unsafe.Pointer(unsafe.SliceData(s.at(part, 0, 0, 0, 1)))
	}
	byHead := s.capacity * s.dim[part]
	for i, n := range []int64{s.batch, s.heads, kvLen, s.dim[part]} {
		t.shape[i] = C.int64_t(n)
	}
	for i, n := range []int64{s.heads * byHead, byHead, s.dim[part], 1} {
		t.strides[i] = C.int64_t(n)
	}
	return t
}
