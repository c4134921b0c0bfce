// SPDX-License-Identifier: Apache-2.0
//! What this plugin needs of `<kvplug/abi.h>`, written down as Rust sees it; the sizes are checked at the end.
//!
//! Structs come from hosts of other versions: they are read through `read` and written through `write`, which go by their
//! `struct_size`.

use std::ffi::{c_char, c_void};

pub const ABI_MAJOR: u32 = 0;
pub const ABI_MINOR: u32 = 1;

pub type Status = i32;
pub const OK: Status = 0;
pub const UNSUPPORTED: Status = 10;
pub const INVALID_ARGUMENT: Status = 11;
pub const INTERNAL: Status = 31;
pub const POISONED: Status = 32;

pub const DEVICE_CPU: i32 = 1;
pub const READ_ONLY: u32 = 1;
pub const FORMAT_SYMMETRIC: i32 = 2;
pub const GROUP_HEAD_DIM: i32 = 2;
pub const KEEP_SCALE: u32 = 2;
pub const ROLE_KEY: i32 = 1;
pub const ROLE_VALUE: i32 = 2;
pub const PART_DATA: i32 = 1;
pub const PART_SCALE: i32 = 2;
pub const MAX_PARTS: usize = 8;

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
pub struct DType {
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}

const fn dtype(code: u8, bits: u8) -> DType {
    DType { code, bits, lanes: 1 }
}

pub const NONE: DType = DType {
    code: 0,
    bits: 0,
    lanes: 0,
};
pub const INT8: DType = dtype(0, 8);
pub const FLOAT32: DType = dtype(2, 32);
pub const FLOAT16: DType = dtype(2, 16);
pub const BFLOAT16: DType = dtype(4, 16);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Tensor {
    pub data: *mut u8,
    pub device_type: i32,
    pub device_id: i32,
    pub ndim: i32,
    pub dtype: DType,
    pub flags: u32,
    pub reserved: u32,
    pub shape: [i64; 8],
    pub strides: [i64; 8],
}

#[repr(C)]
pub struct Error {
    pub struct_size: usize,
    pub code: i32,
    pub native_code: i32,
    pub buf: *mut c_char,
    pub cap: usize,
    pub len: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Call {
    pub struct_size: usize,
    pub device_type: i32,
    pub device_id: i32,
    pub stream: *mut c_void,
    pub flags: u32,
    pub reserved: u32,
}

#[repr(C)]
pub struct QuantizerOption {
    pub key: *const c_char,
    pub text: *const c_char,
    pub integer: i64,
    pub number: f64,
    pub kind: i32,
    pub reserved: u32,
}

/// Its beginning: a quantizer takes no memory and has nothing to say.
#[repr(C)]
pub struct Host {
    pub struct_size: usize,
    pub abi_major: u32,
    pub abi_minor: u32,
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
pub struct Spec {
    pub struct_size: usize,
    pub format: i32,
    pub n_levels: u32,
    pub storage_bits: u32,
    pub group_dim: i32,
    pub group_size: i64,
    pub scale_dtype: DType,
    pub zero_dtype: DType,
    pub out_dtype: DType,
    pub flags: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Create {
    pub struct_size: usize,
    pub role: i32,
    pub head_dim: i32,
    pub spec: *const Spec,
    pub options: *const QuantizerOption,
    pub n_options: usize,
    pub dtype: DType,
    pub device_type: i32,
    pub device_id: i32,
    pub reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Part {
    pub role: i32,
    pub flags: u32,
    pub t: Tensor,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Plan {
    pub struct_size: usize,
    pub token_block: i64,
    pub workspace_bytes: u64,
    pub bits_per_element: f64,
    pub n_parts: u32,
    pub reserved: u32,
    pub parts: [Part; MAX_PARTS],
}

/// An instance as the host sees it.
pub type Handle = *mut c_void;

#[repr(C)]
pub struct QuantizerIface {
    pub struct_size: usize,
    pub spec_count: unsafe extern "C" fn() -> u32,
    pub spec_range: unsafe extern "C" fn(u32, *mut Spec, *mut Spec, *mut Error) -> Status,
    pub create: unsafe extern "C" fn(*const Create, *mut Handle, *mut Error) -> Status,
    pub destroy: unsafe extern "C" fn(Handle),
    pub describe: unsafe extern "C" fn(Handle, *mut Spec, *mut Error) -> Status,
    pub plan: unsafe extern "C" fn(Handle, i64, i64, i64, i64, *mut Plan, *mut Error) -> Status,
    pub quantize: unsafe extern "C" fn(
        Handle,
        *const Call,
        *const Tensor,
        u32,
        *const Part,
        u32,
        *mut c_void,
        *mut Error,
    ) -> Status,
    pub dequantize: unsafe extern "C" fn(Handle, *const Call, *const Part, u32, *mut Tensor, *mut Error) -> Status,
    pub error_bound: unsafe extern "C" fn(Handle, *mut f64, *mut Error) -> Status,
    pub get_extension: Option<unsafe extern "C" fn(*const c_char) -> *const c_void>,
}

#[repr(C)]
pub struct Descriptor {
    pub struct_size: usize,
    pub id: *const c_char,
    pub iface_id: *const c_char,
    pub iface: *const QuantizerIface,
    pub summary: *const c_char,
    pub options_schema: *const c_char,
}

#[repr(C)]
pub struct Plugin {
    pub struct_size: usize,
    pub abi_major: u32,
    pub abi_minor: u32,
    pub min_host_minor: u32,
    pub reserved: u32,
    pub id: *const c_char,
    pub version: *const c_char,
    pub vendor: *const c_char,
    pub n_descriptors: u32,
    pub reserved1: u32,
    pub descriptor: unsafe extern "C" fn(u32) -> *const Descriptor,
    pub quiesce: Option<unsafe extern "C" fn()>,
}

// Static tables of constants and function pointers: nobody writes to them.
unsafe impl Sync for Descriptor {}
unsafe impl Sync for Plugin {}

/// Structs that begin with `struct_size`, are made of numbers and pointers, and mean "absent" by zeros.
///
/// # Safety
/// Only for such structs.
pub unsafe trait Growable: Copy {}
unsafe impl Growable for Call {}
unsafe impl Growable for Create {}
unsafe impl Growable for Plan {}
unsafe impl Growable for Spec {}

/// A struct of ours with nothing in it.
pub fn empty<T: Growable>() -> T {
    let mut t: T = unsafe { std::mem::zeroed() };
    unsafe { *(&mut t as *mut T).cast::<usize>() = size_of::<T>() };
    t
}

/// A copy of the caller's struct; what the caller does not know is zero.
///
/// # Safety
/// `given` points at a struct of `T`'s kind, of any version.
pub unsafe fn read<T: Growable>(given: *const T) -> T {
    let mut t: T = empty();
    let bytes = size_of::<T>().min(*given.cast::<usize>());
    std::ptr::copy_nonoverlapping(given.cast::<u8>(), (&mut t as *mut T).cast::<u8>(), bytes);
    *(&mut t as *mut T).cast::<usize>() = size_of::<T>();
    t
}

/// Writes the fields that both sides know; the caller's `struct_size` stays.
///
/// # Safety
/// `given` points at a struct of `T`'s kind, of any version.
pub unsafe fn write<T: Growable>(given: *mut T, ours: &T) {
    let head = size_of::<usize>();
    let bytes = size_of::<T>().min(*given.cast::<usize>()).max(head) - head;
    let from = (ours as *const T).cast::<u8>().add(head);
    std::ptr::copy_nonoverlapping(from, given.cast::<u8>().add(head), bytes);
}

// The numbers of golden_layout.txt.
const _: () = {
    assert!(size_of::<Tensor>() == 160 && std::mem::offset_of!(Tensor, dtype) == 20);
    assert!(size_of::<Error>() == 40);
    assert!(size_of::<Call>() == 32);
    assert!(size_of::<QuantizerOption>() == 40);
    assert!(size_of::<Spec>() == 48);
    assert!(size_of::<Create>() == 56);
    assert!(size_of::<Part>() == 168);
    assert!(size_of::<Plan>() == 1384);
    assert!(size_of::<QuantizerIface>() == 88);
    assert!(size_of::<Descriptor>() == 48);
    assert!(size_of::<Plugin>() == 72);
};
