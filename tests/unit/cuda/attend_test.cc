// SPDX-License-Identifier: Apache-2.0
// The attention kernels of sdk/cuda against the reference in double precision: the same problems as the CPU's kernel.
// On the emulator here, on a device where tests/cuda is built.
#include "on_device.h"
#include "unit/sdk/attention_random.h"

namespace kvplug::test {
namespace {

// As sdk::attend, over the device interface: rows and blocks are uploaded, padding of rows included.
kvp_status device_attend(const sdk::AttendShape& shape, const sdk::AttendCall& call, const kvp_host_parallel*, void*,
                         size_t) {
  const sdk::Device& device = *sdk::cuda_device();
  std::vector<sdk::KvBlock> blocks;
  std::vector<sdk::DeviceRow> rows;
  int64_t longest = 0;
  for (int64_t b = 0; b < shape.batch; ++b) {
    const sdk::AttendRow& row = call.rows[b];
    rows.push_back({static_cast<int64_t>(blocks.size()), row.first_block, row.kv_begin, row.kv_end, row.q_position,
                    row.q_count, row.bias_column});
    longest = std::max(longest, row.kv_end - row.kv_begin);
    const int64_t n = (row.kv_end + sdk::kBlockTokens - 1) / sdk::kBlockTokens - row.first_block;
    blocks.insert(blocks.end(), row.blocks, row.blocks + std::max<int64_t>(n, 0));
  }
  const DeviceMemory list(blocks.size() * sizeof blocks[0]), table(rows.size() * sizeof rows[0]);
  const DeviceMemory scratch(device.attend_scratch_bytes(shape));
  int error = device.upload(0, nullptr, list.data(), blocks.data(), list.bytes());
  if (error == 0) error = device.upload(0, nullptr, table.data(), rows.data(), table.bytes());
  if (error == 0) {
    error = device.attend(0, nullptr, shape, call, static_cast<const sdk::DeviceRow*>(table.data()),
                          static_cast<const sdk::KvBlock*>(list.data()), longest, scratch.data());
  }
  finish_device();
  return error == 0 ? KVP_OK : KVP_DEVICE;
}

std::vector<Result> run_on_device(const Problem& p, const Presentation& how = {}) {
  kvp_status status = -1;
  bool clean = false;
  auto results = run(p, how, nullptr, &status, &clean, SIZE_MAX, device_attend);
  EXPECT_EQ(status, KVP_OK);
  EXPECT_TRUE(clean) << "a padding query was not out 0, lse -inf";
  return results;
}

class CudaAttention : public OnDevice {};

TEST_F(CudaAttention, EqualsTheReference) {
  for (uint64_t n = 0; n < 40; ++n) {
    Random random(n);
    const Problem p = random_problem(&random);
    SCOPED_TRACE("case " + std::to_string(n) + ": " + describe(p));
    for (const bool reverse : {false, true}) {
      reverse_threads(reverse);
      const auto got = run_on_device(p);
      ASSERT_EQ(got.size(), p.rows.size());
      for (size_t b = 0; b < got.size(); ++b) expect_near(got[b], reference(p, p.rows[b]), tolerance(p.out_dtype));
    }
    if (HasFailure()) return;
  }
}

// Decoding of long rows is cut into parts: lengths around every edge, and one that needs larger parts.
TEST_F(CudaAttention, DecodesRowsOfManyParts) {
  uint64_t salt = 5000;
  for (const int64_t tokens : {1, 63, 64, 65, 255, 256, 257, 511, 512, 513, 1500, 9000}) {
    Random random(salt++);
    Problem p;
    p.shape = {};
    p.shape.q_heads = 4, p.shape.kv_heads = 2, p.shape.key_dim = 32, p.shape.value_dim = 16;
    p.shape.dtype = random.pick({kF32, kB16, kF16});
    p.scale = 0.2f;
    if (tokens % 2 == 0) random.fill(&p.sinks, p.shape.q_heads, kF32, 2);
    for (const int64_t window : {int64_t{0}, int64_t{300}}) {
      p.window = window;
      p.rows.clear();
      for (const int64_t length : {tokens, int64_t{1}, tokens / 2 + 1}) {
        Row row;
        row.q_count = 1;
        row.q_position = length - 1;
        row.kv_end = length;
        fill_row(&random, p, &row, false);
        p.rows.push_back(std::move(row));
      }
      SCOPED_TRACE(describe(p));
      const auto got = run_on_device(p);
      for (size_t b = 0; b < got.size(); ++b) expect_near(got[b], reference(p, p.rows[b]), tolerance(p.out_dtype));
      for (size_t b = 0; b < got.size(); ++b) {  // neighbours leave its bits alone
        Problem one = p;
        one.rows = {p.rows[b]};
        expect_same(run_on_device(one)[0], got[b]);
      }
    }
  }
}

TEST_F(CudaAttention, WhereTheBlocksLieChangesNoBit) {
  for (uint64_t n = 0; n < 10; ++n) {
    Random random(1000 + n);
    const Problem p = random_problem(&random);
    SCOPED_TRACE("case " + std::to_string(n) + ": " + describe(p));
    Presentation how;
    how.blocks = random.pick({Presentation::kTokenMajor, Presentation::kScattered});
    how.spare_blocks = random.chance(50);
    how.seed = n + 17;
    const auto base = run_on_device(p), got = run_on_device(p, how);
    for (size_t b = 0; b < base.size(); ++b) expect_same(got[b], base[b]);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace kvplug::test
