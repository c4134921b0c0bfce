// SPDX-License-Identifier: Apache-2.0

package main

// #include "border.h"
import "C"

import (
	"fmt"
	"unsafe"
)

// row is the lengths of a row in one layer: slots taken, and how many of these are leading padding.
type row struct{ seen, pad int64 }

// cache is an exact cache for full attention: it keeps K and V as they came and lends them out again; the host attends.
// Whatever can fail, checks and memory, comes before the first change.
type cache struct {
	wish
	books    books
	batch    int64 // 0 = none yet
	rowBlock block // row [layers][batch]
	layers   []storage
	updates  int64
	poisoned bool
}

func newCache(w wish) *cache {
	c := &cache{wish: w, layers: make([]storage, len(w.shapes))}
	for i, s := range w.shapes {
		c.layers[i].shape = s
	}
	return c
}

func (c *cache) destroy() {
	for i := range c.layers {
		c.books.give(&c.layers[i].block)
	}
	c.books.give(&c.rowBlock)
}

func (c *cache) layer(layer int32) (int, *fault) {
	if layer < 0 || int(layer) >= len(c.layers) {
		return 0, failed(C.KVP_INVALID_ARGUMENT, "layer %d of %d", layer, len(c.layers))
	}
	return int(layer), nil
}

func (c *cache) takeRows(batch int64) (block, *fault) {
	bytes := uint64(batch) * uint64(len(c.layers)) * rowBytes
	taken, f := c.books.take(c.owner, C.KVP_PURPOSE_OTHER, bytes)
	if f == nil {
		clear(unsafe.Slice((*byte)(taken.data), bytes))
	}
	return taken, f
}

func (c *cache) rows(layer int) []row {
	if c.rowBlock.data == nil {
		return nil
	}
	return unsafe.Slice((*row)(c.rowBlock.data), int64(len(c.layers))*c.batch)[int64(layer)*c.batch:][:c.batch]
}

func (c *cache) longest(layer int) int64 {
	most := int64(0)
	for _, r := range c.rows(layer) {
		most = max(most, r.seen)
	}
	return most
}

func (c *cache) isEmpty() bool {
	for i := range c.layers {
		if c.longest(i) > 0 {
			return false
		}
	}
	return true
}

func (c *cache) lengths(layer int32, queryLen int64, out *C.kvp_lengths) *fault {
	l, f := c.layer(layer)
	if f != nil {
		return f
	}
	if queryLen < 0 {
		return failed(C.KVP_INVALID_ARGUMENT, "lengths for %d tokens", queryLen)
	}
	if (out.row_seen != nil || out.row_pad != nil) && c.batch > 0 && int64(out.n_rows) > c.batch {
		return failed(C.KVP_INVALID_ARGUMENT, "n_rows is %d; the cache holds %d rows", out.n_rows, c.batch)
	}
	seen := c.longest(l)
	out.seen, out.max, out.kv_len, out.kv_offset = C.int64_t(seen), -1, C.int64_t(seen+queryLen), 0
	for b := 0; b < int(out.n_rows); b++ {
		var r row
		if c.batch > 0 {
			r = c.rows(l)[b]
		}
		if out.row_seen != nil {
			unsafe.Slice(out.row_seen, out.n_rows)[b] = C.int64_t(r.seen)
		}
		if out.row_pad != nil {
			unsafe.Slice(out.row_pad, out.n_rows)[b] = C.int64_t(r.pad)
		}
	}
	return nil
}

// checkTensor checks K or V of an update: [batch, heads, tokens, dim] of the cache's type, last stride 1.
func (c *cache) checkTensor(layer, part int, t *C.kvp_tensor) *fault {
	s, name := c.layers[layer].shape, "kv"[part:part+1]
	if t.ndim != 4 || int64(t.shape[1]) != s.heads || int64(t.shape[3]) != s.dim[part] || t.shape[0] < 1 ||
		t.shape[2] < 0 || t.strides[3] != 1 && t.shape[3] > 1 {
		return failed(C.KVP_INVALID_ARGUMENT, "%s is not [batch, %d, tokens, %d] with last stride 1", name, s.heads,
			s.dim[part])
	}
	if t.dtype_code != c.dtype.code || t.dtype_bits != c.dtype.bits || t.dtype_lanes != 1 ||
		t.device_type != C.KVP_DEVICE_CPU {
		return failed(C.KVP_INVALID_ARGUMENT, "%s is not of the type and device that the cache was made for", name)
	}
	return nil
}

// counts are the tokens that row b takes, and how many of these are padding.
func counts(a *C.kvp_update_args, batch, tokens, b int64) (count, pad int64) {
	count = tokens
	if a.count != nil {
		count = int64(unsafe.Slice(a.count, batch)[b])
	}
	if a.pad != nil {
		pad = int64(unsafe.Slice(a.pad, batch)[b])
	}
	return count, pad
}

func (c *cache) checkRows(layer int, a *C.kvp_update_args, batch, tokens int64, fresh bool) *fault {
	for b := int64(0); b < batch; b++ {
		count, pad := counts(a, batch, tokens, b)
		if count < 0 || count > tokens || pad < 0 || pad > count {
			return failed(C.KVP_INVALID_ARGUMENT, "row %d: count %d and pad %d of %d tokens", b, count, pad, tokens)
		}
		if pad > 0 && !fresh && c.rows(layer)[b].seen > c.rows(layer)[b].pad {
			return failed(C.KVP_INVALID_ARGUMENT, "row %d: padding behind tokens", b)
		}
	}
	return nil
}

const noMemory = C.KVP_CALL_PREPARED | C.KVP_CALL_CAPTURE

// makeRoom makes room for more tokens in the layer, and first, in an empty cache, for another batch. All or nothing.
func (c *cache) makeRoom(layer int, batch, tokens int64, flags uint32) *fault {
	l := &c.layers[layer]
	fresh := batch != c.batch
	need := tokens
	if !fresh {
		need += c.longest(layer)
	}
	next := storage{shape: l.shape, batch: batch, capacity: capacityFor(c.grow, need)}
	if !fresh && next.capacity <= l.capacity {
		return nil
	}
	if flags&noMemory != 0 {
		return failed(C.KVP_INVALID_STATE, "%d tokens need memory, which a prepared call may not take", need)
	}
	var rows block
	var f *fault
	if fresh {
		if rows, f = c.takeRows(batch); f != nil {
			return f
		}
	}
	if next.block, f = c.books.take(c.owner, C.KVP_PURPOSE_KV, next.bytes(batch, next.capacity)); f != nil {
		c.books.give(&rows)
		return f
	}
	if fresh {
		c.destroy()
		for i := range c.layers {
			c.layers[i] = storage{shape: c.layers[i].shape}
		}
		c.rowBlock, c.batch = rows, batch
	} else {
		for b := int64(0); b < batch; b++ {
			next.copyRow(b, l, b, c.rows(layer)[b].seen)
		}
		c.books.give(&l.block)
	}
	*l = next
	return nil
}

func (c *cache) update(flags uint32, a *C.kvp_update_args, outK, outV *C.kvp_tensor) *fault {
	number := c.updates
	c.updates++
	if number == c.panicAt {
		panic(fmt.Sprintf("update %d panics, as option panic_at asks", number))
	}
	layer, f := c.layer(int32(a.layer))
	if f != nil {
		return f
	}
	if (a.k == nil) != (a.v == nil) || (outK == nil) != (outV == nil) {
		return failed(C.KVP_INVALID_ARGUMENT, "K and V, and their views, come together or not at all")
	}
	l, batch, tokens := &c.layers[layer], c.batch, int64(0)
	if a.k != nil {
		if f := c.checkTensor(layer, 0, a.k); f != nil {
			return f
		}
		if f := c.checkTensor(layer, 1, a.v); f != nil {
			return f
		}
		if a.k.shape[0] != a.v.shape[0] || a.k.shape[2] != a.v.shape[2] {
			return failed(C.KVP_INVALID_ARGUMENT, "k and v differ in batch or tokens")
		}
		batch, tokens = int64(a.k.shape[0]), int64(a.k.shape[2])
	}
	kvLen := c.longest(layer) + tokens
	if tokens > 0 {
		fresh := batch != c.batch
		if fresh && !c.isEmpty() {
			return failed(C.KVP_INVALID_ARGUMENT, "the batch is %d; the cache holds %d rows", batch, c.batch)
		}
		if f := c.checkRows(layer, a, batch, tokens, fresh); f != nil {
			return f
		}
		if f := c.makeRoom(layer, batch, tokens, flags); f != nil {
			return f
		}
		for b := int64(0); b < batch; b++ {
			r := &c.rows(layer)[b]
			count, pad := counts(a, batch, tokens, b)
			l.zero(b, r.seen, r.seen+pad)
			l.store(0, a.k, b, pad, count, r.seen+pad)
			l.store(1, a.v, b, pad, count, r.seen+pad)
			r.seen += count
			r.pad += pad
		}
	}
	if outK != nil {
		for b, r := range c.rows(layer) {
			l.zero(int64(b), r.seen, kvLen)
		}
		*outK, *outV = l.view(0, c.dtype, kvLen), l.view(1, c.dtype, kvLen)
	}
	return nil
}

func (c *cache) reset() {
	for i := range c.layers {
		clear(c.rows(i))
	}
}

func (c *cache) crop(flags uint32, nRemove []C.int64_t) *fault {
	if len(nRemove) != 1 {
		return failed(C.KVP_UNSUPPORTED, "exact_go drops the same number of tokens from every row")
	}
	n := int64(nRemove[0])
	if n < 0 {
		return failed(C.KVP_INVALID_ARGUMENT, "crop of %d tokens", n)
	}
	if flags&C.KVP_CALL_CHECK != 0 {
		return nil
	}
	for b := int64(0); b < c.batch; b++ {
		// in the middle of a step the layers differ: the newest tokens are those of the longest
		left := int64(0)
		for i := range c.layers {
			left = max(left, c.rows(i)[b].seen)
		}
		left = max(left-n, 0)
		for i := range c.layers {
			r := &c.rows(i)[b]
			r.seen = min(r.seen, left)
			r.pad = min(r.pad, r.seen)
		}
	}
	return nil
}

// copyRows gives `to`, which has neither rows nor memory, the rows src of c, -1 an empty row. All or nothing.
func (c *cache) copyRows(src []C.int64_t, to *cache) *fault {
	n := int64(len(src))
	rows, f := to.takeRows(n)
	if f != nil {
		return f
	}
	to.rowBlock, to.batch = rows, n
	for i := range c.layers {
		from, l := &c.layers[i], &to.layers[i]
		taken, f := to.books.take(to.owner, C.KVP_PURPOSE_KV, from.bytes(n, from.capacity))
		if f != nil {
			to.destroy()
			return f
		}
		*l = storage{shape: from.shape, batch: n, capacity: from.capacity, block: taken}
		for b, s := range src {
			if s >= 0 && c.batch > 0 {
				to.rows(i)[b] = c.rows(i)[s]
				l.copyRow(int64(b), from, int64(s), c.rows(i)[s].seen)
			}
		}
	}
	return nil
}

func (c *cache) gather(flags uint32, src []C.int64_t) *fault {
	if len(src) == 0 {
		return failed(C.KVP_INVALID_ARGUMENT, "gather to 0 rows")
	}
	for i, s := range src {
		if s < -1 || c.batch > 0 && int64(s) >= c.batch {
			return failed(C.KVP_INVALID_ARGUMENT, "src_rows[%d] is %d; the cache holds %d rows", i, s, c.batch)
		}
	}
	if flags&noMemory != 0 {
		return failed(C.KVP_INVALID_STATE, "gather needs memory, which a prepared call may not take")
	}
	if flags&C.KVP_CALL_CHECK != 0 {
		return nil
	}
	next := newCache(c.wish)
	next.books, next.updates = c.books, c.updates
	f := c.copyRows(src, next)
	c.books = next.books
	if f != nil {
		return f
	}
	c.destroy()
	next.books = c.books
	*c = *next
	return nil
}

func (c *cache) clone(owner uint64) (*cache, *fault) {
	twin := newCache(c.wish)
	twin.owner, twin.updates = owner, c.updates
	if c.batch == 0 {
		return twin, nil
	}
	all := make([]C.int64_t, c.batch)
	for b := range all {
		all[b] = C.int64_t(b)
	}
	return twin, c.copyRows(all, twin)
}

func (c *cache) memory(layer int32, m *C.kvp_memory) *fault {
	if layer != -1 {
		if _, f := c.layer(layer); f != nil {
			return f
		}
	}
	var used, held, rows uint64
	for i := range c.layers {
		if layer != -1 && i != int(layer) {
			continue
		}
		held += uint64(c.layers[i].block.mem.bytes)
		rows += uint64(c.batch) * rowBytes
		for _, r := range c.rows(i) {
			used += c.layers[i].bytes(1, r.seen)
		}
	}
	m.used[C.KVP_TIER_HOST][C.KVP_PURPOSE_KV] = C.uint64_t(used)
	m.reserved[C.KVP_TIER_HOST][C.KVP_PURPOSE_KV] = C.uint64_t(held)
	m.used[C.KVP_TIER_HOST][C.KVP_PURPOSE_OTHER] = C.uint64_t(rows)
	m.reserved[C.KVP_TIER_HOST][C.KVP_PURPOSE_OTHER] = C.uint64_t(rows)
	m.peak[C.KVP_TIER_HOST] = C.uint64_t(held + rows)
	if layer == -1 {
		m.peak[C.KVP_TIER_HOST] = C.uint64_t(c.books.peak)
	}
	m.unquantized = C.uint64_t(used)
	return nil
}
