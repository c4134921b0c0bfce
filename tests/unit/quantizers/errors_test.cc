// SPDX-License-Identifier: Apache-2.0
// How far values are from what was packed: within the declared bound for every range that a plugin offers, and on
// average below a ceiling per quantizer.
#include "quantizer_kinds.h"

namespace kvplug::test {
namespace {

// Scale of element (b, h, t, d), f32, in the layout that packed.h describes; or shared.
float scale_of(const Packed& p, const kvp_qspec& spec, int64_t b, int64_t h, int64_t t, int64_t d, int64_t dim) {
  const kvp_tensor& s = p.parts[1].t;
  int64_t block = 0, in_block = 0;
  if (spec.format == KVP_FORMAT_AFFINE || spec.group_dim == KVP_GROUP_HEAD_DIM) {
    block = t / p.plan.token_block;
    const int64_t token = t % p.plan.token_block;
    in_block = spec.group_dim == KVP_GROUP_TOKENS ? token / spec.group_size * dim + d
                                                  : (spec.group_size == 0 ? 0 : d / spec.group_size) * 16 + token;
  }
  if (s.shape[0] == 1) b = 0;
  if (s.shape[1] == 1) h = 0;
  const int64_t at = b * s.strides[0] + h * s.strides[1] + block * s.strides[2] + in_block;
  return load(static_cast<const std::byte*>(s.data) + at * s.dtype_bits / 8, {s.dtype_code, s.dtype_bits, 1});
}

TEST(QuantizerErrors, EveryRangeKeepsItsBound) {
  Random random(5);
  for (const char* plugin : {"hqq", "quanto", "fp8"}) {
    const kvp_quantizer_iface* iface = quantizer_iface(plugin);
    for (uint32_t i = 0; i < iface->spec_count(); ++i) {
      kvp_qspec low{}, high{};
      low.struct_size = high.struct_size = sizeof low;
      ASSERT_EQ(iface->spec_range(i, &low, &high, nullptr), KVP_OK);
      if ((low.flags & KVP_Q_STRICT) != 0) continue;  // whole tensors: the golden cases
      SCOPED_TRACE(std::string(plugin) + ", range " + std::to_string(i));
      for (const int64_t size : {int64_t{7}, int64_t{64}}) {
        kvp_qspec spec = low;
        if (spec.format == KVP_FORMAT_AFFINE) spec.group_size = size;
        if (spec.group_dim == KVP_GROUP_HEAD_DIM && size > 40)
          spec.group_size = spec.format == KVP_FORMAT_AFFINE ? 40 : 0;
        const int64_t dim = 40, tokens = 448;
        LoadedQuantizer q(plugin, {}, low.out_dtype, dim, KVP_ROLE_VALUE, &spec);
        EXPECT_EQ(q.describe().group_size, spec.group_size);
        EXPECT_EQ(q.describe().n_levels, spec.n_levels);
        const double bound = q.error_bound();
        for (const float factor : {1.0f, 1e-3f, 300.0f}) {
          for (const bool outliers : {false, true}) {
            Values in = normal(low.out_dtype, 2, 2, tokens, dim, random, outliers),
                   out = make(low.out_dtype, {2, 2, tokens, dim});
            for (size_t at = 0; at < in.memory->size(); at += low.out_dtype.bits / 8u) {
              std::byte* p = in.memory->data() + at;
              store_nearest(p, low.out_dtype, factor * load(p, low.out_dtype));
            }
            const Packed packed = q.quantize(in.t);
            ASSERT_EQ(q.dequantize(packed, &out.t), KVP_OK) << q.text();
            double worst = 0;
            for (int64_t b = 0; b < 2; ++b) {
              for (int64_t h = 0; h < 2; ++h) {
                for (int64_t t = 0; t < tokens; ++t) {
                  for (int64_t d = 0; d < dim; ++d) {
                    const double off = std::fabs(double{in.get(b, h, t, d)} - double{out.get(b, h, t, d)});
                    const double scale = scale_of(packed, spec, b, h, t, d, dim);
                    if (off > 0) worst = std::max(worst, off / scale);
                  }
                }
              }
            }
            EXPECT_LE(worst, bound) << "factor " << factor << (outliers ? ", outliers" : "");
          }
        }
      }
    }
  }
}

double nmse(const Kind& kind, kvp_dtype dtype, bool outliers) {
  Random random(6);
  const Values in = normal(dtype, 1, 2, 512, 64, random, outliers);
  Values out = make(kF32, {1, 2, 512, 64});
  LoadedQuantizer q(kind.plugin, kind.options(), dtype, 64);
  EXPECT_EQ(q.dequantize(q.quantize(in.t), &out.t), KVP_OK) << q.text();
  double sum = 0, all = 0;
  for (int64_t h = 0; h < 2; ++h) {
    for (int64_t t = 0; t < 512; ++t) {
      for (int64_t d = 0; d < 64; ++d) {
        const double x = in.get(0, h, t, d), e = x - double{out.get(0, h, t, d)};
        sum += e * e, all += x * x;
      }
    }
  }
  return sum / all;
}

struct Ceiling {
  Kind kind;
  double gaussian, outliers;  // NMSE in bfloat16; measured values are about a tenth less
};

// docs/quantizers.md prints this table.
const Ceiling kCeilings[] = {
    {{"hqq", 1, 1, 64, ""}, 2.5e0, 2.0e-1},
    {{"hqq", 2, 1, 64, ""}, 2.2e-1, 1.9e-2},
    {{"hqq", 3, 1, 64, ""}, 3.8e-2, 5.0e-3},
    {{"hqq", 4, 1, 64, ""}, 8.4e-3, 2.6e-3},
    {{"hqq", 8, 1, 64, ""}, 3.5e-5, 2.2e-5},
    {{"quanto", 2, 0, 64, ""}, 2.3e-1, 2.2e-2},
    {{"quanto", 4, 0, 64, ""}, 9.1e-3, 5.9e-3},
    {{"quanto", 8, 0, 64, ""}, 7.1e-5, 2.5e-5},
    {{"hqq", 1, 0, 64, ""}, 2.5e0, 2.6e-1},
    {{"hqq", 2, 0, 64, ""}, 2.2e-1, 1.9e-2},
    {{"hqq", 3, 0, 64, ""}, 3.8e-2, 3.5e-3},
    {{"hqq", 4, 0, 64, ""}, 8.3e-3, 7.4e-4},
    {{"hqq", 8, 0, 64, ""}, 3.5e-5, 1.9e-6},
    {{"quanto", 2, -1, 64, ""}, 2.3e-1, 1.9e-2},
    {{"quanto", 4, -1, 64, ""}, 9.0e-3, 7.6e-4},
    {{"quanto", 8, -1, 64, ""}, 7.1e-5, 6.5e-6},
    {{"fp8", 8, 0, 0, "token_head", "e4m3"}, 7.0e-4, 5.6e-4},
    {{"fp8", 8, 0, 0, "token_head", "e5m2"}, 2.8e-3, 2.3e-3},
};

TEST(QuantizerErrors, AverageStaysBelowTheCeiling) {
  for (const Ceiling& c : kCeilings) {
    const double gaussian = nmse(c.kind, kBF16, false), outliers = nmse(c.kind, kBF16, true);
    EXPECT_LE(gaussian, c.gaussian) << c.kind.name();
    EXPECT_LE(outliers, c.outliers) << c.kind.name();
  }
}

}  // namespace
}  // namespace kvplug::test
