// SPDX-License-Identifier: Apache-2.0
//! The three types that keys and values come in. Rust knows the first only.

pub trait Element: Copy {
    /// Rounding to the type moves x by at most |x| times this.
    const ROUNDING: f64;
    /// The smallest number that has all its digits.
    const SMALLEST: f32;
    fn get(self) -> f32;
    /// To nearest even; NaN stays NaN.
    fn rounded(x: f32) -> Self;
}

impl Element for f32 {
    const ROUNDING: f64 = 1.0 / (1u64 << 24) as f64;
    const SMALLEST: f32 = f32::MIN_POSITIVE;
    fn get(self) -> f32 {
        self
    }
    fn rounded(x: f32) -> f32 {
        x
    }
}

#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct BFloat16(u16);

impl Element for BFloat16 {
    const ROUNDING: f64 = 1.0 / (1u64 << 8) as f64;
    const SMALLEST: f32 = f32::MIN_POSITIVE;
    fn get(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }
    fn rounded(x: f32) -> BFloat16 {
        let bits = x.to_bits();
        match x.is_nan() {
            true => BFloat16((bits >> 16) as u16 | 0x40),
            false => BFloat16(((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16),
        }
    }
}

#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Float16(u16);

impl Element for Float16 {
    const ROUNDING: f64 = 1.0 / (1u64 << 11) as f64;
    const SMALLEST: f32 = 1.0 / (1u32 << 14) as f32;
    fn get(self) -> f32 {
        let (sign, exponent, digits) = (
            u32::from(self.0 & 0x8000) << 16,
            u32::from(self.0 >> 10 & 31),
            u32::from(self.0 & 1023),
        );
        f32::from_bits(
            sign | match exponent {
                0 => (digits as f32 / (1u32 << 24) as f32).to_bits(),
                31 => 255 << 23 | digits << 13,
                _ => (exponent + 112) << 23 | digits << 13,
            },
        )
    }
    fn rounded(x: f32) -> Float16 {
        let (sign, size) = (x.to_bits() >> 16 & 0x8000, x.to_bits() & 0x7fff_ffff);
        let half = match size {
            0x7f80_0001.. => 0x7e00,
            0x477f_f000.. => 0x7c00, // 65520 and up
            // The last digit of 0.5 is worth 2^-24, as that of all small halves.
            ..0x3880_0000 => (f32::from_bits(size) + 0.5).to_bits() - 0.5f32.to_bits(),
            _ => (size - 0x3800_0000 + 0xfff + (size >> 13 & 1)) >> 13,
        };
        Float16((sign | half) as u16)
    }
}
