// SPDX-License-Identifier: Apache-2.0
// The kernels of every SIMD level that this machine runs give the bits of the scalar ones.
#include <gtest/gtest.h>
#include <kvplug/sdk/affine_kernels.h>
#include <kvplug/sdk/tensor.h>

#include <cstring>
#include <random>
#include <vector>

#include "../../../plugins/fp8/kernels.h"
#include "../../../plugins/hqq/kernels.h"
#include "../../../plugins/quanto/kernels.h"

namespace kvplug {
namespace {

using Bytes = std::vector<std::byte>;

// Random bit patterns of the type, most of them of moderate size.
Bytes random_values(kvp_dtype dtype, size_t n, std::mt19937& random) {
  Bytes out(n * dtype.bits / 8);
  std::normal_distribution<float> draw;
  for (size_t i = 0; i < n; ++i) {
    const float f = draw(random) * (i % 7 == 0 ? 40.0f : 1.0f);
    uint32_t u;
    std::memcpy(&u, &f, 4);
    if (dtype.bits == 16)
      u = dtype.code == KVP_DTYPE_BFLOAT ? u >> 16 : (u >> 16 & 0x8000u) | ((u >> 13 & 0x3ffffu) - 0x1c000u);
    if (i % 101 == 100) u = static_cast<uint32_t>(random());
    std::memcpy(out.data() + i * dtype.bits / 8, &u, dtype.bits / 8u);
  }
  return out;
}

Bytes packed(const sdk::AffineKernels& kernels, const sdk::PackedForm& form, const Bytes& in, kvp_dtype out_dtype) {
  const auto n = static_cast<size_t>(form.token_block() * form.head_dim), groups = static_cast<size_t>(form.groups());
  const size_t size = form.scale_dtype.bits / 8u;
  Bytes all(2 * groups * size + n + n * out_dtype.bits / 8);
  std::byte *scale = all.data(), *offset = scale + groups * size, *codes = offset + groups * size, *out = codes + n;
  std::vector<float> panel(static_cast<size_t>(sdk::affine_panel_floats(form)));
  kernels.quantize(form, in.data(), form.head_dim, scale, offset, reinterpret_cast<uint8_t*>(codes), panel.data());
  Bytes aligned(n * out_dtype.bits / 8);
  for (int64_t t = 0; t < form.token_block(); t += sdk::kTileTokens) {
    kernels.dequantize(form, t, reinterpret_cast<uint8_t*>(codes) + t * form.head_dim, scale, offset,
                       aligned.data() + t * form.head_dim * out_dtype.bits / 8, out_dtype, form.head_dim);
  }
  std::memcpy(out, aligned.data(), aligned.size());
  return all;
}

std::vector<const sdk::AffineKernels*> better(const char* plugin) {
  std::vector<const sdk::AffineKernels*> out;
#if defined(__x86_64__)
  const bool hqq = plugin == std::string("hqq");
  if (sdk::simd_level() >= 1) out.push_back(hqq ? &hqq::kAvx2Kernels : &quanto::kAvx2Kernels);
  if (sdk::simd_level() >= 2) out.push_back(hqq ? &hqq::kAvx512Kernels : &quanto::kAvx512Kernels);
#endif
  return out;
}

TEST(QuantizerLevels, AffineKernelsGiveTheSameBits) {
  std::mt19937 random(11);
  for (const kvp_dtype dtype : {sdk::kFloat32, sdk::kFloat16, sdk::kBFloat16}) {
    for (const int32_t bits : {1, 2, 3, 4, 8}) {
      for (const int32_t group_dim : {KVP_GROUP_HEAD_DIM, KVP_GROUP_TOKENS}) {
        for (const int64_t size : {24, 64}) {
          const sdk::PackedForm form{KVP_ROLE_KEY, bits, group_dim, size, 72, dtype};
          const Bytes in = random_values(dtype, static_cast<size_t>(form.token_block() * 72), random);
          for (const char* plugin : {"hqq", "quanto"}) {
            const auto& scalar = plugin == std::string("hqq") ? hqq::kScalarKernels : quanto::kScalarKernels;
            const Bytes want = packed(scalar, form, in, dtype);
            for (const auto* kernels : better(plugin)) {
              EXPECT_EQ(packed(*kernels, form, in, dtype), want)
                  << plugin << ' ' << bits << " bits, " << sdk::name_of(dtype);
            }
          }
        }
      }
    }
  }
}

// All codes and values: e4m3 against its definition, the levels against each other.
TEST(QuantizerLevels, Fp8CodesAreTheirValues) {
  std::vector<const fp8::Kernels*> levels = {&fp8::kScalarKernels};
#if defined(__x86_64__)
  if (sdk::simd_level() >= 1) levels.push_back(&fp8::kAvx2Kernels);
  if (sdk::simd_level() >= 2) levels.push_back(&fp8::kAvx512Kernels);
#endif
  std::vector<uint8_t> codes(256), back(256);
  for (int i = 0; i < 256; ++i) codes[static_cast<size_t>(i)] = static_cast<uint8_t>(i);
  std::mt19937 random(12);
  const Bytes bits = random_values(sdk::kFloat32, 1000, random);
  for (const bool e5m2 : {false, true}) {
    const int mantissa = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7;
    std::vector<uint8_t> want(1000), got(1000);
    levels[0]->encode(bits.data(), sdk::kFloat32, 1000, 0.25f, e5m2, false, want.data());
    for (const fp8::Kernels* level : levels) {
      std::vector<float> values(256);
      level->decode(codes.data(), 256, 1.0f, e5m2, sdk::kFloat32, values.data(), sdk::kFloat32);
      level->encode(values.data(), sdk::kFloat32, 256, 1.0f, e5m2, false, back.data());
      for (int i = 0; i < 256; ++i) {
        const int e = (i & 127) >> mantissa, m = i & ((1 << mantissa) - 1);
        const bool nan = e5m2 ? (i & 127) >= 0x7c : (i & 127) == 0x7f;
        const float size =
            std::ldexp(static_cast<float>(e == 0 ? m : m + (1 << mantissa)), (e == 0 ? 1 : e) - bias - mantissa);
        const float value = values[static_cast<size_t>(i)];
        if (nan) {
          EXPECT_FALSE(std::isfinite(value)) << i;
        } else {
          EXPECT_EQ(value, i >= 128 ? -size : size) << i;
          EXPECT_EQ(back[static_cast<size_t>(i)], i);
        }
      }
      level->encode(bits.data(), sdk::kFloat32, 1000, 0.25f, e5m2, false, got.data());
      EXPECT_EQ(got, want);
    }
  }
}

}  // namespace
}  // namespace kvplug
