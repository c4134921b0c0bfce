// SPDX-License-Identifier: Apache-2.0
// packed_attend(): every SIMD level within the derived bound of a reference in double precision, and the rules about
// bits, masks, NaN and refusals.
#include <gtest/gtest.h>

#include "packed_rules.h"

namespace kvplug::test {
namespace {

std::vector<const char*> levels() {
  std::vector<const char*> found;
  for (const char* level : {"scalar", "avx2", "avx512", "avx512_vnni"}) {
    if (sdk::set_attend_level(level)) found.push_back(level);
  }
  sdk::set_attend_level(nullptr);
  return found;
}

// Workers that take their shares one after the other.
struct Shares {
  int32_t count;
  kvp_host_parallel table{sizeof(kvp_host_parallel), this, workers, parallel_for};
  explicit Shares(int32_t n) : count(n) {}
  static int32_t workers(void* self) { return static_cast<Shares*>(self)->count; }
  static int32_t parallel_for(void* self, int64_t n, int64_t, kvp_parallel_fn fn, void* arg) {
    const int32_t count = static_cast<Shares*>(self)->count;
    for (int32_t w = count - 1; w >= 0; --w) {
      if (n * w / count < n * (w + 1) / count) fn(arg, n * w / count, n * (w + 1) / count, w);
    }
    return KVP_OK;
  }
};

Answer run(const PackedProblem& p, int32_t workers, const Cut& cut) {
  const PackedPages pages(p, cut);
  const int64_t batch = static_cast<int64_t>(p.rows.size());
  std::vector<std::byte> q;
  std::vector<int64_t> position;
  for (const PackedRow& row : p.rows) {
    position.push_back(row.q_position);
    for (const float x : row.q) {
      q.resize(q.size() + p.q_dtype.bits / 8);
      encode_element(p.q_dtype, x, q.data() + q.size() - p.q_dtype.bits / 8);
    }
  }
  Answer a;
  a.lse.assign(static_cast<size_t>(batch * p.q_heads * p.queries), 123);
  a.out.assign(a.lse.size() * static_cast<size_t>(p.v.head_dim), 123);
  kvp_tensor tq = tensor_of(q.data(), p.q_dtype, {batch, p.q_heads, p.queries, p.k.head_dim});
  kvp_tensor out = tensor_of(a.out.data(), kF32, {batch, p.q_heads, p.queries, p.v.head_dim});
  kvp_tensor lse = tensor_of(a.lse.data(), kF32, {batch, p.q_heads, p.queries});
  const size_t bytes = sdk::packed_attend_workspace(p.k, p.v, p.desc(), workers);
  std::vector<std::byte> memory(bytes + 128, std::byte{0xff});  // floats: NaN
  const size_t skip = 64 - reinterpret_cast<uintptr_t>(memory.data()) % 64;
  Shares shares(workers);
  a.status =
      sdk::packed_attend(p.k, p.v, pages.args(&tq, position.data(), memory.data() + skip), &shares.table, out, lse);
  for (size_t i = skip + bytes; i < memory.size(); ++i) EXPECT_EQ(memory[i], std::byte{0xff}) << "workspace overrun";
  return a;
}
Answer run(const PackedProblem& p) { return run(p, 1, usual_cut(p)); }
const Runner kRunner = [](const PackedProblem& p, const Cut& cut) { return run(p, 1, cut); };

void check_levels(const PackedProblem& p, const std::string& what) {
  std::vector<PackedExpected> want;
  for (const PackedRow& row : p.rows) want.push_back(expected(p, row));
  Answer avx512;
  for (const std::string level : levels()) {
    sdk::set_attend_level(level.c_str());
    const Answer got = run(p);
    expect_within_bound(p, want, got, what + " at " + level);
    if (level == "avx512") avx512 = got;
    if (level == "avx512_vnni") {
      EXPECT_EQ(got.out, avx512.out) << what << ": VNNI computes the same integers";
    }
  }
  sdk::set_attend_level(nullptr);
}

TEST(PackedAttention, EveryFormIsWithinItsBound) {
  Random random(1);
  for (const int32_t bits : {1, 2, 3, 4, 8}) {
    for (const int64_t dim : {8, 16, 64, 80, 96, 128, 192, 256}) {
      for (const int32_t group_dim : {KVP_GROUP_HEAD_DIM, KVP_GROUP_TOKENS}) {
        for (const int64_t size : {16, 32, 48, 64, 256}) {
          const kvp_dtype scales = random.pick({kF32, kB16, kF16});
          PackedProblem p = problem({KVP_ROLE_KEY, bits, group_dim, size, dim, scales},
                                    {KVP_ROLE_VALUE, bits, group_dim, size, dim, scales}, 2, 1, 1);
          add_row(&random, &p, 0, block_of(p) * (block_of(p) == 16 ? 5 : 2), 3);
          check_levels(p, name(p.k));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(PackedAttention, EveryFloat8IsWithinItsBound) {
  Random random(2);
  for (const int32_t format : {KVP_FORMAT_FP8_E4M3, KVP_FORMAT_FP8_E5M2}) {
    for (const int64_t dim : {1, 8, 16, 20, 33, 64, 80, 96, 128, 192, 256}) {
      for (const int64_t queries : {1, 3, 20}) {
        const kvp_dtype scales = random.pick({kF32, kB16, kF16});
        PackedProblem p = problem(float8_form(KVP_ROLE_KEY, format, dim, scales),
                                  float8_form(KVP_ROLE_VALUE, format, dim, scales), 6, 2, queries);
        for (const int64_t tokens : {16, 592, 1200}) add_row(&random, &p, 3, tokens, tokens == 592 ? -1 : 2);
        check_levels(p, name(p.k) + ", " + std::to_string(queries) + " queries");
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(PackedAttention, EveryMaskShapeAndMixIsWithinItsBound) {
  for (uint64_t seed = 0; seed < 250; ++seed) {
    const PackedProblem p = random_packed_problem(seed + 100);
    check_levels(p, "seed " + std::to_string(seed) + ": keys " + name(p.k) + ", values " + name(p.v));
    if (HasFatalFailure()) return;
  }
}

TEST(PackedAttention, NeitherWorkersNorPagesNorNeighboursChangeABit) {
  std::vector<Runner> runs;
  for (const int32_t workers : {1, 2, 7}) {
    runs.emplace_back([workers](const PackedProblem& p, const Cut& cut) { return run(p, workers, cut); });
  }
  for (uint64_t seed = 0; seed < 30 && !HasFatalFailure(); ++seed) expect_same_bits(seed, runs);
}

TEST(PackedAttention, KernelErrorOnGaussianData) {
  Random random(5);
  for (const int32_t bits : {1, 2, 3, 4, 8}) {
    for (const int32_t keys : {KVP_GROUP_HEAD_DIM, KVP_GROUP_TOKENS}) {
      PackedProblem p = problem({KVP_ROLE_KEY, bits, keys, 64, 128, kB16},
                                {KVP_ROLE_VALUE, bits, KVP_GROUP_HEAD_DIM, 64, 128, kB16}, 4, 1, 1);
      for (int i = 0; i < 4; ++i) add_row(&random, &p, 0, 1024, 0);
      for (const char* level : levels()) {
        sdk::set_attend_level(level);
        const Answer got = run(p);
        double error = 0, power = 0;
        for (size_t b = 0; b < p.rows.size(); ++b) {
          const PackedExpected want = expected(p, p.rows[b]);
          for (size_t i = 0; i < want.out.size(); ++i) {
            const double x = static_cast<double>(got.out[b * want.out.size() + i]) - want.out[i];
            error += x * x;
            power += want.out[i] * want.out[i];
          }
        }
        EXPECT_LE(error / power, bits == 8 ? 1e-7 : 5e-4) << name(p.k) << " at " << level;
        RecordProperty(std::to_string(bits) + (keys == KVP_GROUP_TOKENS ? "_tokens_" : "_channels_") + level,
                       std::to_string(error / power));
      }
      sdk::set_attend_level(nullptr);
    }
  }
}

TEST(PackedAttention, ANanGroupReachesWhoSeesItAndNobodyElse) {
  for (const std::string level : levels()) {
    SCOPED_TRACE(level);
    sdk::set_attend_level(level.c_str());
    for (const int32_t bits : {2, 8}) {
      for (const int32_t group_dim : {KVP_GROUP_HEAD_DIM, KVP_GROUP_TOKENS}) {
        for (const bool keys : {false, true}) {
          for (const bool in_scale : {false, true}) {
            for (const int64_t queries : {1, 20})
              expect_nan_where_seen(bits, group_dim, keys, in_scale, queries, kRunner);
          }
        }
      }
    }
  }
  sdk::set_attend_level(nullptr);
}

// A NaN code reaches whom its token has a weight for: through a key everything, through a value its channel.
TEST(PackedAttention, AFloat8NanReachesWhoSeesItAndNobodyElse) {
  for (const int32_t format : {KVP_FORMAT_FP8_E4M3, KVP_FORMAT_FP8_E5M2}) {
    for (const uint8_t code : {uint8_t{0x7f}, uint8_t{0xff}}) {
      for (const bool keys : {false, true}) {
        for (const int64_t queries : {1, 20}) {
          Random random(9);
          PackedProblem p =
              problem(float8_form(KVP_ROLE_KEY, format, 40), float8_form(KVP_ROLE_VALUE, format, 40), 10, 2, queries);
          add_row(&random, &p, 0, 640, 0);
          PackedTensor& x = keys ? p.rows[0].k : p.rows[0].v;
          x.codes[x.code_at(1, 100, 3)] = code;
          const size_t half = static_cast<size_t>(5 * queries * 40);
          for (const char* level : levels()) {
            sdk::set_attend_level(level);
            const Answer got = run(p);
            for (size_t i = 0; i < 2 * half; ++i) {
              ASSERT_EQ(std::isnan(got.out[i]), i >= half && (keys || i % 40 == 3)) << level << ' ' << i;
            }
            p.window = 300;
            for (const float o : run(p).out) ASSERT_FALSE(std::isnan(o)) << "outside of the window, " << level;
            p.window = 0;
          }
          sdk::set_attend_level(nullptr);
        }
      }
    }
  }
}

TEST(PackedAttention, WhatItDoesNotServeIsRefusedInWords) {
  const sdk::PackedForm k = {KVP_ROLE_KEY, 4, KVP_GROUP_HEAD_DIM, 64, 128, kB16};
  sdk::PackedForm v = k;
  v.role = KVP_ROLE_VALUE;
  const PackedProblem p = problem(k, v, 8, 2, 1);
  const auto refusal = [&](auto&& change) {
    sdk::PackedForm form = k;
    kvp_qattend_desc desc = p.desc();
    change(form, desc);
    const char* why = sdk::packed_attend_refusal(form, v, desc);
    return std::string(why != nullptr ? why : "");
  };
  EXPECT_EQ(refusal([](auto&, auto&) {}), "");
  EXPECT_NE(refusal([](auto& f, auto&) { f.group_size = 12; }).find("multiple of 16"), std::string::npos);
  EXPECT_NE(refusal([](auto& f, auto&) { f.group_dim = KVP_GROUP_TOKENS, f.group_size = 24; }).find("multiple of 16"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& f, auto&) { f.bits = 5; }).find("bits"), std::string::npos);
  const auto float8 = [](auto& f) { f.format = KVP_FORMAT_FP8_E4M3, f.bits = 8, f.group_size = 128; };
  EXPECT_EQ(refusal([&](auto& f, auto&) { float8(f); }), "");
  EXPECT_NE(refusal([&](auto& f, auto&) { float8(f), f.group_size = 64; }).find("one scale"), std::string::npos);
  EXPECT_NE(refusal([&](auto& f, auto&) { float8(f), f.format = KVP_FORMAT_CODEBOOK; }).find("e4m3"),
            std::string::npos);
  EXPECT_NE(refusal([](auto& f, auto&) { f.head_dim = 64; }).find("head dimensions"), std::string::npos);
  EXPECT_NE(refusal([](auto& f, auto& d) { f.head_dim = d.key_dim = 1024; }).find("512"), std::string::npos);
  EXPECT_NE(refusal([](auto&, auto& d) { d.q_heads = 3; }).find("multiple of the K/V heads"), std::string::npos);
  EXPECT_NE(refusal([](auto&, auto& d) { d.q_dtype = {KVP_DTYPE_INT, 32, 1}; }).find("queries"), std::string::npos);
  EXPECT_NE(refusal([](auto&, auto& d) { d.device_type = KVP_DEVICE_CUDA; }).find("CPU"), std::string::npos);
}

TEST(PackedAttention, ACallThatContradictsItselfWritesNothing) { expect_contradictions_write_nothing(kRunner); }

}  // namespace
}  // namespace kvplug::test
