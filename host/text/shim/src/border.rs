// SPDX-License-Identifier: Apache-2.0
//! The C border: views in, owned buffers out, and `guard`, which turns errors and panics into text for the caller.

use std::cell::RefCell;
use std::ffi::c_char;
use std::panic::{catch_unwind, set_hook, AssertUnwindSafe};
use std::sync::Once;

#[repr(C)]
#[derive(Clone, Copy)]
pub struct View {
    data: *const c_char,
    size: usize,
}

impl View {
    /// # Safety
    /// `data` points to `size` readable bytes that outlive `'a`, or `size` is 0.
    pub unsafe fn bytes<'a>(self) -> &'a [u8] {
        if self.size == 0 || self.data.is_null() {
            return &[];
        }
        std::slice::from_raw_parts(self.data.cast(), self.size)
    }

    /// # Safety
    /// As `bytes`.
    pub unsafe fn text<'a>(self) -> Result<&'a str, String> {
        std::str::from_utf8(self.bytes()).map_err(|e| format!("not valid UTF-8: {e}"))
    }
}

/// An owned array handed to C. `data` is null when `size` is 0.
#[repr(C)]
pub struct Owned<T> {
    data: *mut T,
    size: usize,
}

impl<T> Owned<T> {
    pub fn new(items: Vec<T>) -> Self {
        let size = items.len();
        let data = if size == 0 { std::ptr::null_mut() } else { Box::into_raw(items.into_boxed_slice()).cast() };
        Self { data, size }
    }

    unsafe fn free(this: *mut Self) {
        if let Some(owned) = this.as_mut() {
            if !owned.data.is_null() {
                drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(owned.data, owned.size)));
            }
            *owned = Self { data: std::ptr::null_mut(), size: 0 };
        }
    }
}

pub type Bytes = Owned<u8>;
pub type Ids = Owned<u32>;

#[no_mangle]
pub unsafe extern "C" fn kvtext_bytes_free(bytes: *mut Bytes) {
    Bytes::free(bytes);
}

#[no_mangle]
pub unsafe extern "C" fn kvtext_ids_free(ids: *mut Ids) {
    Ids::free(ids);
}

thread_local! {
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs `body`; a panic comes back as an error with its message. The default panic hook would print to stderr, which a
/// library must not, so the hook of this copy of Rust's std is replaced once by one that keeps the message.
pub fn catch<T>(body: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        set_hook(Box::new(|info| {
            let payload = info.payload();
            let text = payload.downcast_ref::<String>().map(String::as_str).or(payload.downcast_ref::<&str>().copied());
            let _ = PANIC.try_with(|p| *p.borrow_mut() = text.unwrap_or("panic").to_string());
        }));
    });
    catch_unwind(AssertUnwindSafe(body))
        .unwrap_or_else(|_| Err(format!("internal error: {}", PANIC.with(|p| std::mem::take(&mut *p.borrow_mut())))))
}

/// `catch` for functions of the form "0, or 1 and *error": on success the value goes to `out`.
///
/// # Safety
/// `out` is valid for writing one `T`; `error` is null or valid for writing.
pub unsafe fn guard<T>(out: *mut T, error: *mut Bytes, body: impl FnOnce() -> Result<T, String>) -> i32 {
    match catch(body) {
        Ok(value) => {
            out.write(value);
            0
        }
        Err(message) => {
            if !error.is_null() {
                error.write(Bytes::new(message.into_bytes()));
            }
            1
        }
    }
}
