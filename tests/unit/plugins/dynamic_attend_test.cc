// SPDX-License-Identifier: Apache-2.0
// kvp.attend/1 of dynamic: update and plain attention within the tolerance that probe declares, for every mask and
// option of the contract; and bits that do not depend on padding, neighbours, sharing or threads.
#include <gtest/gtest.h>

#include <cmath>

#include "dynamic_fixture.h"
#include "reference_attention.h"

namespace kvplug::test {
namespace {

constexpr int32_t kHeads = 4, kKvHeads = 2, kDim = 16, kValueDim = 8;
const std::vector<LayerShape> kShapes = {{kHeads, kKvHeads, kDim, kValueDim}};

kvp_attend_args attend_args(const Values& q, const Values* k, const Values* v, const AttendParams& p) {
  kvp_attend_args args{};
  args.struct_size = sizeof args;
  args.flags = p.causal ? KVP_ATTEND_CAUSAL : 0;
  args.q = &q.t;
  args.k = k == nullptr ? nullptr : &k->t;
  args.v = v == nullptr ? nullptr : &v->t;
  args.bias = p.bias == nullptr ? nullptr : &p.bias->t;
  args.sinks = p.sinks == nullptr ? nullptr : &p.sinks->t;
  args.window = p.window;
  args.chunk = p.chunk;
  args.scale = static_cast<float>(p.scale);
  args.softcap = static_cast<float>(p.softcap);
  return args;
}

double tolerance_of(kvp_dtype dtype) {
  const CreateArgs args(kShapes, dtype, 1);
  kvp_cache_info info{};
  info.struct_size = sizeof info;
  EXPECT_EQ(dynamic_iface()->probe(&args.create, &info, nullptr), KVP_OK);
  return info.tolerance * 8;  // the largest |v| of the tests' values
}

// Queries of row b stand at slot0[b] and up; those from live[b] on are right padding.
void expect_attention(const ReferenceCache& want, const Values& q, const Values& out, const Values& lse,
                      const AttendParams& p, const std::vector<int64_t>& slot0, const std::vector<int64_t>& live,
                      double tolerance) {
  for (int64_t b = 0; b < q.t.shape[0]; ++b) {
    for (int64_t h = 0; h < kHeads; ++h) {
      for (int64_t i = 0; i < q.t.shape[2]; ++i) {
        const int64_t slot = i < live[static_cast<size_t>(b)] ? slot0[static_cast<size_t>(b)] + i : -1;
        const AttendResult r = attend_one(want, 0, b, q, h, i, slot, p);
        const double got_lse = static_cast<double>(lse.get(b, h, i));
        if (std::isinf(r.lse)) {
          ASSERT_EQ(got_lse, r.lse) << "row " << b << ", query " << i;
        } else {
          ASSERT_NEAR(got_lse, r.lse, 1e-4 * std::max(1.0, std::abs(r.lse))) << "row " << b << ", query " << i;
        }
        for (int64_t d = 0; d < kValueDim; ++d) {
          ASSERT_NEAR(static_cast<double>(out.get(b, h, i, d)), r.out[static_cast<size_t>(d)], tolerance)
              << "row " << b << ", head " << h << ", query " << i << ", dim " << d;
        }
      }
    }
  }
}

TEST(DynamicAttend, EqualsUpdateAndPlainAttention) {
  for (const kvp_dtype dtype : {kF32, kF16, kBF16}) {
    const double tolerance = tolerance_of(dtype);
    for (uint64_t seed = 1; seed <= 12; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", bits " + std::to_string(dtype.bits) + ", code " +
                   std::to_string(dtype.code));
      Random random(seed);
      const CreateArgs create(kShapes, dtype, 1);
      LoadedCache cache(dynamic_iface(), create.create);
      ReferenceCache want = reference_for(kShapes);
      const int64_t batch = pick(random, 1, 3);
      for (int call = 0; call < 5; ++call) {
        SCOPED_TRACE("call " + std::to_string(call));
        const int64_t tokens = call == 0 ? pick(random, 1, 150) : pick(random, 0, 3) == 0 ? pick(random, 2, 40) : 1;
        const bool wide = pick(random, 0, 1) == 0;
        const bool appends = call == 0 || pick(random, 0, 4) != 0;
        std::vector<int64_t> pad(static_cast<size_t>(batch), 0), count(static_cast<size_t>(batch), tokens);
        const bool ragged = pick(random, 0, 2) == 0;
        for (size_t b = 0; b < pad.size(); ++b) {
          if (ragged) count[b] = pick(random, 0, tokens);
          if (call == 0) pad[b] = pick(random, 0, std::min<int64_t>(count[b], 5));
        }
        const Values q = random_kv(dtype, batch, kHeads, tokens, kDim, random);
        const Values k = random_kv(dtype, batch, kKvHeads, tokens, kDim, random);
        const Values v = random_kv(dtype, batch, kKvHeads, tokens, kValueDim, random);
        const int64_t kv_len = want.longest(0) + (appends ? tokens : 0);
        AttendParams p;
        p.scale = 0.05;
        p.causal = pick(random, 0, 3) != 0;
        if (pick(random, 0, 2) == 0) p.window = pick(random, 1, 90);
        if (pick(random, 0, 3) == 0) p.chunk = pick(random, 1, 90);
        if (pick(random, 0, 2) == 0) p.softcap = 3;
        const Values bias = fill(make(kF32, {pick(random, 0, 1) == 0 ? 1 : batch, 1, tokens, kv_len}), random);
        const Values sinks = make(kF32, {kHeads});
        for (int64_t h = 0; h < kHeads; ++h) sinks.set(static_cast<float>(h) - 1, h);
        if (pick(random, 0, 2) == 0) p.bias = &bias;
        if (pick(random, 0, 2) == 0) p.sinks = &sinks;

        std::vector<int64_t> slot0, live;
        for (int64_t b = 0; b < batch; ++b) {
          const int64_t seen = call == 0 ? 0 : want.layer(0).rows[static_cast<size_t>(b)].seen();
          slot0.push_back(appends ? seen : seen - tokens);
          live.push_back(appends && ragged ? count[static_cast<size_t>(b)] : tokens);
        }
        kvp_attend_args args = attend_args(q, appends ? &k : nullptr, appends ? &v : nullptr, p);
        args.pad = pad.data();
        args.count = ragged ? count.data() : nullptr;
        if (!ragged && pick(random, 0, 3) == 0) {
          args.flags |= KVP_ATTEND_Q_OFFSET;
          args.q_offset = pick(random, 0, kv_len + 5);
          for (int64_t& slot : slot0) slot = args.q_offset;
        }
        Values out = make(wide ? kF32 : dtype, {batch, kHeads, tokens, kValueDim});
        Values lse = make(kF32, {batch, kHeads, tokens});
        ASSERT_EQ(cache.attend(args, &out.t, &lse.t), KVP_OK) << cache.text();
        if (appends) want.append(0, k, v, pad.data(), ragged ? count.data() : nullptr);
        ASSERT_NO_FATAL_FAILURE(expect_same(cache, want));
        ASSERT_NO_FATAL_FAILURE(expect_attention(want, q, out, lse, p, slot0, live, tolerance));
      }
      EXPECT_EQ(cache.counter("fused_attend_calls"), 5u);
    }
  }
}

TEST(DynamicAttend, AnEmptyCacheGivesZeroAndMinusInfinity) {
  const CreateArgs create(kShapes, kF32, 1);
  LoadedCache cache(dynamic_iface(), create.create);
  Random random(3);
  const Values q = random_kv(kF32, 2, kHeads, 3, kDim, random);
  Values out = make(kF32, {2, kHeads, 3, kValueDim}), lse = make(kF32, {2, kHeads, 3});
  fill(out, random);
  ASSERT_EQ(cache.attend(attend_args(q, nullptr, nullptr, {}), &out.t, &lse.t), KVP_OK) << cache.text();
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(out.get(1, 2, i, 3), 0.0f);
    EXPECT_EQ(lse.get(1, 2, i), -INFINITY);
  }
}

// One prompt and ten steps of a row; what its last step gives. `neighbours` other rows come before it, `pad` slots of
// padding before its prompt, and the threads cut the work as they like.
std::vector<std::byte> last_step(kvp_dtype dtype, int64_t neighbours, int64_t pad, int32_t workers, int64_t pieces,
                                 bool shared) {
  TestHost::get().set_workers(workers, pieces);
  const CreateArgs create(kShapes, dtype, 1);
  LoadedCache cache(dynamic_iface(), create.create);
  Random own(11), other(12);
  const int64_t batch = neighbours + 1;
  Values out, lse;
  for (int step = 0; step <= 10; ++step) {
    const int64_t tokens = step == 0 ? 700 : 1, slots = step == 0 ? tokens + pad : tokens;
    Values q = make(dtype, {batch, kHeads, slots, kDim}), k = make(dtype, {batch, kKvHeads, slots, kDim});
    Values v = make(dtype, {batch, kKvHeads, slots, kValueDim});
    for (const Values* t : {&q, &k, &v}) fill(*t, other);
    for (const Values* t : {&q, &k, &v}) {  // the row's own values, wherever it stands
      for (int64_t h = 0; h < t->t.shape[1]; ++h) {
        for (int64_t i = slots - tokens; i < slots; ++i) {
          for (int64_t d = 0; d < t->t.shape[3]; ++d) {
            t->set(static_cast<float>(pick(own, -128, 127)) / 16, neighbours, h, i, d);
          }
        }
      }
    }
    std::vector<int64_t> pads(static_cast<size_t>(batch), 0);
    pads.back() = pad;
    AttendParams p;
    p.scale = 0.05;
    kvp_attend_args args = attend_args(q, &k, &v, p);
    args.pad = step == 0 ? pads.data() : nullptr;
    out = make(dtype, {batch, kHeads, slots, kValueDim});
    lse = make(kF32, {batch, kHeads, slots});
    EXPECT_EQ(cache.attend(args, &out.t, &lse.t), KVP_OK) << cache.text();
    if (shared && step == 0) {
      std::vector<int64_t> src(static_cast<size_t>(batch), neighbours);
      EXPECT_EQ(cache.gather(src), KVP_OK);
    }
  }
  TestHost::get().set_workers(1);
  std::vector<std::byte> bits(out.at(neighbours), out.at(neighbours) + kHeads * kValueDim * dtype.bits / 8);
  bits.insert(bits.end(), lse.at(neighbours), lse.at(neighbours) + kHeads * 4);
  return bits;
}

TEST(DynamicAttend, BitsDoNotDependOnSurroundings) {
  for (const kvp_dtype dtype : {kF32, kF16, kBF16}) {
    const std::vector<std::byte> alone = last_step(dtype, 0, 0, 1, 1, false);
    EXPECT_EQ(alone, last_step(dtype, 0, 37, 1, 1, false)) << "padding";
    EXPECT_EQ(alone, last_step(dtype, 3, 0, 1, 1, false)) << "neighbours";
    EXPECT_EQ(alone, last_step(dtype, 2, 5, 1, 1, true)) << "shared pages";
    EXPECT_EQ(alone, last_step(dtype, 0, 0, 2, 1, false)) << "two threads";
    EXPECT_EQ(alone, last_step(dtype, 1, 3, 7, 2, false)) << "seven threads, larger pieces";
  }
}

TEST(DynamicAttend, ProbeSaysWhichTypesItTakes) {
  const CreateArgs create(kShapes, kBF16, 1);
  LoadedCache cache(dynamic_iface(), create.create);
  const auto* ext = static_cast<const kvp_attend_ext*>(dynamic_iface()->get_extension(KVP_EXT_ATTEND));
  kvp_attend_desc desc{};
  desc.struct_size = sizeof desc;
  desc.max_batch = 1;
  desc.max_query = 512;
  desc.q_dtype = desc.out_dtype = kBF16;
  EXPECT_EQ(ext->probe(cache.self(), &desc, nullptr), KVP_OK);
  desc.out_dtype = kF32;
  EXPECT_EQ(ext->probe(cache.self(), &desc, nullptr), KVP_OK);
  desc.out_dtype = kF16;
  EXPECT_EQ(ext->probe(cache.self(), &desc, nullptr), KVP_UNSUPPORTED);
  desc.q_dtype = kF32;
  desc.out_dtype = kBF16;
  EXPECT_EQ(ext->probe(cache.self(), &desc, nullptr), KVP_UNSUPPORTED);
  desc.q_dtype = kBF16;
  desc.layer = 1;
  EXPECT_EQ(ext->probe(cache.self(), &desc, nullptr), KVP_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace kvplug::test
