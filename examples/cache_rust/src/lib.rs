// SPDX-License-Identifier: Apache-2.0
//! The smallest complete kvplug cache, in Rust: the border.
//!
//! Every function that C calls runs inside `guard`: what goes wrong becomes a status and a text, and a panic becomes
//! INTERNAL. An instance that panicked answers POISONED until it is reset.

mod abi;
mod cache;
mod storage;

use abi::*;
use cache::{Cache, Wish};
use std::ffi::{c_char, c_void, CStr};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::Ordering;
use std::sync::Once;
use storage::{fail, Fault, Result, HOST};

const KIND: &str = "example/exact_rust";

/// Writes the text of a failure, cut at a character, as the caller's buffer allows.
unsafe fn report(err: *mut Error, fault: &Fault) {
    let Some(err) = err.as_mut() else { return };
    err.code = fault.status;
    err.native_code = 0;
    err.len = fault.text.len();
    if err.buf.is_null() || err.cap == 0 {
        return;
    }
    let mut keep = fault.text.len().min(err.cap - 1);
    while !fault.text.is_char_boundary(keep) {
        keep -= 1;
    }
    std::ptr::copy_nonoverlapping(fault.text.as_ptr().cast::<c_char>(), err.buf, keep);
    *err.buf.add(keep) = 0;
}

/// Runs `body`; nothing unwinds out of it.
unsafe fn guard(err: *mut Error, body: impl FnOnce() -> Result<()>) -> Status {
    let fault = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return OK,
        Ok(Err(fault)) => fault,
        Err(panic) => {
            let text = match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
                (Some(text), _) => text,
                (_, Some(text)) => text.as_str(),
                _ => "without a text",
            };
            Fault {
                status: INTERNAL,
                text: format!("{KIND} panicked: {text}"),
            }
        }
    };
    report(err, &fault);
    fault.status
}

struct Instance {
    cache: Cache,
    poisoned: bool,
}

/// Runs `body` on an instance that is not poisoned.
unsafe fn on(handle: Handle, err: *mut Error, body: impl FnOnce(&mut Cache) -> Result<()>) -> Status {
    let instance = &mut *handle.cast::<Instance>();
    let (cache, poisoned) = (&mut instance.cache, instance.poisoned);
    let status = guard(err, || match poisoned {
        true => fail(
            POISONED,
            format!("{KIND}: an earlier call lost this cache; only reset and destroy are possible"),
        ),
        false => body(cache),
    });
    instance.poisoned |= status >= 30;
    status
}

fn handle(cache: Cache) -> Handle {
    Box::into_raw(Box::new(Instance { cache, poisoned: false })).cast()
}

unsafe extern "C" fn probe(create: *const Create, out: *mut Info, err: *mut Error) -> Status {
    guard(err, || {
        write(out, &Wish::check(&read(create))?.info());
        Ok(())
    })
}

unsafe extern "C" fn plan(create: *const Create, batch: i64, tokens: i64, out: *mut Memory, err: *mut Error) -> Status {
    guard(err, || {
        write(out, &Wish::check(&read(create))?.plan(batch, tokens)?);
        Ok(())
    })
}

unsafe extern "C" fn create(create: *const Create, out: *mut Handle, err: *mut Error) -> Status {
    guard(err, || {
        *out = handle(Cache::new(Wish::check(&read(create))?));
        Ok(())
    })
}

unsafe extern "C" fn destroy(instance: Handle) {
    if !instance.is_null() {
        guard(std::ptr::null_mut(), || {
            drop(Box::from_raw(instance.cast::<Instance>()));
            Ok(())
        });
    }
}

unsafe extern "C" fn lengths(this: Handle, layer: i32, query: i64, out: *mut Lengths, err: *mut Error) -> Status {
    on(this, err, |cache| {
        let mut answer = read(out);
        cache.lengths(layer, query, &mut answer)?;
        write(out, &answer);
        Ok(())
    })
}

unsafe extern "C" fn update(
    this: Handle,
    call: *const Call,
    args: *const UpdateArgs,
    out_k: *mut Tensor,
    out_v: *mut Tensor,
    err: *mut Error,
) -> Status {
    on(this, err, |cache| {
        if out_k.is_null() != out_v.is_null() {
            return fail(INVALID_ARGUMENT, "the views of K and V come together or not at all");
        }
        if let Some([k, v]) = cache.update(&read(call), &read(args), !out_k.is_null())? {
            *out_k = k;
            *out_v = v;
        }
        Ok(())
    })
}

unsafe extern "C" fn reset(this: Handle, _call: *const Call, err: *mut Error) -> Status {
    let instance = &mut *this.cast::<Instance>();
    let status = guard(err, || {
        instance.cache.reset();
        Ok(())
    });
    instance.poisoned = status != OK;
    status
}

unsafe extern "C" fn gather(this: Handle, call: *const Call, src: *const i64, n: i64, err: *mut Error) -> Status {
    on(this, err, |cache| match n {
        1.. => cache.gather(&read(call), std::slice::from_raw_parts(src, n as usize)),
        _ => fail(INVALID_ARGUMENT, format!("gather to {n} rows")),
    })
}

unsafe extern "C" fn crop(this: Handle, call: *const Call, n_remove: *const i64, n: i64, err: *mut Error) -> Status {
    on(this, err, |cache| match n {
        1.. => cache.crop(&read(call), std::slice::from_raw_parts(n_remove, n as usize)),
        _ => fail(INVALID_ARGUMENT, format!("crop with {n} counts")),
    })
}

unsafe extern "C" fn set_rollback(this: Handle, _call: *const Call, max_tokens: i64, err: *mut Error) -> Status {
    on(this, err, |_| match max_tokens {
        0.. => Ok(()), // crop of any depth always works
        _ => fail(INVALID_ARGUMENT, format!("rollback of {max_tokens} tokens")),
    })
}

unsafe extern "C" fn clone(this: Handle, _call: *const Call, owner: u64, out: *mut Handle, err: *mut Error) -> Status {
    on(this, err, |cache| {
        *out = handle(cache.try_clone(owner)?);
        Ok(())
    })
}

unsafe extern "C" fn memory(this: Handle, layer: i32, out: *mut Memory, err: *mut Error) -> Status {
    on(this, err, |cache| {
        write(out, &cache.memory(layer)?);
        Ok(())
    })
}

unsafe extern "C" fn get_extension(_id: *const c_char) -> *const c_void {
    std::ptr::null()
}

static IFACE: CacheIface = CacheIface {
    struct_size: size_of::<CacheIface>(),
    probe,
    plan,
    create,
    destroy,
    lengths,
    update,
    reset,
    gather,
    crop,
    set_rollback,
    clone,
    reserve: None,
    memory,
    counters: None,
    get_extension,
};

const fn c_text(text: &'static str) -> *const c_char {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text.as_ptr(),
        Err(_) => panic!("not a C text"),
    }
}

static DESCRIPTOR: Descriptor = Descriptor {
    struct_size: size_of::<Descriptor>(),
    id: c_text("example/exact_rust\0"),
    iface_id: c_text("kvp.cache/1\0"),
    iface: &IFACE,
    summary: c_text("exact cache in Rust: contiguous storage that doubles, attention by the host\0"),
    options_schema: c_text(concat!(include_str!("../exact_rust.options.json"), "\0")),
};

unsafe extern "C" fn descriptor(i: u32) -> *const Descriptor {
    match i {
        0 => &DESCRIPTOR,
        _ => std::ptr::null(),
    }
}

static PLUGIN: Plugin = Plugin {
    struct_size: size_of::<Plugin>(),
    abi_major: ABI_MAJOR,
    abi_minor: ABI_MINOR,
    min_host_minor: 1,
    reserved: 0,
    id: c_text("example.cache-rust\0"),
    version: c_text("0.1.0\0"),
    vendor: c_text("kvplug examples\0"),
    n_descriptors: 1,
    reserved1: 0,
    descriptor,
    quiesce: None,
};

/// The one exported function.
///
/// # Safety
/// Called by a host, as `<kvplug/plugin.h>` says.
#[no_mangle]
pub unsafe extern "C" fn kvp_plugin_entry_v0(host: *const Host, out: *mut *const Plugin, err: *mut Error) -> Status {
    static QUIET: Once = Once::new();
    guard(err, || {
        let (major, minor) = ((*host).abi_major, (*host).abi_minor);
        if major != ABI_MAJOR || minor < PLUGIN.min_host_minor {
            let text = format!("speaks plugin ABI {ABI_MAJOR}.{ABI_MINOR}, the host {major}.{minor}");
            return fail(UNSUPPORTED, format!("example.cache-rust {text}"));
        }
        // A library prints nothing; the text of a panic goes into the error.
        QUIET.call_once(|| std::panic::set_hook(Box::new(|_| {})));
        HOST.store(host.cast_mut(), Ordering::Release);
        *out = &PLUGIN;
        Ok(())
    })
}
