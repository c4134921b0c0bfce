// SPDX-License-Identifier: Apache-2.0
// Groups without a range, with tiny or huge ones, with values that are no numbers: what comes back is defined.
#include "quantizer_kinds.h"

namespace kvplug::test {
namespace {

struct Round {
  Values in, out;
};

Round round_of(const Kind& kind, kvp_dtype dtype, const Values& in) {
  Values out = make(dtype, {in.t.shape[0], in.t.shape[1], in.t.shape[2], in.t.shape[3]});
  LoadedQuantizer q(kind.plugin, kind.options(), dtype, static_cast<int32_t>(in.t.shape[3]));
  EXPECT_EQ(q.dequantize(q.quantize(in.t), &out.t), KVP_OK) << q.text();
  return {in, out};
}

template <class F>
void for_all(const Values& v, F&& f) {
  for (int64_t h = 0; h < v.t.shape[1]; ++h) {
    for (int64_t t = 0; t < v.t.shape[2]; ++t) {
      for (int64_t d = 0; d < v.t.shape[3]; ++d) f(h, t, d);
    }
  }
}

const kvp_dtype kTypes[] = {kF32, kF16, kBF16};

// A constant is kept to the bit; fp8 is not affine, and keeps zero.
TEST(DegenerateGroups, ConstantsAreExact) {
  for (const Kind& kind : kinds({16, 64})) {
    for (const kvp_dtype dtype : kTypes) {
      for (const float c : {0.0f, 3.25f, -1024.0f, 0x1p-14f, 0x1p120f}) {
        if (kind.plugin == "fp8" && c != 0) continue;
        if (c > 65504 && dtype.bits == 16 && dtype.code == KVP_DTYPE_FLOAT) continue;
        const Values in = make(dtype, {1, 2, 64, 24});
        for_all(in, [&](int64_t h, int64_t t, int64_t d) { in.set(c, 0, h, t, d); });
        EXPECT_EQ(*round_of(kind, dtype, in).out.memory, *in.memory) << kind.name() << ", " << c;
      }
    }
  }
}

// The elements of the group of (head, token, channel).
bool same_group(const Kind& kind, int64_t t, int64_t d, int64_t t2, int64_t d2) {
  if (kind.plugin == "fp8") return t == t2 && d == d2;
  const bool tokens = kind.axis == (kind.plugin == "hqq" ? 0 : -1);
  return tokens ? d == d2 && t / kind.size == t2 / kind.size : t == t2 && d / kind.size == d2 / kind.size;
}

TEST(DegenerateGroups, NotANumberAndInfinitySpoilTheirGroupAlone) {
  Random random(7);
  for (const Kind& kind : kinds({16, 64})) {
    SCOPED_TRACE(kind.name());
    for (const kvp_dtype dtype : kTypes) {
      const Values clean = normal(dtype, 1, 2, 64, 24, random);
      const Values want = round_of(kind, dtype, clean).out;
      for (const float bad : {std::nanf(""), INFINITY, -INFINITY}) {
        const Values in = make(dtype, {1, 2, 64, 24});
        *in.memory = *clean.memory;
        std::byte* at = in.at(0, 1, 37, 9);
        if (dtype.bits == 16) {
          const uint16_t bits =
              static_cast<uint16_t>((bad < 0 ? 0x8000u : 0u) | (dtype.code == KVP_DTYPE_BFLOAT ? 0x7f80u : 0x7c00u) |
                                    (std::isnan(bad) ? 0x20u : 0u));
          std::memcpy(at, &bits, 2);
        } else {
          std::memcpy(at, &bad, 4);
        }
        const Values out = round_of(kind, dtype, in).out;
        for_all(out, [&](int64_t h, int64_t t, int64_t d) {
          const float got = out.get(0, h, t, d);
          if (h != 1 || !same_group(kind, 37, 9, t, d)) {
            // A scale of many tokens may have lost its largest value to the bad one.
            EXPECT_TRUE(kind.plugin == "fp8" ? std::isfinite(got) : got == want.get(0, h, t, d)) << t << ' ' << d;
          } else if (kind.plugin == "fp8" && !std::isnan(bad)) {
            EXPECT_TRUE(std::isfinite(got) && (got > 0) == (bad > 0)) << got;  // saturated
          } else {
            EXPECT_TRUE(std::isnan(got)) << got << " at " << t << ' ' << d;
          }
        });
      }
    }
  }
}

// Values from the smallest subnormal up to the largest of the type, of both signs: nothing becomes infinite or NaN, and
// small ranges keep their detail.
TEST(DegenerateGroups, FiniteStaysFinite) {
  Random random(8);
  for (const Kind& kind : kinds({16, 64})) {
    SCOPED_TRACE(kind.name());
    for (const kvp_dtype dtype : kTypes) {
      const uint32_t top = dtype.bits == 32 ? 0x7f7fffffu : dtype.code == KVP_DTYPE_BFLOAT ? 0x7f7fu : 0x7bffu;
      for (const uint32_t most : {top, top / 2, 1u, 5u, 300u}) {
        const Values in = make(dtype, {1, 2, 64, 24});
        for_all(in, [&](int64_t h, int64_t t, int64_t d) {
          const auto draw = pick(random, 0, 3);
          uint32_t bits = draw == 0 ? most : static_cast<uint32_t>(pick(random, 0, most));
          if (pick(random, 0, 1) == 1) bits |= 1u << (dtype.bits - 1);
          std::memcpy(in.at(0, h, t, d), &bits, dtype.bits / 8u);
        });
        const Values out = round_of(kind, dtype, in).out;
        for_all(out, [&](int64_t h, int64_t t, int64_t d) {
          ASSERT_TRUE(std::isfinite(out.get(0, h, t, d))) << "from " << in.get(0, h, t, d) << ", bits up to " << most;
        });
      }
    }
  }
}

TEST(DegenerateGroups, SmallRangesKeepTheirDetail) {
  Random random(9);
  for (const float range : {9e-5f, 1e-6f, 1e-30f}) {
    for (const Kind& kind : {Kind{"hqq", 4, 1, 64, ""}, Kind{"hqq", 4, 0, 64, ""}, Kind{"quanto", 4, 0, 64, ""}}) {
      const Values in = make(kF32, {1, 1, 64, 64});
      for_all(in, [&](int64_t, int64_t t, int64_t d) {
        in.set(static_cast<float>(pick(random, 0, 1000)) / 1000 * range, 0, 0, t, d);
      });
      const Values out = round_of(kind, kF32, in).out;
      for_all(in, [&](int64_t, int64_t t, int64_t d) {
        EXPECT_LE(std::fabs(in.get(0, 0, t, d) - out.get(0, 0, t, d)), range / 15 * 1.01f) << kind.name();
      });
    }
  }
}

}  // namespace
}  // namespace kvplug::test
