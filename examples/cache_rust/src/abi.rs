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
pub const INVALID_STATE: Status = 12;
pub const INTERNAL: Status = 31;
pub const POISONED: Status = 32;

pub const DEVICE_CPU: i32 = 1;
pub const FLOAT: u8 = 2;
pub const BFLOAT: u8 = 4;
pub const READ_ONLY: u32 = 1;
pub const CALL_PREPARED: u32 = 1;
pub const CALL_CAPTURE: u32 = 2;
pub const CALL_CHECK: u32 = 4;
pub const LAYER_FULL: i32 = 1;
pub const LAYER_SHARED: u32 = 1;
pub const PER_LAYER_VIEWS: u32 = 4;
pub const TIER_HOST: usize = 2;
pub const PURPOSE_KV: usize = 0;
pub const PURPOSE_OTHER: usize = 7;

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
pub struct DType {
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}

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
pub struct CacheOption {
    pub key: *const c_char,
    pub text: *const c_char,
    pub integer: i64,
    pub number: f64,
    pub kind: i32,
    pub reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Mem {
    pub struct_size: usize,
    pub owner: u64,
    pub bytes: u64,
    pub align: u64,
    pub tier: i32,
    pub purpose: i32,
    pub device_type: i32,
    pub device_id: i32,
    pub stream: *mut c_void,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Memory {
    pub struct_size: usize,
    pub used: [[u64; 8]; 4],
    pub reserved: [[u64; 8]; 4],
    pub peak: [u64; 4],
    pub unquantized: u64,
}

#[repr(C)]
pub struct Host {
    pub struct_size: usize,
    pub abi_major: u32,
    pub abi_minor: u32,
    pub ctx: *mut c_void,
    pub name: *const c_char,
    pub version: *const c_char,
    pub log: unsafe extern "C" fn(*mut c_void, i32, *const c_char, *const c_char, usize),
    pub mem_alloc: unsafe extern "C" fn(*mut c_void, *const Mem, *mut *mut c_void, *mut Error) -> Status,
    pub mem_free: unsafe extern "C" fn(*mut c_void, *const Mem, *mut c_void),
    pub get_extension: unsafe extern "C" fn(*mut c_void, *const c_char) -> *const c_void,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct LayerSpec {
    pub struct_size: usize,
    pub kind: i32,
    pub flags: u32,
    pub q_heads: i32,
    pub kv_heads: i32,
    pub key_dim: i32,
    pub value_dim: i32,
    pub window: i64,
    pub slots: *const c_void,
    pub n_slots: usize,
    pub slot_stride: usize,
    pub shared_with: i32,
    pub model_layer: i32,
    pub index_dim: i32,
    pub reserved: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Create {
    pub struct_size: usize,
    pub layers: *const LayerSpec,
    pub n_layers: usize,
    pub layer_stride: usize,
    pub batch: i64,
    pub tokens: i64,
    pub rollback: i64,
    pub device_type: i32,
    pub device_id: i32,
    pub dtype: DType,
    pub flags: u32,
    pub options: *const CacheOption,
    pub n_options: usize,
    pub quantizer_key: *const c_void,
    pub quantizer_value: *const c_void,
    pub owner: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Info {
    pub struct_size: usize,
    pub flags: u32,
    pub reserved: u32,
    pub max_rollback: i64,
    pub token_block: i64,
    pub tolerance: f64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct Lengths {
    pub struct_size: usize,
    pub seen: i64,
    pub max: i64,
    pub kv_len: i64,
    pub kv_offset: i64,
    pub row_seen: *mut i64,
    pub row_pad: *mut i64,
    pub n_rows: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct UpdateArgs {
    pub struct_size: usize,
    pub layer: i32,
    pub flags: u32,
    pub k: *const Tensor,
    pub v: *const Tensor,
    pub pad: *const i64,
    pub count: *const i64,
    pub positions: *const Tensor,
}

/// An instance as the host sees it.
pub type Handle = *mut c_void;

#[repr(C)]
pub struct CacheIface {
    pub struct_size: usize,
    pub probe: unsafe extern "C" fn(*const Create, *mut Info, *mut Error) -> Status,
    pub plan: unsafe extern "C" fn(*const Create, i64, i64, *mut Memory, *mut Error) -> Status,
    pub create: unsafe extern "C" fn(*const Create, *mut Handle, *mut Error) -> Status,
    pub destroy: unsafe extern "C" fn(Handle),
    pub lengths: unsafe extern "C" fn(Handle, i32, i64, *mut Lengths, *mut Error) -> Status,
    pub update:
        unsafe extern "C" fn(Handle, *const Call, *const UpdateArgs, *mut Tensor, *mut Tensor, *mut Error) -> Status,
    pub reset: unsafe extern "C" fn(Handle, *const Call, *mut Error) -> Status,
    pub gather: unsafe extern "C" fn(Handle, *const Call, *const i64, i64, *mut Error) -> Status,
    pub crop: unsafe extern "C" fn(Handle, *const Call, *const i64, i64, *mut Error) -> Status,
    pub set_rollback: unsafe extern "C" fn(Handle, *const Call, i64, *mut Error) -> Status,
    pub clone: unsafe extern "C" fn(Handle, *const Call, u64, *mut Handle, *mut Error) -> Status,
    pub reserve: Option<unsafe extern "C" fn(Handle, *const Call, i64, i64, *mut Error) -> Status>,
    pub memory: unsafe extern "C" fn(Handle, i32, *mut Memory, *mut Error) -> Status,
    pub counters: Option<unsafe extern "C" fn(Handle, *mut c_void, *mut usize) -> Status>,
    pub get_extension: unsafe extern "C" fn(*const c_char) -> *const c_void,
}

#[repr(C)]
pub struct Descriptor {
    pub struct_size: usize,
    pub id: *const c_char,
    pub iface_id: *const c_char,
    pub iface: *const CacheIface,
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
unsafe impl Growable for Info {}
unsafe impl Growable for LayerSpec {}
unsafe impl Growable for Lengths {}
unsafe impl Growable for Memory {}
unsafe impl Growable for UpdateArgs {}

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
    assert!(size_of::<CacheOption>() == 40);
    assert!(size_of::<Mem>() == 56);
    assert!(size_of::<Memory>() == 560);
    assert!(size_of::<Host>() == 72);
    assert!(size_of::<LayerSpec>() == 80);
    assert!(size_of::<Create>() == 112);
    assert!(size_of::<Info>() == 40);
    assert!(size_of::<Lengths>() == 64);
    assert!(size_of::<UpdateArgs>() == 56);
    assert!(size_of::<CacheIface>() == 128);
    assert!(size_of::<Descriptor>() == 48);
    assert!(size_of::<Plugin>() == 72);
};
