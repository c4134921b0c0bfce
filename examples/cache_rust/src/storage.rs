// SPDX-License-Identifier: Apache-2.0
//! What the cache holds: blocks of the host's memory, and one layer's keys and values in such a block.
//!
//! A block gives itself back when it is dropped, so that whatever ends early leaves nothing behind.

use crate::abi::*;
use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::Arc;

/// Set by the entry.
pub static HOST: AtomicPtr<Host> = AtomicPtr::new(std::ptr::null_mut());

/// Why a call fails.
#[derive(Debug)]
pub struct Fault {
    pub status: Status,
    pub text: String,
}

pub type Result<T> = std::result::Result<T, Fault>;

pub fn fail<T>(status: Status, text: impl Into<String>) -> Result<T> {
    Err(Fault {
        status,
        text: text.into(),
    })
}

/// Bytes held now and at most, of all blocks of one instance.
#[derive(Default)]
pub struct Books {
    pub held: AtomicU64,
    pub peak: AtomicU64,
}

/// Memory from the host, booked on the instance's owner token.
pub struct Block {
    mem: Mem,
    data: *mut u8,
    books: Arc<Books>,
}

impl Block {
    pub fn none(books: &Arc<Books>) -> Block {
        let mem = Mem {
            struct_size: size_of::<Mem>(),
            owner: 0,
            bytes: 0,
            align: 64,
            tier: TIER_HOST as i32,
            purpose: 0,
            device_type: DEVICE_CPU,
            device_id: 0,
            stream: std::ptr::null_mut(),
        };
        Block {
            mem,
            data: std::ptr::null_mut(),
            books: books.clone(),
        }
    }

    /// Uninitialised; `bytes` None is more than any memory.
    pub fn take(books: &Arc<Books>, owner: u64, purpose: usize, bytes: Option<u64>) -> Result<Block> {
        let mut block = Block::none(books);
        block.mem.owner = owner;
        block.mem.purpose = purpose as i32;
        let wanted = bytes.unwrap_or(u64::MAX);
        let mut mem = block.mem;
        mem.bytes = wanted;
        let mut data: *mut c_void = std::ptr::null_mut();
        let status = unsafe {
            let host = &*HOST.load(Ordering::Acquire);
            (host.mem_alloc)(host.ctx, &mem, &mut data, std::ptr::null_mut())
        };
        if status != OK {
            return fail(status, format!("the host has no {wanted} bytes"));
        }
        block.mem = mem;
        block.data = data.cast();
        let held = books.held.fetch_add(wanted, Ordering::Relaxed) + wanted;
        books.peak.fetch_max(held, Ordering::Relaxed);
        Ok(block)
    }

    pub fn bytes(&self) -> u64 {
        self.mem.bytes
    }

    pub fn data(&self) -> *mut u8 {
        self.data
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if !self.data.is_null() {
            unsafe {
                let host = &*HOST.load(Ordering::Acquire);
                (host.mem_free)(host.ctx, &self.mem, self.data.cast());
            }
        }
        self.books.held.fetch_sub(self.mem.bytes, Ordering::Relaxed);
    }
}

/// The lengths of a row in one layer: slots taken, and how many of these are leading padding.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Row {
    pub seen: i64,
    pub pad: i64,
}

/// The first of `grow` * 1, 2, 4, … that holds the tokens: a function of their number alone, so that plan can tell it.
pub fn capacity_for(grow: i64, tokens: i64) -> i64 {
    if tokens <= 0 {
        return 0;
    }
    let mut capacity = grow;
    while capacity < tokens {
        capacity *= 2;
    }
    capacity
}

/// What a layer is; no storage.
#[derive(Clone, Copy)]
pub struct Shape {
    pub heads: i64,
    pub dim: [i64; 2], // of K, of V
    pub element: i64,  // bytes
}

impl Shape {
    pub fn bytes(&self, batch: i64, tokens: i64) -> Option<u64> {
        ((self.dim[0] + self.dim[1]) * self.element)
            .checked_mul(self.heads)?
            .checked_mul(batch)?
            .checked_mul(tokens)
            .map(|bytes| bytes as u64)
    }
}

/// Keys and values of one layer: K `[batch, heads, capacity, dim[0]]`, and behind it V likewise.
pub struct Storage {
    pub shape: Shape,
    pub batch: i64,
    pub capacity: i64,
    pub block: Block,
}

impl Storage {
    pub fn none(shape: Shape, books: &Arc<Books>) -> Storage {
        Storage {
            shape,
            batch: 0,
            capacity: 0,
            block: Block::none(books),
        }
    }

    pub fn take(shape: Shape, books: &Arc<Books>, owner: u64, batch: i64, capacity: i64) -> Result<Storage> {
        let block = Block::take(books, owner, PURPOSE_KV, shape.bytes(batch, capacity))?;
        Ok(Storage {
            shape,
            batch,
            capacity,
            block,
        })
    }

    /// Bytes of one slot of K (part 0) or V (part 1).
    fn line(&self, part: usize) -> i64 {
        self.shape.dim[part] * self.shape.element
    }

    /// Where a slot of K or V lies. The block must have been taken.
    pub fn at(&self, part: usize, b: i64, h: i64, slot: i64) -> *mut u8 {
        let s = &self.shape;
        let before = if part == 0 {
            0
        } else {
            self.batch * s.heads * self.capacity * self.line(0)
        };
        let offset = before + ((b * s.heads + h) * self.capacity + slot) * self.line(part);
        unsafe { self.block.data().offset(offset as isize) }
    }

    /// Copies the first tokens of row `from_row` of `from` to row `to_row`.
    pub fn copy_row(&mut self, to_row: i64, from: &Storage, from_row: i64, tokens: i64) {
        for part in 0..2 {
            for h in (0..self.shape.heads).filter(|_| tokens > 0) {
                let (to, from) = (self.at(part, to_row, h, 0), from.at(part, from_row, h, 0));
                unsafe { std::ptr::copy_nonoverlapping(from, to, (tokens * self.line(part)) as usize) };
            }
        }
    }

    pub fn zero(&mut self, b: i64, slots: std::ops::Range<i64>) {
        for part in 0..2 {
            for h in (0..self.shape.heads).filter(|_| !slots.is_empty()) {
                let bytes = (slots.end - slots.start) * self.line(part);
                unsafe { std::ptr::write_bytes(self.at(part, b, h, slots.start), 0, bytes as usize) };
            }
        }
    }

    /// Copies `tokens` of row `b` of the call to the slots from `slot` on.
    ///
    /// # Safety
    /// `t` is `[batch, heads, tokens, dim]` of the cache's type and has been checked.
    pub unsafe fn store(&mut self, part: usize, t: &Tensor, b: i64, tokens: std::ops::Range<i64>, slot: i64) {
        let first = tokens.start;
        for h in 0..self.shape.heads {
            for i in tokens.clone() {
                let offset = (b * t.strides[0] + h * t.strides[1] + i * t.strides[2]) * self.shape.element;
                let from = t.data.offset(offset as isize);
                std::ptr::copy_nonoverlapping(from, self.at(part, b, h, slot + i - first), self.line(part) as usize);
            }
        }
    }

    /// A borrowed view of the first slots of all rows.
    pub fn view(&self, part: usize, dtype: DType, kv_len: i64) -> Tensor {
        let s = &self.shape;
        let taken = !self.block.data().is_null();
        let by_head = self.capacity * s.dim[part];
        Tensor {
            data: if taken {
                self.at(part, 0, 0, 0)
            } else {
                std::ptr::null_mut()
            },
            device_type: DEVICE_CPU,
            device_id: 0,
            ndim: 4,
            dtype,
            flags: READ_ONLY,
            reserved: 0,
            shape: [self.batch, s.heads, kv_len, s.dim[part], 0, 0, 0, 0],
            strides: [s.heads * by_head, by_head, s.dim[part], 1, 0, 0, 0, 0],
        }
    }
}
