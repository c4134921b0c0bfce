// SPDX-License-Identifier: Apache-2.0
// Attention over packed K/V on a device against the reference in double precision, within the bound of the CPU's
// kernels, and the rules about bits and NaN. On the emulator here, on a device where tests/cuda is built.
#include "on_device.h"
#include "unit/sdk/packed_random.h"

namespace kvplug::test {
namespace {

template <class Cut>
Answer run(const PackedProblem& p, Cut cut) {
  PackedPages pages(p, cut);
  const auto batch = static_cast<int64_t>(p.rows.size());
  Reachable<std::byte> q;
  std::vector<int64_t> position;
  for (const PackedRow& row : p.rows) {
    position.push_back(row.q_position);
    for (const float x : row.q) {
      q.resize(q.size() + p.q_dtype.bits / 8);
      encode_element(p.q_dtype, x, q.data() + q.size() - p.q_dtype.bits / 8);
    }
  }
  Answer a;
  Reachable<float> lse_memory(static_cast<size_t>(batch * p.q_heads * p.queries), 123.0f);
  Reachable<float> out_memory(lse_memory.size() * static_cast<size_t>(p.v.head_dim), 123.0f);
  kvp_tensor tq = tensor_of(q.data(), p.q_dtype, {batch, p.q_heads, p.queries, p.k.head_dim});
  kvp_tensor out = tensor_of(out_memory.data(), kF32, {batch, p.q_heads, p.queries, p.v.head_dim});
  kvp_tensor lse = tensor_of(lse_memory.data(), kF32, {batch, p.q_heads, p.queries});
  const sdk::PackedDevice& device = *sdk::cuda_packed_device();
  const DeviceMemory work(sdk::packed_attend_workspace(device, p.desc()));
  const kvp_qattend_args args = pages.device_args(&tq, position.data(), work.data());
  const kvp_call call{sizeof call, KVP_DEVICE_CUDA, 0, nullptr, 0, 0};
  int error = 0;
  a.status = sdk::packed_attend(p.k, p.v, args, device, call, out, lse, &error);
  finish_device();
  EXPECT_EQ(error, 0);
  a.out.assign(out_memory.begin(), out_memory.end());
  a.lse.assign(lse_memory.begin(), lse_memory.end());
  return a;
}
Answer run(const PackedProblem& p) {
  return run(p, [&](int64_t) { return 4 * block_of(p); });
}

void check(const PackedProblem& p, const std::string& what) {
  std::vector<PackedExpected> want;
  for (const PackedRow& row : p.rows) want.push_back(expected(p, row));
  for (const bool reverse : {false, true}) {
    reverse_threads(reverse);
    expect_within_bound(p, want, run(p), what);
  }
}

class CudaPackedAttention : public OnDevice {};

TEST_F(CudaPackedAttention, EveryFormIsWithinItsBound) {
  Random random(1);
  for (const int32_t bits : {1, 2, 3, 4, 8}) {
    for (const int64_t dim : {8, 33, 80, 128}) {
      for (const int32_t group_dim : {KVP_GROUP_HEAD_DIM, KVP_GROUP_TOKENS}) {
        for (const int64_t size : {16, 48, 64, 256}) {
          const kvp_dtype scales = random.pick({kF32, kB16, kF16});
          PackedProblem p = problem({KVP_ROLE_KEY, bits, group_dim, size, dim, scales},
                                    {KVP_ROLE_VALUE, bits, group_dim, size, dim, scales}, 2, 1, 1);
          add_row(&random, &p, 0, block_of(p) * (block_of(p) == 16 ? 5 : 2), 3);
          check(p, name(p.k));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST_F(CudaPackedAttention, EveryMaskShapeAndMixIsWithinItsBound) {
  for (uint64_t seed = 100; seed < 140; ++seed) {
    const PackedProblem p = random_packed_problem(seed);
    check(p, "seed " + std::to_string(seed) + ": keys " + name(p.k) + ", values " + name(p.v));
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaPackedAttention, NeitherPagesNorNeighboursChangeABit) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    Random random(seed + 1000);
    const int32_t bits = random.pick({1, 2, 3, 4, 8});
    const int64_t size = random.pick<int64_t>({16, 48, 64}), queries = random.pick<int64_t>({1, 2, 9});
    PackedProblem p = problem(
        {KVP_ROLE_KEY, bits, random.pick({KVP_GROUP_HEAD_DIM, KVP_GROUP_TOKENS}), size, 64, kB16},
        {KVP_ROLE_VALUE, bits, random.pick({KVP_GROUP_HEAD_DIM, KVP_GROUP_TOKENS}), size, 64, kB16}, 12, 3, queries);
    if (random.chance(50)) p.window = 700;
    const int64_t block = block_of(p);
    for (int i = 0; i < 3; ++i) add_row(&random, &p, random.below(5), block * (1 + random.below(2000 / block)), 7);
    const Answer base = run(p);
    for (int cut = 0; cut < 3; ++cut) {
      const Answer other = run(p, [&](int64_t i) {
        return cut == 0 ? block : cut == 1 ? block * (1 + i % 3) : 4096 * block;
      });
      ASSERT_EQ(other.out, base.out) << "seed " << seed << " cut " << cut;
      ASSERT_EQ(other.lse, base.lse) << "seed " << seed << " cut " << cut;
    }
    PackedProblem alone = p;
    alone.rows.erase(alone.rows.begin(), alone.rows.begin() + 2);
    const Answer single = run(alone);
    ASSERT_TRUE(std::equal(single.out.begin(), single.out.end(),
                           base.out.end() - static_cast<std::ptrdiff_t>(single.out.size())))
        << "seed " << seed;
  }
}

TEST_F(CudaPackedAttention, ANanGroupReachesWhoSeesItAndNobodyElse) {
  for (const int32_t group_dim : {KVP_GROUP_HEAD_DIM, KVP_GROUP_TOKENS}) {
    for (const bool keys : {false, true}) {
      for (const int64_t queries : {1, 20}) {
        Random random(9);
        PackedProblem p = problem({KVP_ROLE_KEY, 2, group_dim, 16, 32, kF32},
                                  {KVP_ROLE_VALUE, 2, group_dim, 16, 32, kF32}, 4, 2, queries);
        add_row(&random, &p, 0, 640, 0);
        PackedTensor& x = keys ? p.rows[0].k : p.rows[0].v;
        x.scale[x.group_at(1, 100, 3)] = kNan;
        const auto half = static_cast<size_t>(2 * queries * 32);
        const Answer got = run(p);
        EXPECT_TRUE(std::isnan(got.out[half + 3]));
        for (size_t i = 0; i < half; ++i) ASSERT_FALSE(std::isnan(got.out[i])) << "another K/V head";
        p.window = 300;
        for (const float o : run(p).out) ASSERT_FALSE(std::isnan(o)) << "outside of the window";
      }
    }
  }
}

TEST_F(CudaPackedAttention, ACallThatContradictsItselfWritesNothing) {
  Random random(3);
  PackedProblem p = problem({KVP_ROLE_KEY, 4, KVP_GROUP_HEAD_DIM, 32, 32, kB16},
                            {KVP_ROLE_VALUE, 4, KVP_GROUP_HEAD_DIM, 32, 32, kB16}, 2, 1, 1);
  add_row(&random, &p, 0, 64, -2);  // a packed token is newer than the query
  const Answer got = run(p);
  EXPECT_EQ(got.status, KVP_INVALID_ARGUMENT);
  for (const float x : got.out) ASSERT_EQ(x, 123);
  p.rows[0].q_position = 64;
  EXPECT_EQ(run(p).status, KVP_OK);
  EXPECT_EQ(run(p, [](int64_t) { return 24; }).status, KVP_INVALID_ARGUMENT);  // half a block
}

}  // namespace
}  // namespace kvplug::test
