// SPDX-License-Identifier: Apache-2.0
//! The quantizer: one scale for a token and head, x = code * scale, codes -127 to 127.
//!
//! The scale is the largest |x| / 127, and of zeros the smallest scale there is. A token whose head holds a NaN or an
//! infinity has the scale NaN: all of it comes back as NaN, and nothing beside it does.

use crate::abi::*;
use crate::element::{BFloat16, Element, Float16};

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

const LARGEST: f32 = 127.0;
pub const DTYPES: [DType; 3] = [FLOAT32, FLOAT16, BFLOAT16];

/// What is done to that type: there is no choice.
pub fn spec_of(dtype: DType) -> Spec {
    Spec {
        format: FORMAT_SYMMETRIC,
        n_levels: 255,
        storage_bits: 8,
        group_dim: GROUP_HEAD_DIM,
        group_size: 0,
        scale_dtype: FLOAT32,
        zero_dtype: NONE,
        out_dtype: dtype,
        ..empty()
    }
}

fn pack<E: Element>(line: &[E], codes: &mut [i8], scale: &mut f32) {
    let sizes = || line.iter().map(|x| x.get().abs());
    *scale = match sizes().all(f32::is_finite) {
        // Below, rounding to the type, or of the scale itself, would eat up the bound.
        true => (sizes().fold(0.0, f32::max) / LARGEST)
            .max(E::SMALLEST / LARGEST)
            .max(f32::MIN_POSITIVE),
        false => f32::NAN,
    };
    for (code, x) in codes.iter_mut().zip(line) {
        // As an integer, NaN is 0.
        *code = (x.get() / *scale).round_ties_even().clamp(-LARGEST, LARGEST) as i8;
    }
}

fn unpack<E: Element>(codes: &[i8], scale: f32, line: &mut [E]) {
    for (x, code) in line.iter_mut().zip(codes) {
        // 127 * (x / 127) may be a hair larger than the largest number.
        *x = E::rounded((f32::from(*code) * scale).clamp(f32::MIN, f32::MAX));
    }
}

/// Where the elements [b, h, s, ..] of a tensor begin.
///
/// # Safety
/// The tensor has been checked, holds `T`, and the place is inside.
unsafe fn at<T>(t: &Tensor, [b, h, s]: [i64; 3]) -> *mut T {
    let offset = b * t.strides[0] + h * t.strides[1] + s * t.strides[2];
    t.data.cast::<T>().offset(offset as isize)
}

unsafe fn line<'a, T>(t: &Tensor, place: [i64; 3]) -> &'a [T] {
    std::slice::from_raw_parts(at(t, place), t.shape[3] as usize)
}

unsafe fn line_mut<'a, T>(t: &Tensor, place: [i64; 3]) -> &'a mut [T] {
    std::slice::from_raw_parts_mut(at(t, place), t.shape[3] as usize)
}

/// Calls `body` for every token of every head.
fn each(t: &Tensor, mut body: impl FnMut([i64; 3])) {
    for b in 0..t.shape[0] {
        for h in 0..t.shape[1] {
            (0..t.shape[2]).for_each(|s| body([b, h, s]));
        }
    }
}

/// The tensor is on the CPU, has that shape and last stride 1, and may be written to if it has to be.
fn check(name: &str, t: &Tensor, shape: &[i64], written: bool) -> Result<()> {
    let dense = t.strides[3] == 1 || t.shape[3] <= 1;
    if t.ndim != 4 || &t.shape[..4] != shape || !dense || t.device_type != DEVICE_CPU {
        let text = format!("example/int8_rust: {name} is not {shape:?} on the CPU with last stride 1");
        return fail(INVALID_ARGUMENT, text);
    }
    match written && t.flags & READ_ONLY != 0 {
        true => fail(INVALID_ARGUMENT, format!("example/int8_rust: {name} is read-only")),
        false => Ok(()),
    }
}

pub struct Quantizer {
    head_dim: i64,
    dtype: DType,
}

impl Quantizer {
    /// # Safety
    /// `create` holds what `<kvplug/quantizer.h>` says.
    pub unsafe fn new(create: &Create) -> Result<Quantizer> {
        let at_fault = |text: String| fail(INVALID_ARGUMENT, format!("example/int8_rust: {text}"));
        let not_here = |text: String| fail(UNSUPPORTED, format!("example/int8_rust {text}"));
        if ![ROLE_KEY, ROLE_VALUE].contains(&create.role) {
            return at_fault(format!("role {} is neither keys (1) nor values (2)", create.role));
        }
        if create.head_dim < 1 {
            return at_fault(format!("head_dim is {}; expected at least 1", create.head_dim));
        }
        if create.device_type != DEVICE_CPU {
            return not_here(format!("works on the CPU; not on device type {}", create.device_type));
        }
        if !DTYPES.contains(&create.dtype) {
            let DType { code, bits, .. } = create.dtype;
            return not_here(format!(
                "packs float32, float16 and bfloat16; not type code {code} of {bits} bits"
            ));
        }
        if !create.spec.is_null() && read(create.spec) != spec_of(create.dtype) {
            let text = "has symmetric codes of 8 bits, one f32 scale for a token and head";
            return not_here(format!("{text}; the spec asks for something else"));
        }
        Ok(Quantizer {
            head_dim: i64::from(create.head_dim),
            dtype: create.dtype,
        })
    }

    pub fn spec(&self) -> Spec {
        spec_of(self.dtype)
    }

    /// Half a step; a little for the division and the product; and the rounding to the type, of at most 127 steps.
    pub fn error_bound(&self) -> f64 {
        let rounding = match self.dtype {
            FLOAT32 => f32::ROUNDING,
            FLOAT16 => Float16::ROUNDING,
            _ => BFloat16::ROUNDING,
        };
        0.5 + 1e-4 + f64::from(LARGEST) * rounding
    }

    pub fn plan(&self, [batch, heads, tokens, head_dim]: [i64; 4]) -> Result<Plan> {
        let elements = batch as f64 * heads as f64 * tokens as f64 * head_dim as f64;
        if head_dim != self.head_dim || batch < 0 || heads < 0 || tokens < 0 || elements > 1e18 {
            return fail(
                INVALID_ARGUMENT,
                format!(
                    "example/int8_rust: plan for [{batch}, {heads}, {tokens}, {head_dim}]; made for head_dim {}",
                    self.head_dim
                ),
            );
        }
        let part = |role, dtype, n| Part {
            role,
            flags: 0,
            t: Tensor {
                data: std::ptr::null_mut(),
                device_type: DEVICE_CPU,
                device_id: 0,
                ndim: 4,
                dtype,
                flags: 0,
                reserved: 0,
                shape: [batch, heads, tokens, n, 0, 0, 0, 0],
                strides: [heads * tokens * n, tokens * n, n, 1, 0, 0, 0, 0],
            },
        };
        let mut plan: Plan = empty();
        plan.token_block = 1;
        plan.bits_per_element = 8.0 + 32.0 / head_dim as f64;
        plan.n_parts = 2;
        plan.parts[0] = part(PART_DATA, INT8, head_dim);
        plan.parts[1] = part(PART_SCALE, FLOAT32, 1);
        Ok(plan)
    }

    /// The parts belong to a tensor like `plain`.
    fn check_parts(&self, plain: &Tensor, parts: &[Part], written: bool) -> Result<()> {
        let plan = self.plan(plain.shape[..4].try_into().unwrap())?;
        if parts.len() != plan.n_parts as usize {
            let text = format!("example/int8_rust: {} parts; expected {}", parts.len(), plan.n_parts);
            return fail(INVALID_ARGUMENT, text);
        }
        for (part, (planned, name)) in parts.iter().zip(plan.parts.iter().zip(["the codes", "the scales"])) {
            if part.role != planned.role || part.t.dtype != planned.t.dtype {
                return fail(
                    INVALID_ARGUMENT,
                    format!("example/int8_rust: {name} have another role or type than planned"),
                );
            }
            check(name, &part.t, &planned.t.shape[..4], written)?;
        }
        Ok(())
    }

    /// # Safety
    /// What the tensors point at is there.
    pub unsafe fn quantize(&self, input: &Tensor, flags: u32, parts: &[Part]) -> Result<()> {
        let shape = [input.shape[0], input.shape[1], input.shape[2], self.head_dim];
        check("the input", input, &shape, false)?;
        if input.dtype != self.dtype {
            let text = "example/int8_rust: the input is not of the type that the instance was made for";
            return fail(INVALID_ARGUMENT, text);
        }
        if flags & !KEEP_SCALE != 0 {
            return fail(UNSUPPORTED, format!("example/int8_rust: quantize with flags {flags}"));
        }
        self.check_parts(input, parts, true)?;
        match input.dtype {
            FLOAT32 => pack_all::<f32>(input, parts),
            FLOAT16 => pack_all::<Float16>(input, parts),
            _ => pack_all::<BFloat16>(input, parts),
        }
        Ok(())
    }

    /// # Safety
    /// What the tensors point at is there.
    pub unsafe fn dequantize(&self, parts: &[Part], out: &Tensor) -> Result<()> {
        let shape = [out.shape[0], out.shape[1], out.shape[2], self.head_dim];
        check("the output", out, &shape, true)?;
        self.check_parts(out, parts, false)?;
        match out.dtype {
            FLOAT32 => unpack_all::<f32>(parts, out),
            FLOAT16 => unpack_all::<Float16>(parts, out),
            BFLOAT16 => unpack_all::<BFloat16>(parts, out),
            _ => {
                return fail(
                    INVALID_ARGUMENT,
                    "example/int8_rust: the output is not float32, float16 or bfloat16",
                )
            }
        }
        Ok(())
    }
}

unsafe fn pack_all<E: Element>(input: &Tensor, parts: &[Part]) {
    each(input, |place| {
        let (codes, scale) = (line_mut(&parts[0].t, place), &mut *at(&parts[1].t, place));
        pack(line::<E>(input, place), codes, scale);
    });
}

unsafe fn unpack_all<E: Element>(parts: &[Part], out: &Tensor) {
    each(out, |place| {
        let (codes, scale) = (line(&parts[0].t, place), *at(&parts[1].t, place));
        unpack(codes, scale, line_mut::<E>(out, place));
    });
}
