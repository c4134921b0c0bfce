// SPDX-License-Identifier: Apache-2.0
// Blocks: whole = one by one, whatever the threads, strides and role; padding of a short last group in nothing.
#include "quantizer_kinds.h"

namespace kvplug::test {
namespace {

const int64_t kTokens = 192;

TEST(QuantizerBlocks, AppendedOneByOneAreTheBytesOfAllAtOnce) {
  Random random(1);
  for (const Kind& kind : kinds()) {
    if (kind.granularity == "head" || kind.granularity == "tensor") continue;  // their scale is the first tokens'
    SCOPED_TRACE(kind.name());
    for (const kvp_dtype dtype : {kF32, kF16, kBF16}) {
      const Values in = normal(dtype, 2, 3, kTokens, 40, random);
      LoadedQuantizer q(kind.plugin, kind.options(), dtype, 40);
      const Packed whole = q.quantize(in.t);
      Packed pieces(whole.plan);
      const int64_t block = whole.plan.token_block;
      for (int64_t t = 0; t < kTokens; t += block) {
        const kvp_tensor piece = tokens_of(in.t, t, block);
        Packed part(pieces);
        ASSERT_EQ(q.plan(piece, &part.plan), KVP_OK) << q.text();
        for (uint32_t i = 0; i < part.plan.n_parts; ++i) {
          part.parts[i] = pieces.parts[i];
          kvp_tensor& p = part.parts[i].t;
          p.data = pieces.memory[i].data() + t / block * p.strides[2] * (p.dtype_bits / 8);
          p.shape[2] = 1;
        }
        ASSERT_EQ(q.quantize(piece, 0, part), KVP_OK) << q.text();
      }
      EXPECT_EQ(pieces.memory, whole.memory);
    }
  }
}

TEST(QuantizerBlocks, NeitherThreadsNorStridesChangeTheBytes) {
  Random random(2);
  for (const Kind& kind : kinds()) {
    SCOPED_TRACE(kind.name());
    const Values in = normal(kBF16, 2, 3, kTokens, 40, random, true);
    const Values fused = make_fused(kBF16, 2, 3, kTokens, 40, 2, 1);
    for (int64_t b = 0; b < 2; ++b) {
      for (int64_t h = 0; h < 3; ++h) {
        for (int64_t t = 0; t < kTokens; ++t) std::memcpy(fused.at(b, h, t), in.at(b, h, t), 80);
      }
    }
    LoadedQuantizer q(kind.plugin, kind.options(), kBF16, 40);
    const Packed alone = q.quantize(in.t);
    const Values out = make(kF32, {2, 3, kTokens, 40}), again = make(kF32, {2, 3, kTokens, 40});
    Values o = out, a = again;
    ASSERT_EQ(q.dequantize(alone, &o.t), KVP_OK) << q.text();
    for (const int32_t workers : {2, 7}) {
      TestHost::get().set_workers(workers, 1 + workers % 2);
      EXPECT_EQ(q.quantize(fused.t).memory, alone.memory) << workers << " workers";
      ASSERT_EQ(q.dequantize(alone, &a.t), KVP_OK) << q.text();
      TestHost::get().set_workers(1);
      EXPECT_EQ(*out.memory, *again.memory) << workers << " workers";
    }
  }
}

// Head dims that groups do not divide: the last group is what a head of just those channels would give.
TEST(QuantizerBlocks, AShortLastGroupIsAGroupOfItsOwn) {
  Random random(3);
  for (const char* plugin : {"hqq", "quanto"}) {
    for (const int64_t bits : {2, 4, 8}) {
      const Kind kind{plugin, bits, plugin == std::string("hqq") ? 1 : 0, 32, ""};
      const Values in = normal(kF32, 1, 1, 16, 80, random), tail = make(kF32, {1, 1, 16, 16});
      for (int64_t t = 0; t < 16; ++t) std::memcpy(tail.at(0, 0, t), in.at(0, 0, t, 64), 64);
      LoadedQuantizer all(kind.plugin, kind.options(), kF32, 80), last(kind.plugin, kind.options(), kF32, 16);
      Values out = make(kF32, {1, 1, 16, 80}), want = make(kF32, {1, 1, 16, 16});
      ASSERT_EQ(all.dequantize(all.quantize(in.t), &out.t), KVP_OK) << all.text();
      ASSERT_EQ(last.dequantize(last.quantize(tail.t), &want.t), KVP_OK) << last.text();
      for (int64_t t = 0; t < 16; ++t) {
        for (int64_t d = 0; d < 16; ++d) EXPECT_EQ(out.get(0, 0, t, 64 + d), want.get(0, 0, t, d)) << kind.name();
      }
    }
  }
}

TEST(QuantizerBlocks, WholeBlocksOfTheRightTensorAreAskedFor) {
  Random random(4);
  const Values in = normal(kF32, 1, 1, 65, 32, random), other = normal(kF16, 1, 1, 64, 32, random);
  LoadedQuantizer q("quanto", {option("axis", -1)}, kF32, 32);
  kvp_qplan plan{};
  EXPECT_EQ(q.plan(in.t, &plan), KVP_INVALID_ARGUMENT);
  EXPECT_EQ(q.text(), "plan for 65 tokens; expected whole blocks of 64");
  const Packed packed = q.quantize(tokens_of(in.t, 0, 64));
  EXPECT_EQ(q.quantize(other.t, 0, packed), KVP_INVALID_ARGUMENT);
  EXPECT_EQ(q.text(), "the tensor to quantize is float16; expected float32");
  EXPECT_EQ(q.quantize(in.t, 0, packed), KVP_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace kvplug::test
