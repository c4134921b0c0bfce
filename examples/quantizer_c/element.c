/* SPDX-License-Identifier: Apache-2.0 */
#include "element.h"

#include <string.h>

int element_same(kvp_dtype a, kvp_dtype b) { return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes; }

static int is_bf16(kvp_dtype d) { return d.code == KVP_DTYPE_BFLOAT; }

int element_known(kvp_dtype d) {
  return d.lanes == 1 &&
         ((d.code == KVP_DTYPE_FLOAT && (d.bits == 32 || d.bits == 16)) || (is_bf16(d) && d.bits == 16));
}

kvp_dtype element_dtype(const kvp_tensor* t) {
  const kvp_dtype d = {t->dtype_code, t->dtype_bits, t->dtype_lanes};
  return d;
}

static float from_bits(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof(x));
  return x;
}

static uint32_t to_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof(bits));
  return bits;
}

static float from_half(uint16_t half) {
  const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
  const uint32_t exponent = half >> 10 & 31u, digits = half & 1023u;
  if (exponent == 0) return from_bits(sign | to_bits((float)digits * (1.0f / 16777216.0f)));
  return from_bits(sign | (exponent == 31 ? 255u : exponent + 112u) << 23 | digits << 13);
}

static uint16_t to_half(float x) {
  const uint32_t sign = to_bits(x) >> 16 & 0x8000u, size = to_bits(x) & 0x7fffffffu;
  uint32_t half;
  if (size > 0x7f800000u) {
    half = 0x7e00u;
  } else if (size >= 0x477ff000u) { /* 65520 and up */
    half = 0x7c00u;
  } else if (size < 0x38800000u) { /* the last digit of 0.5 is worth 2^-24, as that of all small halves */
    half = to_bits(from_bits(size) + 0.5f) - to_bits(0.5f);
  } else {
    half = (size - 0x38000000u + 0xfffu + (size >> 13 & 1u)) >> 13;
  }
  return (uint16_t)(sign | half);
}

static uint16_t to_bf16(float x) {
  const uint32_t bits = to_bits(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u);
  return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

float element_get(kvp_dtype d, const void* line, int64_t i) {
  if (d.bits == 32) return ((const float*)line)[i];
  return is_bf16(d) ? from_bits((uint32_t)((const uint16_t*)line)[i] << 16) : from_half(((const uint16_t*)line)[i]);
}

void element_put(kvp_dtype d, void* line, int64_t i, float x) {
  if (d.bits == 32) {
    ((float*)line)[i] = x;
  } else {
    ((uint16_t*)line)[i] = is_bf16(d) ? to_bf16(x) : to_half(x);
  }
}

double element_rounding(kvp_dtype d) { return d.bits == 32 ? 0x1p-24 : is_bf16(d) ? 0x1p-8 : 0x1p-11; }

float element_smallest(kvp_dtype d) { return d.bits == 32 || is_bf16(d) ? 0x1p-126f : 0x1p-14f; }
