// SPDX-License-Identifier: Apache-2.0
//! The smallest complete kvplug quantizer, in Rust: the border.
//!
//! Every function that C calls runs inside `guard`: what goes wrong becomes a status and a text, and a panic becomes
//! INTERNAL. An instance that panicked answers POISONED from then on. Any number of threads may use one instance.

mod abi;
mod element;
mod int8;

use abi::*;
use int8::{fail, spec_of, Fault, Quantizer, Result, DTYPES};
use std::ffi::{c_char, c_void, CStr};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::Once;

const KIND: &str = "example/int8_rust";

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
    quantizer: Quantizer,
    panic_in: AtomicI64, // quantize calls until the one that panics; below 0: none
    poisoned: AtomicBool,
}

/// Runs `body` on an instance that is not poisoned.
unsafe fn on(handle: Handle, err: *mut Error, body: impl FnOnce(&Instance) -> Result<()>) -> Status {
    let instance = &*handle.cast::<Instance>();
    let status = guard(err, || match instance.poisoned.load(Ordering::Acquire) {
        true => fail(
            POISONED,
            format!("{KIND}: an earlier call lost this quantizer; only destroy is possible"),
        ),
        false => body(instance),
    });
    if status >= 30 {
        instance.poisoned.store(true, Ordering::Release);
    }
    status
}

/// The array of a caller; NULL for none is allowed.
unsafe fn slice<'a, T>(first: *const T, n: usize) -> &'a [T] {
    match n {
        0 => &[],
        _ => std::slice::from_raw_parts(first, n),
    }
}

unsafe fn panic_at(create: &Create) -> Result<i64> {
    let mut at = -1;
    for option in slice(create.options, create.n_options) {
        match CStr::from_ptr(option.key).to_string_lossy().as_ref() {
            "panic_at" if option.integer >= -1 => at = option.integer,
            "panic_at" => return fail(INVALID_ARGUMENT, format!("{KIND}: panic_at is {}", option.integer)),
            key => return fail(INVALID_ARGUMENT, format!("{KIND} has no option `{key}`")),
        }
    }
    Ok(at)
}

unsafe fn check_call(call: *const Call) -> Result<()> {
    match read(call).device_type {
        DEVICE_CPU => Ok(()),
        other => fail(
            INVALID_ARGUMENT,
            format!("{KIND} works on the CPU; the call is for device type {other}"),
        ),
    }
}

unsafe extern "C" fn spec_count() -> u32 {
    DTYPES.len() as u32
}

unsafe extern "C" fn spec_range(i: u32, low: *mut Spec, high: *mut Spec, err: *mut Error) -> Status {
    guard(err, || match DTYPES.get(i as usize) {
        Some(dtype) => {
            write(low, &spec_of(*dtype));
            write(high, &spec_of(*dtype));
            Ok(())
        }
        None => fail(INVALID_ARGUMENT, format!("{KIND}: range {i} of {}", DTYPES.len())),
    })
}

unsafe extern "C" fn create(create: *const Create, out: *mut Handle, err: *mut Error) -> Status {
    guard(err, || {
        let create = read(create);
        let instance = Instance {
            quantizer: Quantizer::new(&create)?,
            panic_in: AtomicI64::new(panic_at(&create)?),
            poisoned: AtomicBool::new(false),
        };
        *out = Box::into_raw(Box::new(instance)).cast();
        Ok(())
    })
}

unsafe extern "C" fn destroy(instance: Handle) {
    if !instance.is_null() {
        drop(Box::from_raw(instance.cast::<Instance>()));
    }
}

unsafe extern "C" fn describe(this: Handle, out: *mut Spec, err: *mut Error) -> Status {
    on(this, err, |instance| {
        write(out, &instance.quantizer.spec());
        Ok(())
    })
}

unsafe extern "C" fn plan(
    this: Handle,
    batch: i64,
    kv_heads: i64,
    tokens: i64,
    head_dim: i64,
    out: *mut Plan,
    err: *mut Error,
) -> Status {
    on(this, err, |instance| {
        write(out, &instance.quantizer.plan([batch, kv_heads, tokens, head_dim])?);
        Ok(())
    })
}

unsafe extern "C" fn quantize(
    this: Handle,
    call: *const Call,
    input: *const Tensor,
    flags: u32,
    parts: *const Part,
    n_parts: u32,
    _workspace: *mut c_void,
    err: *mut Error,
) -> Status {
    on(this, err, |instance| {
        check_call(call)?;
        if instance.panic_in.fetch_sub(1, Ordering::Relaxed) == 0 {
            panic!("option panic_at");
        }
        instance
            .quantizer
            .quantize(&*input, flags, slice(parts, n_parts as usize))
    })
}

unsafe extern "C" fn dequantize(
    this: Handle,
    call: *const Call,
    parts: *const Part,
    n_parts: u32,
    out: *mut Tensor,
    err: *mut Error,
) -> Status {
    on(this, err, |instance| {
        check_call(call)?;
        instance.quantizer.dequantize(slice(parts, n_parts as usize), &*out)
    })
}

unsafe extern "C" fn error_bound(this: Handle, out: *mut f64, err: *mut Error) -> Status {
    on(this, err, |instance| {
        *out = instance.quantizer.error_bound();
        Ok(())
    })
}

static IFACE: QuantizerIface = QuantizerIface {
    struct_size: size_of::<QuantizerIface>(),
    spec_count,
    spec_range,
    create,
    destroy,
    describe,
    plan,
    quantize,
    dequantize,
    error_bound,
    get_extension: None, // the cache unpacks what it attends to
};

const fn c_text(text: &'static str) -> *const c_char {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(text) => text.as_ptr(),
        Err(_) => panic!("not a C text"),
    }
}

static DESCRIPTOR: Descriptor = Descriptor {
    struct_size: size_of::<Descriptor>(),
    id: c_text("example/int8_rust\0"),
    iface_id: c_text("kvp.quantizer/1\0"),
    iface: &IFACE,
    summary: c_text("8 bits, symmetric, a scale for each token and head\0"),
    options_schema: c_text(concat!(include_str!("../int8_rust.options.json"), "\0")),
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
    id: c_text("example.quantizer-rust\0"),
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
            return fail(UNSUPPORTED, format!("example.quantizer-rust {text}"));
        }
        // A library prints nothing; the text of a panic goes into the error.
        QUIET.call_once(|| std::panic::set_hook(Box::new(|_| {})));
        *out = &PLUGIN;
        Ok(())
    })
}
