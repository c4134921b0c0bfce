// SPDX-License-Identifier: Apache-2.0
//! An exact cache for full attention: it keeps K and V as they came and lends them out again; the host attends.
//!
//! Whatever can fail, checks and memory, comes before the first change.

use crate::abi::*;
use crate::storage::*;
use std::ffi::CStr;
use std::sync::atomic::Ordering;
use std::sync::Arc;

/// What create, probe and plan agree on.
pub struct Wish {
    shapes: Vec<Shape>,
    dtype: DType,
    owner: u64,
    grow: i64,
    panic_at: i64,
}

impl Wish {
    /// # Safety
    /// What `create` points at is as the ABI says.
    pub unsafe fn check(create: &Create) -> Result<Wish> {
        let d = create.dtype;
        let mut wish = Wish {
            shapes: Vec::new(),
            dtype: d,
            owner: create.owner,
            grow: 64,
            panic_at: -1,
        };
        for i in 0..create.n_options {
            let option = &*create.options.add(i);
            match CStr::from_ptr(option.key).to_str() {
                Ok("grow_tokens") => wish.grow = option.integer.max(1),
                Ok("panic_at") => wish.panic_at = option.integer,
                key => {
                    return fail(
                        INVALID_ARGUMENT,
                        format!("exact_rust has no option `{}`", key.unwrap_or("?")),
                    )
                }
            }
        }
        if create.device_type != DEVICE_CPU {
            let text = format!(
                "exact_rust keeps K/V in host memory; device type {} is not the CPU",
                create.device_type
            );
            return fail(UNSUPPORTED, text);
        }
        if !matches!(
            (d.code, d.bits, d.lanes),
            (FLOAT, 32, 1) | (FLOAT, 16, 1) | (BFLOAT, 16, 1)
        ) {
            let text = format!("type code {} of {} bits", d.code, d.bits);
            return fail(
                UNSUPPORTED,
                format!("exact_rust stores float32, float16 and bfloat16; not {text}"),
            );
        }
        if !create.quantizer_key.is_null() || !create.quantizer_value.is_null() {
            return fail(UNSUPPORTED, "exact_rust does not quantize; it takes no `backend`");
        }
        for i in 0..create.n_layers {
            let l = read(
                create
                    .layers
                    .cast::<u8>()
                    .add(i * create.layer_stride)
                    .cast::<LayerSpec>(),
            );
            let name = l.model_layer;
            if l.kind != LAYER_FULL || l.flags & LAYER_SHARED != 0 || l.index_dim != 0 {
                let text = format!("layer {name} is something else (kind {})", l.kind);
                return fail(UNSUPPORTED, format!("exact_rust serves plain full attention; {text}"));
            }
            if l.kv_heads < 1 || l.key_dim < 1 || l.value_dim < 1 {
                let text = format!(
                    "layer {name} has {} heads of {} and {}",
                    l.kv_heads, l.key_dim, l.value_dim
                );
                return fail(INVALID_ARGUMENT, text);
            }
            let dim = [i64::from(l.key_dim), i64::from(l.value_dim)];
            wish.shapes.push(Shape {
                heads: i64::from(l.kv_heads),
                dim,
                element: i64::from(d.bits) / 8,
            });
        }
        Ok(wish)
    }

    pub fn info(&self) -> Info {
        Info {
            flags: PER_LAYER_VIEWS,
            max_rollback: -1,
            token_block: 1,
            ..empty()
        }
    }

    pub fn plan(&self, batch: i64, tokens: i64) -> Result<Memory> {
        let mut m: Memory = empty();
        let sum = |tokens| {
            self.shapes
                .iter()
                .try_fold(0u64, |sum, s| sum.checked_add(s.bytes(batch, tokens)?))
        };
        let sizes = if batch < 0 || !(0..=i64::MAX / 4).contains(&tokens) {
            None
        } else {
            sum(tokens)
                .zip(sum(capacity_for(self.grow, tokens)))
                .filter(|(_, held)| *held < u64::MAX / 4)
        };
        let Some((used, held)) = sizes else {
            return fail(INVALID_ARGUMENT, format!("plan for {batch} rows of {tokens} tokens"));
        };
        let rows = if tokens > 0 {
            batch as u64 * (self.shapes.len() * size_of::<Row>()) as u64
        } else {
            0
        };
        m.used[TIER_HOST][PURPOSE_KV] = used;
        m.reserved[TIER_HOST][PURPOSE_KV] = held;
        m.used[TIER_HOST][PURPOSE_OTHER] = rows;
        m.reserved[TIER_HOST][PURPOSE_OTHER] = rows;
        // gather fills new blocks before it gives the old ones back
        m.peak[TIER_HOST] = 2 * (held + rows);
        m.unquantized = used;
        Ok(m)
    }
}

pub struct Cache {
    wish: Wish,
    books: Arc<Books>,
    batch: i64,  // 0 = none yet
    rows: Block, // Row [layers][batch]
    layers: Vec<Storage>,
    updates: i64,
}

impl Cache {
    pub fn new(wish: Wish) -> Cache {
        let books = Arc::new(Books::default());
        let layers = wish.shapes.iter().map(|s| Storage::none(*s, &books)).collect();
        Cache {
            batch: 0,
            rows: Block::none(&books),
            layers,
            updates: 0,
            books,
            wish,
        }
    }

    fn layer(&self, layer: i32) -> Result<usize> {
        match usize::try_from(layer) {
            Ok(l) if l < self.layers.len() => Ok(l),
            _ => fail(INVALID_ARGUMENT, format!("layer {layer} of {}", self.layers.len())),
        }
    }

    fn take_rows(&self, batch: i64) -> Result<Block> {
        let bytes = batch as u64 * (self.layers.len() * size_of::<Row>()) as u64;
        let block = Block::take(&self.books, self.wish.owner, PURPOSE_OTHER, Some(bytes))?;
        unsafe { std::ptr::write_bytes(block.data(), 0, bytes as usize) };
        Ok(block)
    }

    fn rows(&self, layer: usize) -> &[Row] {
        rows_in(&self.rows, self.batch, layer)
    }

    fn rows_mut(&mut self, layer: usize) -> &mut [Row] {
        rows_in_mut(&mut self.rows, self.batch, layer)
    }

    fn longest(&self, layer: usize) -> i64 {
        self.rows(layer).iter().map(|r| r.seen).max().unwrap_or(0)
    }

    fn is_empty(&self) -> bool {
        (0..self.layers.len()).all(|l| self.longest(l) == 0)
    }

    /// # Safety
    /// The arrays of `out` have `n_rows` places.
    pub unsafe fn lengths(&self, layer: i32, query_len: i64, out: &mut Lengths) -> Result<()> {
        let l = self.layer(layer)?;
        if query_len < 0 {
            return fail(INVALID_ARGUMENT, format!("lengths for {query_len} tokens"));
        }
        let wanted = !out.row_seen.is_null() || !out.row_pad.is_null();
        if wanted && self.batch > 0 && out.n_rows > self.batch as usize {
            return fail(
                INVALID_ARGUMENT,
                format!("n_rows is {}; the cache holds {} rows", out.n_rows, self.batch),
            );
        }
        out.seen = self.longest(l);
        out.max = -1;
        out.kv_len = out.seen + query_len;
        out.kv_offset = 0;
        for b in 0..out.n_rows {
            let row = self.rows(l).get(b).copied().unwrap_or_default();
            if !out.row_seen.is_null() {
                *out.row_seen.add(b) = row.seen;
            }
            if !out.row_pad.is_null() {
                *out.row_pad.add(b) = row.pad;
            }
        }
        Ok(())
    }

    /// K or V of an update: [batch, heads, tokens, dim] of the cache's type, last stride 1.
    fn check_tensor(&self, layer: usize, part: usize, t: &Tensor) -> Result<()> {
        let (s, name) = (&self.layers[layer].shape, ["k", "v"][part]);
        if t.ndim != 4
            || (t.shape[1], t.shape[3]) != (s.heads, s.dim[part])
            || t.shape[0] < 1
            || t.shape[2] < 0
            || (t.strides[3] != 1 && t.shape[3] > 1)
        {
            let text = format!("[batch, {}, tokens, {}] with last stride 1", s.heads, s.dim[part]);
            return fail(INVALID_ARGUMENT, format!("{name} is not {text}"));
        }
        if t.dtype != self.wish.dtype || t.device_type != DEVICE_CPU {
            let text = format!("{name} is not of the type and device that the cache was made for");
            return fail(INVALID_ARGUMENT, text);
        }
        Ok(())
    }

    fn check_rows(&self, layer: usize, tokens: i64, pad: &[i64], count: &[i64]) -> Result<()> {
        for (b, (pad, count)) in pad.iter().zip(count).enumerate() {
            if !(0..=tokens).contains(count) || !(0..=*count).contains(pad) {
                return fail(
                    INVALID_ARGUMENT,
                    format!("row {b}: count {count} and pad {pad} of {tokens} tokens"),
                );
            }
            let row = self.rows(layer).get(b).copied().unwrap_or_default();
            if *pad > 0 && row.seen > row.pad {
                return fail(INVALID_ARGUMENT, format!("row {b}: padding behind tokens"));
            }
        }
        Ok(())
    }

    /// Makes room for `tokens` more in the layer, and first, in an empty cache, for another batch. All or nothing.
    fn make_room(&mut self, layer: usize, batch: i64, tokens: i64, call: &Call) -> Result<()> {
        let fresh = batch != self.batch;
        let need = tokens + if fresh { 0 } else { self.longest(layer) };
        let capacity = capacity_for(self.wish.grow, need);
        if !fresh && capacity <= self.layers[layer].capacity {
            return Ok(());
        }
        if call.flags & (CALL_PREPARED | CALL_CAPTURE) != 0 {
            let text = format!("{need} tokens need memory, which a prepared call may not take");
            return fail(INVALID_STATE, text);
        }
        let rows = if fresh { Some(self.take_rows(batch)?) } else { None };
        let shape = self.layers[layer].shape;
        let mut storage = Storage::take(shape, &self.books, self.wish.owner, batch, capacity)?;
        if let Some(rows) = rows {
            self.rows = rows;
            self.batch = batch;
            for l in &mut self.layers {
                *l = Storage::none(l.shape, &self.books);
            }
        } else {
            for b in 0..batch {
                let seen = self.rows(layer)[b as usize].seen;
                storage.copy_row(b, &self.layers[layer], b, seen);
            }
        }
        self.layers[layer] = storage;
        Ok(())
    }

    /// The views, if `views` asks for them.
    ///
    /// # Safety
    /// What `a` points at is as the ABI says.
    pub unsafe fn update(&mut self, call: &Call, a: &UpdateArgs, views: bool) -> Result<Option<[Tensor; 2]>> {
        let number = self.updates;
        self.updates += 1;
        if number == self.wish.panic_at {
            panic!("update {number} panics, as option panic_at asks");
        }
        let layer = self.layer(a.layer)?;
        let mut tokens = 0;
        let mut batch = self.batch;
        let given = match (a.k.as_ref(), a.v.as_ref()) {
            (Some(k), Some(v)) => {
                self.check_tensor(layer, 0, k)?;
                self.check_tensor(layer, 1, v)?;
                if (k.shape[0], k.shape[2]) != (v.shape[0], v.shape[2]) {
                    return fail(INVALID_ARGUMENT, "k and v differ in batch or tokens");
                }
                (batch, tokens) = (k.shape[0], k.shape[2]);
                Some([k, v])
            }
            (None, None) => None,
            _ => return fail(INVALID_ARGUMENT, "K and V come together or not at all"),
        };
        let kv_len = self.longest(layer) + tokens;
        if let Some(given) = given.filter(|_| tokens > 0) {
            if batch != self.batch && !self.is_empty() {
                return fail(
                    INVALID_ARGUMENT,
                    format!("the batch is {batch}; the cache holds {} rows", self.batch),
                );
            }
            let per_row = |p: *const i64, otherwise: i64| match p.is_null() {
                true => vec![otherwise; batch as usize],
                false => std::slice::from_raw_parts(p, batch as usize).to_vec(),
            };
            let (pads, counts) = (per_row(a.pad, 0), per_row(a.count, tokens));
            self.check_rows(layer, tokens, &pads, &counts)?;
            self.make_room(layer, batch, tokens, call)?;
            for b in 0..batch {
                let (pad, count) = (pads[b as usize], counts[b as usize]);
                let row = &mut self.rows_mut(layer)[b as usize];
                let first = row.seen;
                row.seen += count;
                row.pad += pad;
                let storage = &mut self.layers[layer];
                storage.zero(b, first..first + pad);
                storage.store(0, given[0], b, pad..count, first + pad);
                storage.store(1, given[1], b, pad..count, first + pad);
            }
        }
        if !views {
            return Ok(None);
        }
        for b in 0..self.batch {
            let seen = self.rows(layer)[b as usize].seen;
            self.layers[layer].zero(b, seen..kv_len);
        }
        let view = |part| self.layers[layer].view(part, self.wish.dtype, kv_len);
        Ok(Some([view(0), view(1)]))
    }

    pub fn reset(&mut self) {
        for l in 0..self.layers.len() {
            self.rows_mut(l).fill(Row::default());
        }
    }

    pub fn crop(&mut self, call: &Call, n_remove: &[i64]) -> Result<()> {
        let [n] = *n_remove else {
            return fail(UNSUPPORTED, "exact_rust drops the same number of tokens from every row");
        };
        if n < 0 {
            return fail(INVALID_ARGUMENT, format!("crop of {n} tokens"));
        }
        if call.flags & CALL_CHECK != 0 {
            return Ok(());
        }
        for b in 0..self.batch as usize {
            // in the middle of a step the layers differ: the newest tokens are those of the longest
            let longest = (0..self.layers.len()).map(|l| self.rows(l)[b].seen).max().unwrap_or(0);
            let left = longest.saturating_sub(n).max(0);
            for l in 0..self.layers.len() {
                let row = &mut self.rows_mut(l)[b];
                row.seen = row.seen.min(left);
                row.pad = row.pad.min(row.seen);
            }
        }
        Ok(())
    }

    /// A cache of the same make that holds the rows `src` of this one, -1 an empty row.
    fn gathered(&self, src: &[i64], books: &Arc<Books>, owner: u64) -> Result<Cache> {
        let n = src.len() as i64;
        let wish = Wish {
            shapes: self.wish.shapes.clone(),
            owner,
            ..self.wish
        };
        let mut next = Cache {
            books: books.clone(),
            updates: self.updates,
            ..Cache::new(wish)
        };
        next.rows = next.take_rows(n)?;
        next.batch = n;
        for (l, from) in self.layers.iter().enumerate() {
            next.layers[l] = Storage::take(from.shape, books, owner, n, from.capacity)?;
            for (b, s) in src.iter().enumerate().filter(|(_, s)| **s >= 0 && self.batch > 0) {
                let row = self.rows(l)[*s as usize];
                next.rows_mut(l)[b] = row;
                next.layers[l].copy_row(b as i64, from, *s, row.seen);
            }
        }
        Ok(next)
    }

    pub fn gather(&mut self, call: &Call, src: &[i64]) -> Result<()> {
        if src.is_empty() {
            return fail(INVALID_ARGUMENT, "gather to 0 rows");
        }
        if let Some(i) = src.iter().position(|s| *s < -1 || (self.batch > 0 && *s >= self.batch)) {
            let text = format!("src_rows[{i}] is {}; the cache holds {} rows", src[i], self.batch);
            return fail(INVALID_ARGUMENT, text);
        }
        if call.flags & (CALL_PREPARED | CALL_CAPTURE) != 0 {
            return fail(INVALID_STATE, "gather needs memory, which a prepared call may not take");
        }
        if call.flags & CALL_CHECK == 0 {
            *self = self.gathered(src, &self.books, self.wish.owner)?;
        }
        Ok(())
    }

    pub fn try_clone(&self, owner: u64) -> Result<Cache> {
        if self.batch == 0 {
            let wish = Wish {
                shapes: self.wish.shapes.clone(),
                owner,
                ..self.wish
            };
            return Ok(Cache {
                updates: self.updates,
                ..Cache::new(wish)
            });
        }
        let all: Vec<i64> = (0..self.batch).collect();
        self.gathered(&all, &Arc::new(Books::default()), owner)
    }

    pub fn memory(&self, layer: i32) -> Result<Memory> {
        let mut m: Memory = empty();
        let range = if layer == -1 {
            0..self.layers.len()
        } else {
            self.layer(layer).map(|l| l..l + 1)?
        };
        for l in range {
            let storage = &self.layers[l];
            let seen: i64 = self.rows(l).iter().map(|r| r.seen).sum();
            m.reserved[TIER_HOST][PURPOSE_KV] += storage.block.bytes();
            m.used[TIER_HOST][PURPOSE_KV] += storage.shape.bytes(1, seen).unwrap_or(0);
            m.reserved[TIER_HOST][PURPOSE_OTHER] += self.batch as u64 * size_of::<Row>() as u64;
        }
        m.used[TIER_HOST][PURPOSE_OTHER] = m.reserved[TIER_HOST][PURPOSE_OTHER];
        m.unquantized = m.used[TIER_HOST][PURPOSE_KV];
        m.peak[TIER_HOST] = match layer {
            -1 => self.books.peak.load(Ordering::Relaxed),
            _ => m.reserved[TIER_HOST].iter().sum(),
        };
        Ok(m)
    }
}

fn rows_in(block: &Block, batch: i64, layer: usize) -> &[Row] {
    match block.data().is_null() {
        true => &[],
        false => unsafe {
            std::slice::from_raw_parts(block.data().cast::<Row>().add(layer * batch as usize), batch as usize)
        },
    }
}

fn rows_in_mut(block: &mut Block, batch: i64, layer: usize) -> &mut [Row] {
    match block.data().is_null() {
        true => &mut [],
        false => unsafe {
            std::slice::from_raw_parts_mut(block.data().cast::<Row>().add(layer * batch as usize), batch as usize)
        },
    }
}
