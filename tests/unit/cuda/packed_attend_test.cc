// SPDX-License-Identifier: Apache-2.0
// Attention over packed K/V on a device against the reference in double precision, within the bound of the CPU's
// kernels, and the rules about bits and NaN. On the emulator here, on a device where tests/cuda is built.
#include "on_device.h"
#include "unit/sdk/packed_rules.h"

namespace kvplug::test {
namespace {

Answer run(const PackedProblem& p, const Cut& cut) {
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
Answer run(const PackedProblem& p) { return run(p, usual_cut(p)); }
const Runner kRunner = [](const PackedProblem& p, const Cut& cut) { return run(p, cut); };

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
  for (uint64_t seed = 0; seed < 6 && !HasFatalFailure(); ++seed) expect_same_bits(seed, {kRunner});
}

TEST_F(CudaPackedAttention, ANanGroupReachesWhoSeesItAndNobodyElse) {
  for (const int32_t group_dim : {KVP_GROUP_HEAD_DIM, KVP_GROUP_TOKENS}) {
    for (const bool keys : {false, true}) {
      for (const int64_t queries : {1, 20}) expect_nan_where_seen(2, group_dim, keys, true, queries, kRunner);
    }
  }
}

TEST_F(CudaPackedAttention, ACallThatContradictsItselfWritesNothing) { expect_contradictions_write_nothing(kRunner); }

}  // namespace
}  // namespace kvplug::test
