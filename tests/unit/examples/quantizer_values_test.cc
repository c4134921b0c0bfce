// SPDX-License-Identifier: Apache-2.0
// What packing does to numbers, for any quantizer: the declared bound, groups, blocks, bytes, degenerate groups,
// threads.
#include <thread>

#include "quantizer_library.h"

namespace kvplug::test {
namespace {

// At least three blocks and, where blocks are small, 64 tokens.
int64_t tokens_of(const Quantizer& q) { return std::max<int64_t>(3, 64 / q.block()) * q.block(); }

// The scale of element (b, h, token s, channel c), as a number.
class Scales {
 public:
  Scales(const Quantizer& q, const Packed& packed, const std::vector<int64_t>& of)
      : block_(q.block()), dim_(q.wish().head_dim), of_(of) {
    for (size_t i = 0; i < packed.parts.size(); ++i) {
      if (packed.parts[i].role == KVP_PART_SCALE) part_ = &packed.memory[i];
    }
  }
  double operator()(int64_t b, int64_t h, int64_t s, int64_t c) const {
    const auto within = [&](int axis, int64_t i) {
      return std::min(i, part_->t.shape[axis] - 1);
    };  // SHARED: one for all
    const int64_t j = of_[static_cast<size_t>(s % block_ * dim_ + c)];
    return std::abs(static_cast<double>(part_->get(within(0, b), within(1, h), within(2, s / block_), j)));
  }

 private:
  int64_t block_, dim_;
  const std::vector<int64_t>& of_;
  const Values* part_ = nullptr;
};

void expect_within_bound(const Quantizer& q, const Values& in, const Packed& packed, const std::vector<int64_t>& of,
                         kvp_dtype out_dtype) {
  const Values out = q.unpacked(packed, in.t.shape[0], in.t.shape[1], in.t.shape[2], out_dtype);
  const Scales scale(q, packed, of);
  const double bound = q.bound();
  double worst = 0;  // how much of what is allowed was used
  std::string where;
  each(in.t, [&](auto b, auto h, auto s, auto c) {
    const double x = static_cast<double>(in.get(b, h, s, c)), y = static_cast<double>(out.get(b, h, s, c));
    // The bound is for the type that was packed; another one may round once more.
    const double allowed = bound * scale(b, h, s, c) + rounding_of(y, out_dtype) * (out_dtype.bits < 32 ? 1 : 0);
    const double used = std::abs(x - y) <= allowed ? std::abs(x - y) / std::max(allowed, 1e-300) : INFINITY;
    if (!(used <= worst)) {
      worst = used;
      where = std::to_string(x) + " became " + std::to_string(y) + ", scale " + std::to_string(scale(b, h, s, c)) +
              " at row " + std::to_string(b) + " head " + std::to_string(h) + " token " + std::to_string(s) +
              " channel " + std::to_string(c);
    }
  });
  EXPECT_LE(worst, 1) << where << ", bound " << bound;
}

TEST(QuantizerValues, RoundTripWithinTheDeclaredBound) {
  Random random(7);
  for_each_wish({1, 7, 64, 80, 128}, [&](const Quantizer& q) {
    EXPECT_GT(q.bound(), 0);
    const std::vector<int64_t> of = scale_of_elements(q);
    ASSERT_EQ(std::count_if(of.begin(), of.end(), [](int64_t j) { return j < 0; }), 0) << "elements without one scale";
    const Values in = q.values(2, 3, tokens_of(q));
    fill_normal(in, random);
    const Packed packed = q.packed(in.t);
    for (const kvp_dtype dtype : {q.wish().dtype, kF32, kF16, kBF16}) expect_within_bound(q, in, packed, of, dtype);
  });
}

// The bound in the type that was packed, as it stands, for values of about `gain`.
void expect_bound_without_allowance(const Quantizer& q, float gain) {
  Random random(8);
  std::normal_distribution<float> normal;
  const std::vector<int64_t> of = scale_of_elements(q);
  const Values in = q.values(1, 2, tokens_of(q));
  each(in.t, [&](auto b, auto h, auto s, auto c) { put(in, normal(random) * gain, b, h, s, c); });
  const Packed packed = q.packed(in.t);
  const Values out = q.unpacked(packed, 1, 2, in.t.shape[2], q.wish().dtype);
  const Scales scale(q, packed, of);
  double worst = 0;
  each(in.t, [&](auto b, auto h, auto s, auto c) {
    const double error = std::abs(static_cast<double>(in.get(b, h, s, c)) - static_cast<double>(out.get(b, h, s, c)));
    worst = std::max(worst, error == 0 ? 0 : error / scale(b, h, s, c));
  });
  EXPECT_LE(worst, q.bound()) << "values of about " << gain;
}

TEST(QuantizerValues, TheBoundIncludesTheRoundingOfThePackedType) {
  for_each_wish({64, 96}, [&](const Quantizer& q) {
    for (const float gain : {1.0f, 1e-3f}) expect_bound_without_allowance(q, gain);
  });
}

TEST(QuantizerValues, TheBoundHoldsForTheTiniestNumbers) {
  for_each_wish({64}, [&](const Quantizer& q) { expect_bound_without_allowance(q, smallest(q.wish().dtype) * 40); });
}

// Elements share a scale exactly where the description says that they share a group.
TEST(QuantizerValues, GroupsAreThoseOfTheDescription) {
  for_each_wish({5, 64, 80, 200}, [](const Quantizer& q) {
    const kvp_qspec spec = q.describe();
    const std::vector<int64_t> of = scale_of_elements(q);
    const int64_t dim = q.wish().head_dim, tokens = q.block();
    if (spec.group_dim == KVP_GROUP_WHOLE) return;  // one for all: no map to compare
    const bool along_dim = spec.group_dim == KVP_GROUP_HEAD_DIM;
    const int64_t axis = along_dim ? dim : tokens, size = spec.group_size == 0 ? axis : spec.group_size;
    std::vector<int64_t> scale_of_group(static_cast<size_t>(tokens * dim), -1);
    std::vector<int64_t> group_of_scale(static_cast<size_t>(tokens * dim + 1), -1);
    for (int64_t s = 0; s < tokens; ++s) {
      for (int64_t c = 0; c < dim; ++c) {
        const int64_t group = along_dim ? s * ((dim + size - 1) / size) + c / size : s / size * dim + c;
        const int64_t j = of[static_cast<size_t>(s * dim + c)];
        ASSERT_GE(j, 0);
        int64_t& scale = scale_of_group[static_cast<size_t>(group)];
        int64_t& back = group_of_scale[static_cast<size_t>(j)];
        if (scale == -1 && back == -1) scale = j, back = group;
        ASSERT_TRUE(scale == j && back == group) << "token " << s << ", channel " << c;
      }
    }
  });
}

TEST(QuantizerValues, BlocksAndRowsByThemselvesAreTheWhole) {
  Random random(9);
  for_each_wish({7, 64, 128}, [&](const Quantizer& q) {
    const int64_t tokens = tokens_of(q), block = q.block();
    Values in = make_fused(q.wish().dtype, 2, 3, tokens, q.wish().head_dim, 2, 1);
    fill_normal(in, random);
    const Packed whole = q.packed(in.t);
    const uint32_t keep = whole.has_shared() ? KVP_Q_KEEP_SCALE : 0;
    Packed pieces = q.room_for(in.t, 0x3c);
    pieces.copy_shared(whole);
    for (int64_t i = 0; i < tokens / block; ++i) {
      q.quantize(slice(in.t, 2, i * block, (i + 1) * block), pieces.cut(2, i, i + 1), keep);
    }
    EXPECT_TRUE(pieces == whole) << "block by block, other bytes";
    Packed rows = q.room_for(in.t, 0x3c);
    rows.copy_shared(whole);
    for (int64_t b = 0; b < 2; ++b) q.quantize(slice(in.t, 0, b, b + 1), rows.cut(0, b, b + 1), keep);
    EXPECT_TRUE(rows == whole) << "row by row, other bytes";

    const Values flat = q.unpacked(whole, 2, 3, tokens, q.wish().dtype);
    const Values out = make_fused(q.wish().dtype, 2, 3, tokens, q.wish().head_dim, 1, 2);
    std::fill(out.memory->begin(), out.memory->end(), std::byte{0x5a});
    for (int64_t i = 0; i < tokens / block; ++i) {
      q.dequantize(whole.cut(2, i, i + 1), slice(out.t, 2, i * block, (i + 1) * block));
    }
    int64_t other = 0;
    each(out.t, [&](auto b, auto h, auto s, auto c) { other += out.get(b, h, s, c) != flat.get(b, h, s, c); });
    EXPECT_EQ(other, 0) << "unpacked block by block into strides";
    int64_t beside = 0;  // what lies before and after the heads
    const auto element = static_cast<int64_t>(q.wish().dtype.bits / 8);
    for (int64_t line = 0; line < 2 * tokens; ++line) {
      for (int64_t i = 0; i < q.wish().head_dim * element; ++i) {
        beside += (*out.memory)[static_cast<size_t>(line * 6 * q.wish().head_dim * element + i)] != std::byte{0x5a};
      }
    }
    EXPECT_EQ(beside, 0) << "bytes outside of the output";
  });
}

TEST(QuantizerValues, SameInputSameBytesWhateverWasThere) {
  Random random(10);
  TestHost& host = TestHost::get();
  for_each_wish({7, 80, 128}, [&](const Quantizer& q) {
    const Values in = q.values(2, 2, tokens_of(q));
    fill_normal(in, random);
    const std::vector<std::byte> before = *in.memory;
    const Packed first = q.packed(in.t, 0x00);
    EXPECT_TRUE(q.packed(in.t, 0xff) == first) << "bytes that are not written";
    for (const auto& [workers, pieces] : {std::pair{2, 1}, std::pair{7, 3}}) {
      host.set_workers(workers, pieces);
      EXPECT_TRUE(q.packed(in.t) == first) << workers << " workers";
      const Values a = q.unpacked(first, 2, 2, in.t.shape[2], kF32);
      host.set_workers(1);
      EXPECT_TRUE(*q.unpacked(first, 2, 2, in.t.shape[2], kF32).memory == *a.memory) << workers << " workers";
    }
    EXPECT_TRUE(*in.memory == before) << "the input was written to";
    const Quantizer twin(q.wish());
    EXPECT_TRUE(twin.packed(in.t) == first) << "another instance, other bytes";
  });
}

TEST(QuantizerValues, ZerosAndConstants) {
  for_each_wish({5, 64, 80}, [](const Quantizer& q) {
    const kvp_dtype dtype = q.wish().dtype;
    const std::vector<int64_t> of = scale_of_elements(q);
    const bool affine = q.describe().format == KVP_FORMAT_AFFINE;
    const Values in = q.values(1, 2, q.block());
    for (const float x : {0.0f, -0.0f, 3.25f, -1.0f, 1e4f, smallest(dtype), -1e-4f, largest(dtype), -largest(dtype)}) {
      SCOPED_TRACE("constant " + std::to_string(x));
      each(in.t, [&](auto b, auto h, auto s, auto c) { put(in, x, b, h, s, c); });
      const Packed packed = q.packed(in.t);
      expect_within_bound(q, in, packed, of, dtype);
      if (x != 0 && !affine) continue;
      const Values out = q.unpacked(packed, 1, 2, in.t.shape[2], dtype);
      int64_t other = 0;
      each(in.t, [&](auto b, auto h, auto s, auto c) { other += !(out.get(b, h, s, c) == in.get(b, h, s, c)); });
      EXPECT_EQ(other, 0) << "constant groups that do not come back as they were";
    }
  });
}

TEST(QuantizerValues, FiniteStaysFinite) {
  for_each_wish({5, 64}, [](const Quantizer& q) {
    const Values in = q.values(1, 1, q.block());
    Random random(11);
    const float most = largest(q.wish().dtype);
    const float some[] = {most, -most, 0, most / 3, -most / 2, smallest(q.wish().dtype)};
    each(in.t, [&](auto b, auto h, auto s, auto c) { put(in, some[pick(random, 0, 5)], b, h, s, c); });
    const Values out = q.unpacked(q.packed(in.t), 1, 1, in.t.shape[2], q.wish().dtype);
    int64_t lost = 0;
    each(in.t, [&](auto b, auto h, auto s, auto c) { lost += !std::isfinite(out.get(b, h, s, c)); });
    EXPECT_EQ(lost, 0) << "finite numbers that come back as NaN or infinite";
  });
}

// One NaN or infinity: its group comes back as NaN, all others as if it were not there. fp8 has a NaN of its own: it
// stays alone there, and an infinity becomes the largest number.
TEST(QuantizerValues, NanAndInfinityStayInTheirGroup) {
  for_each_wish({5, 64, 80}, [](const Quantizer& q) {
    const kvp_qspec spec = q.describe();
    const bool fp8 = spec.format == KVP_FORMAT_FP8_E4M3 || spec.format == KVP_FORMAT_FP8_E5M2;
    const std::vector<int64_t> of = scale_of_elements(q);
    const int64_t dim = q.wish().head_dim, tokens = 2 * q.block();
    const Values in = q.values(2, 2, tokens);
    Random random(12);
    fill_normal(in, random);
    const Packed whole = q.packed(in.t);
    const Values clean = q.unpacked(whole, 2, 2, tokens, q.wish().dtype);
    const int64_t s0 = q.block() + q.block() / 2, c0 = dim - 1;
    const int64_t group = of[static_cast<size_t>(s0 % q.block() * dim + c0)];
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      SCOPED_TRACE(bad);
      const float kept = in.get(1, 0, s0, c0);
      put(in, bad, 1, 0, s0, c0);
      Packed packed = q.room_for(in.t);
      packed.copy_shared(whole);
      q.quantize(in.t, packed.parts, whole.has_shared() ? KVP_Q_KEEP_SCALE : 0);
      const Values out = q.unpacked(packed, 2, 2, tokens, q.wish().dtype);
      put(in, kept, 1, 0, s0, c0);
      int64_t inside = 0, outside = 0;
      each(in.t, [&](auto b, auto h, auto s, auto c) {
        const float y = out.get(b, h, s, c);
        const bool its_block = b == 1 && h == 0 && s / q.block() == s0 / q.block();
        if (its_block && of[static_cast<size_t>(s % q.block() * dim + c)] == group) {
          const bool itself = s == s0 && c == c0;
          inside += std::isnan(y) != (fp8 ? itself && std::isnan(bad) : true);
        } else {
          outside += y != clean.get(b, h, s, c);
        }
      });
      EXPECT_EQ(inside, 0) << "elements of its group that are not as they should be";
      EXPECT_EQ(outside, 0) << "elements of other groups that changed";
    }
  });
}

TEST(QuantizerValues, SharedPartsAreKept) {
  Random random(13);
  for_each_wish({7, 64}, [&](const Quantizer& q) {
    const Values first = q.values(1, 2, 2 * q.block()), later = q.values(1, 2, 2 * q.block());
    fill_normal(first, random);
    each(later.t, [&](auto b, auto h, auto s, auto c) { put(later, 3 * first.get(b, h, s, c), b, h, s, c); });
    const Packed frozen = q.packed(first.t);
    for (uint32_t i = 0; i < frozen.count(); ++i) {  // half of it: what no quantizer would come to by itself
      const kvp_tensor& t = frozen.parts[i].t;
      if ((frozen.parts[i].flags & KVP_QPART_SHARED) == 0 || t.dtype_bits < 16) continue;
      each(t, [&](auto b, auto h, auto s, auto c) {
        put(frozen.memory[i], frozen.memory[i].get(b, h, s, c) / 2, b, h, s, c);
      });
    }
    Packed kept = q.room_for(later.t);
    kept.copy_shared(frozen);
    for (kvp_qpart& part : kept.parts) {
      if ((part.flags & KVP_QPART_SHARED) != 0) part.t.flags |= KVP_TENSOR_READ_ONLY;
    }
    q.quantize(later.t, kept.parts, KVP_Q_KEEP_SCALE);
    for (size_t i = 0; i < kept.parts.size(); ++i) {
      if ((kept.parts[i].flags & KVP_QPART_SHARED) == 0) continue;
      EXPECT_TRUE(*kept.memory[i].memory == *frozen.memory[i].memory) << "part " << i << " was written";
    }
    const Values out = q.unpacked(kept, 1, 2, later.t.shape[2], q.wish().dtype);
    int64_t lost = 0;
    each(out.t, [&](auto b, auto h, auto s, auto c) { lost += !std::isfinite(out.get(b, h, s, c)); });
    EXPECT_EQ(lost, 0) << "values beyond a frozen scale that are lost";
    if (!kept.has_shared()) {
      EXPECT_TRUE(kept == q.packed(later.t)) << "nothing is shared, and yet other bytes";
    }
  });
}

TEST(QuantizerValues, EightThreadsUseOneInstance) {
  Random random(14);
  TestHost::get().set_workers(1);
  for_each_wish({96}, [&](const Quantizer& q) {
    const Values in = q.values(2, 2, tokens_of(q));
    fill_normal(in, random);
    const Packed want = q.packed(in.t);
    const Values plain = q.unpacked(want, 2, 2, in.t.shape[2], kF32);
    std::vector<std::thread> threads;
    std::vector<int> wrong(8, 0);
    for (int& count : wrong) {
      threads.emplace_back([&] {
        for (int turn = 0; turn < 3; ++turn) {
          count += !(q.packed(in.t) == want);
          count += *q.unpacked(want, 2, 2, in.t.shape[2], kF32).memory != *plain.memory;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(std::count(wrong.begin(), wrong.end(), 0), 8);
  });
}

}  // namespace
}  // namespace kvplug::test
