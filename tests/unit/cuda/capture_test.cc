// SPDX-License-Identifier: Apache-2.0
// kvp.capture/1 of "static": steps whose calls are the same each time, the device counting by itself, store and show
// the same as ordinary steps. A recorded graph is imitated by making the same call again.
#include "kinds.h"

namespace kvplug::test {
namespace {

const Kind& fixed_kind() { return kKinds[1]; }

struct Step {
  Values q, k, v, out;
};

kvp_attend_args attend_args(const Step& step) {
  kvp_attend_args args{};
  args.struct_size = sizeof args;
  args.flags = KVP_ATTEND_CAUSAL;
  args.q = &step.q.t, args.k = &step.k.t, args.v = &step.v.t;
  args.scale = 0.25f;
  return args;
}

Step random_step(int64_t batch, int64_t tokens, Random& random) {
  Step step{make(kF32, {batch, 4, tokens, 16}), make(kF32, {batch, 2, tokens, 16}), make(kF32, {batch, 2, tokens, 16}),
            make(kF32, {batch, 4, tokens, 16})};
  fill(step.q, random), fill(step.k, random), fill(step.v, random);
  return step;
}

const kvp_capture_ext& capture_of(const Kind& kind) {
  return *static_cast<const kvp_capture_ext*>(iface_of(kind)->get_extension(KVP_EXT_CAPTURE));
}

kvp_tensor clock_of(std::vector<int32_t>& seen) {
  kvp_tensor t = tensor_of(seen.data(), {KVP_DTYPE_INT, 32, 1}, {static_cast<int64_t>(seen.size())});
  return t;
}

TEST(Capture, ReplayedStepsEqualOrdinaryOnes) {
  Random random(7);
  const KindArgs args(fixed_kind(), {{4, 2, 16, 16}, {4, 2, 16, 16}}, kF32, 3, 300);
  const kvp_cache_iface* iface = iface_of(fixed_kind());
  LoadedCache ordinary(iface, args.create), captured(iface, args.create);
  const Step prompt = random_step(2, 60, random);
  const int64_t pad[] = {0, 5};
  for (LoadedCache* cache : {&ordinary, &captured}) {
    for (int32_t layer = 0; layer < 2; ++layer) {
      kvp_attend_args first = attend_args(prompt);
      first.layer = layer;
      first.pad = pad;
      Values out = prompt.out;
      ASSERT_EQ(cache->attend(first, &out.t, nullptr), KVP_OK) << cache->text();
    }
  }
  std::vector<int32_t> seen = {60, 60};
  const kvp_tensor clock = clock_of(seen);
  const kvp_call call{sizeof(kvp_call), KVPLUG_TEST_DEVICE, 0, nullptr, 0, 0};
  const kvp_capture_ext& ext = capture_of(fixed_kind());
  ASSERT_EQ(ext.bind(captured.self(), &call, 1, &clock, nullptr), KVP_OK);
  captured.set_call_flags(KVP_CALL_CAPTURE);
  for (int step = 0; step < 80; ++step) {  // over the edges of several pages
    const Step one = random_step(2, 1, random);
    const Values replayed = make(kF32, {2, 4, 1, 16});
    for (int32_t layer = 0; layer < 2; ++layer) {
      kvp_attend_args again = attend_args(one);
      again.layer = layer;
      kvp_tensor out = one.out.t, other = replayed.t;
      ASSERT_EQ(ordinary.attend(again, &out, nullptr), KVP_OK) << ordinary.text();
      const int64_t before = TestHost::get().allocations();
      ASSERT_EQ(captured.attend(again, &other, nullptr), KVP_OK) << captured.text();
      ASSERT_EQ(TestHost::get().allocations(), before);
      // The same sums in the same order, but for where the parts of a row begin.
      for (int64_t b = 0; b < 2; ++b) {
        for (int64_t h = 0; h < 4; ++h) {
          for (int64_t d = 0; d < 16; ++d) ASSERT_NEAR(one.out.get(b, h, 0, d), replayed.get(b, h, 0, d), 1e-5);
        }
      }
    }
    for (int32_t& n : seen) ++n;
    ASSERT_EQ(ext.advance(captured.self(), 1, nullptr), KVP_OK);
  }
  EXPECT_EQ(captured.lengths(0, 1).seen, 140);
  EXPECT_EQ(captured.crop({1}), KVP_INVALID_STATE);
  ASSERT_EQ(ext.unbind(captured.self(), nullptr), KVP_OK);
  captured.set_call_flags(0);
  ASSERT_EQ(captured.crop({3}), KVP_OK) << captured.text();
  ASSERT_EQ(ordinary.crop({3}), KVP_OK) << ordinary.text();
  for (int32_t layer = 0; layer < 2; ++layer) {
    kvp_update_args none{};
    none.struct_size = sizeof none;
    none.layer = layer;
    kvp_tensor k{}, v{}, other_k{}, other_v{};
    ASSERT_EQ(ordinary.update(none, &k, &v), KVP_OK);
    ASSERT_EQ(captured.update(none, &other_k, &other_v), KVP_OK) << captured.text();
    ASSERT_EQ(k.shape[2], other_k.shape[2]);
    const auto bytes = static_cast<size_t>(k.shape[0] * k.shape[1] * k.shape[2] * k.shape[3]) * sizeof(float);
    EXPECT_EQ(std::memcmp(k.data, other_k.data, bytes), 0);
    EXPECT_EQ(std::memcmp(v.data, other_v.data, bytes), 0);
  }
}

TEST(Capture, WindowsAndTheFullCapacityAreRefused) {
  Random random(8);
  const KindArgs windowed(fixed_kind(), {{4, 2, 16, 16, KVP_LAYER_SLIDING, 8}}, kF32, 3, 64),
      full(fixed_kind(), {{4, 2, 16, 16}}, kF32, 3, 64);
  const kvp_cache_iface* iface = iface_of(fixed_kind());
  const kvp_capture_ext& ext = capture_of(fixed_kind());
  const kvp_call call{sizeof(kvp_call), KVPLUG_TEST_DEVICE, 0, nullptr, 0, 0};
  std::vector<int32_t> seen = {64};
  const kvp_tensor clock = clock_of(seen);
  for (const KindArgs* args : {&windowed, &full}) {
    LoadedCache cache(iface, args->create);
    const Step prompt = random_step(1, 64, random);
    Values out = prompt.out;
    ASSERT_EQ(cache.attend(attend_args(prompt), &out.t, nullptr), KVP_OK) << cache.text();
    if (args == &windowed) {
      EXPECT_EQ(ext.bind(cache.self(), &call, 1, &clock, nullptr), KVP_UNSUPPORTED);
    } else {
      ASSERT_EQ(ext.bind(cache.self(), &call, 1, &clock, nullptr), KVP_OK);
      EXPECT_EQ(ext.advance(cache.self(), 1, nullptr), KVP_CAPACITY);
    }
  }
}

}  // namespace
}  // namespace kvplug::test
