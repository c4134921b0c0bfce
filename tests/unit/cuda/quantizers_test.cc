// SPDX-License-Identifier: Apache-2.0
// The quantizer plugins on a device: the bytes of the CPU, packed and unpacked; a block that moves from one to the
// other means the same there. On the emulator here, on a device where tests/cuda is built.
#include "needs_device.h"
#include "quantizer_kinds.h"

namespace kvplug::test {
namespace {

constexpr int64_t kTokens = 192, kDim = 40;

class CudaQuantizers : public NeedsDevice {};

// Scales that tokens share are the CPU's affair.
bool shares(const Kind& kind) { return kind.plugin == "fp8" && kind.granularity != "token_head"; }

// Parts that are the same up to which NaN a NaN is.
void expect_same(const Packed& want, const Packed& got) {
  ASSERT_EQ(want.memory[0], got.memory[0]) << "codes";
  for (size_t part = 1; part < want.memory.size(); ++part) {
    const kvp_tensor& t = want.parts[part].t;
    const kvp_dtype dtype{t.dtype_code, t.dtype_bits, t.dtype_lanes};
    for (size_t at = 0; at < want.memory[part].size(); at += t.dtype_bits / 8u) {
      const float x = load(&want.memory[part][at], dtype), y = load(&got.memory[part][at], dtype);
      ASSERT_TRUE(std::memcmp(&x, &y, sizeof x) == 0 || (std::isnan(x) && std::isnan(y)))
          << "part " << part << ": " << y << ", expected " << x;
    }
  }
}

void check(const Kind& kind, kvp_dtype dtype, int32_t role, const Values& in) {
  SCOPED_TRACE(kind.name() + (role == KVP_ROLE_KEY ? ", keys of " : ", values of ") + std::to_string(dtype.bits) +
               " bits, type " + std::to_string(dtype.code));
  LoadedQuantizer cpu(kind.plugin, kind.options(), dtype, kDim, role);
  LoadedQuantizer device(kind.plugin, kind.options(), dtype, kDim, role, nullptr, KVP_DEVICE_CUDA);
  const Packed want = cpu.quantize(in.t), got = device.quantize(on(KVP_DEVICE_CUDA, in.t));
  ASSERT_NO_FATAL_FAILURE(expect_same(want, got));
  for (const kvp_dtype to : {kF32, kF16, kBF16}) {
    Values x = make(to, {2, 3, kTokens, kDim}), y = make(to, {2, 3, kTokens, kDim});
    kvp_tensor on_device = on(KVP_DEVICE_CUDA, y.t);
    ASSERT_EQ(cpu.dequantize(want, &x.t), KVP_OK) << cpu.text();
    ASSERT_EQ(device.dequantize(got, &on_device), KVP_OK) << device.text();
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t h = 0; h < 3; ++h) {
        for (int64_t t = 0; t < kTokens; ++t) {
          for (int64_t d = 0; d < kDim; ++d) {
            const float a = x.get(b, h, t, d), c = y.get(b, h, t, d);
            ASSERT_TRUE(std::memcmp(&a, &c, sizeof a) == 0 || (std::isnan(a) && std::isnan(c)))
                << b << ' ' << h << ' ' << t << ' ' << d << ": " << c << ", expected " << a;
          }
        }
      }
    }
  }
}

TEST_F(CudaQuantizers, PackAndUnpackWithTheBitsOfTheCpu) {
  Random random(1);
  for (const Kind& kind : kinds()) {
    if (shares(kind)) continue;
    for (const kvp_dtype dtype : {kF32, kF16, kBF16}) {
      const Values in = normal(dtype, 2, 3, kTokens, kDim, random, pick(random, 0, 1) == 0);
      check(kind, dtype, pick(random, 0, 1) == 0 ? KVP_ROLE_KEY : KVP_ROLE_VALUE, in);
      if (HasFatalFailure()) return;
    }
  }
}

// Constant groups, zeros, NaN, infinities, the largest and the smallest numbers, and strides of a fused projection.
TEST_F(CudaQuantizers, PackWhatIsDegenerateLikeTheCpu) {
  Random random(2);
  const float odd[] = {0, -0.0f, 1, NAN, INFINITY, -INFINITY, 60000, -60000, 1e-7f, 3e38f, -3e38f, 1e-40f};
  for (const Kind& kind : kinds({16, 64})) {
    if (shares(kind)) continue;
    for (const kvp_dtype dtype : {kF32, kF16, kBF16}) {
      const Values in = make_fused(dtype, 2, 3, kTokens, kDim, 2, 1);
      for (int64_t b = 0; b < 2; ++b) {
        for (int64_t h = 0; h < 3; ++h) {
          for (int64_t t = 0; t < kTokens; ++t) {
            const bool constant = pick(random, 0, 9) == 0;
            const float size = odd[pick(random, 6, 11)];
            for (int64_t d = 0; d < kDim; ++d) {
              float x = constant ? size : size * static_cast<float>(pick(random, -100, 100)) / 100;
              if (pick(random, 0, 400) == 0) x = odd[pick(random, 0, 11)];
              if (dtype.bits == 16 && dtype.code == KVP_DTYPE_FLOAT && std::isfinite(x)) {
                x = std::fmin(std::fmax(x, -65504.0f), 65504.0f);
              }
              store_nearest(in.at(b, h, t, d), dtype, x);
            }
          }
        }
      }
      check(kind, dtype, KVP_ROLE_KEY, in);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_F(CudaQuantizers, WhatIsNotServedIsRefusedInWords) {
  const auto refusal = [](const LoadedQuantizer::Options& options, int32_t device_type, const char* plugin = "hqq") {
    try {
      LoadedQuantizer made(plugin, options, kF32, kDim, KVP_ROLE_KEY, nullptr, device_type);
    } catch (const std::runtime_error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal({}, KVP_DEVICE_CUDA), "");
  EXPECT_EQ(refusal({}, KVP_DEVICE_METAL),
            std::to_string(KVP_UNSUPPORTED) +
                ": hqq has no kernels for devices of type 8; it packs on the CPU and with CUDA");
  EXPECT_EQ(refusal({option("hf_compat", "strict")}, KVP_DEVICE_CUDA),
            std::to_string(KVP_UNSUPPORTED) + ": hf_compat = \"strict\" computes on the CPU");
  for (const char* granularity : {"head", "tensor"}) {
    EXPECT_EQ(
        refusal({option("scale_granularity", granularity)}, KVP_DEVICE_CUDA, "fp8"),
        std::to_string(KVP_UNSUPPORTED) +
            ": scales that tokens share are packed on the CPU; scale_granularity = \"token_head\" is on devices too");
  }
}

}  // namespace
}  // namespace kvplug::test
