// SPDX-License-Identifier: Apache-2.0
// The cache "quantized" with real quantizers on a device, which is the emulator, beside itself on the CPU: views to the
// bit, attention as near as the CPU's integer products allow, data where they belong.
#include "quantizer_kinds.h"

namespace kvplug::test {
namespace {

struct Case {
  Kind kind;
  int64_t sinks = 0, window = 0;
  bool turned = false;
  const char* fused = "required";
};

kvp_tensor on(int32_t device_type, kvp_tensor t) {
  t.device_type = device_type;
  return t;
}

// One layer of 2 K/V heads and 6 query heads of dims 32.
class Cache {
 public:
  Cache(const Case& c, kvp_dtype dtype, int32_t device_type, uint64_t owner)
      : call_{sizeof(kvp_call), device_type, 0, nullptr, 0, 0},
        iface_(static_cast<const kvp_cache_iface*>(load_plugin("quantized.so")->descriptor(0)->iface)),
        k_(c.kind.plugin, c.kind.options(), dtype, 32, KVP_ROLE_KEY, nullptr, device_type),
        v_(c.kind.plugin, c.kind.options(), dtype, 32, KVP_ROLE_VALUE, nullptr, device_type) {
    CreateArgs args({{6, 2, 32, 32, c.window > 0 ? KVP_LAYER_SLIDING : KVP_LAYER_FULL, c.window}}, dtype, owner);
    const kvp_qhandle k{sizeof k, k_.iface(), k_.self(), "k"}, v{sizeof v, v_.iface(), v_.self(), "v"};
    const kvp_option options[] = {option("residual_length", int64_t{20}), option("sink_tokens", c.sinks),
                                  option("rotation", c.turned ? "hadamard" : "none"),
                                  option("fused_attention", c.fused)};
    args.create.options = options;
    args.create.n_options = std::size(options);
    args.create.quantizer_key = &k;
    args.create.quantizer_value = &v;
    args.create.device_type = device_type;
    check(iface_->create(&args.create, &self_, &err_), "create");
  }
  Cache(const Cache&) = delete;
  ~Cache() { iface_->destroy(self_); }

  void attend(const Values& q, const Values& k, const Values& v, const Values& out, const Values& lse) {
    const auto* ext = static_cast<const kvp_attend_ext*>(iface_->get_extension(KVP_EXT_ATTEND));
    const kvp_tensor tq = here(q), tk = here(k), tv = here(v);
    kvp_tensor to = here(out), to_lse = here(lse);
    kvp_attend_args args{};
    args.struct_size = sizeof args;
    args.flags = KVP_ATTEND_CAUSAL;
    args.q = &tq, args.k = &tk, args.v = &tv;
    args.scale = 0.2f;
    check(ext->attend(self_, &call_, &args, &to, &to_lse, &err_), "attend");
  }
  void crop(int64_t n) { check(iface_->crop(self_, &call_, &n, 1, &err_), "crop"); }
  std::pair<kvp_tensor, kvp_tensor> views() {
    kvp_update_args args{};
    args.struct_size = sizeof args;
    std::pair<kvp_tensor, kvp_tensor> out;
    check(iface_->update(self_, &call_, &args, &out.first, &out.second, &err_), "update");
    return out;
  }
  kvp_memory memory() {
    kvp_memory out{};
    out.struct_size = sizeof out;
    check(iface_->memory(self_, -1, &out, &err_), "memory");
    return out;
  }

 private:
  kvp_tensor here(const Values& v) const { return on(call_.device_type, v.t); }
  void check(int32_t status, const char* what) {
    if (status != KVP_OK) throw std::runtime_error(std::string(what) + ": " + text_);
  }

  kvp_call call_;
  char text_[256] = "";
  kvp_error err_{sizeof(kvp_error), 0, 0, text_, sizeof text_, 0};
  const kvp_cache_iface* iface_;
  LoadedQuantizer k_, v_;
  kvp_cache* self_ = nullptr;
};

void expect_same(const kvp_tensor& want, const kvp_tensor& got) {
  ASSERT_EQ(got.device_type, KVP_DEVICE_CUDA);
  ASSERT_EQ(want.shape[2], got.shape[2]);
  const Values a{nullptr, want}, b{nullptr, got};
  for (int64_t h = 0; h < want.shape[1]; ++h) {
    for (int64_t t = 0; t < want.shape[2]; ++t) {
      for (int64_t d = 0; d < 32; ++d) ASSERT_EQ(a.get(0, h, t, d), b.get(0, h, t, d)) << h << ' ' << t << ' ' << d;
    }
  }
}

TEST(CudaQuantized, IsWhatItIsOnTheCpu) {
  Random random(3);
  const Case cases[] = {{{"hqq", 4, 0, 64, ""}},
                        {{"hqq", 2, 1, 32, ""}, 4},
                        {{"hqq", 4, 1, 32, ""}, 0, 70},
                        {{"quanto", 4, 0, 32, ""}, 3, 0, true},
                        {{"quanto", 8, -1, 48, ""}},
                        {{"quanto", 2, 0, 24, ""}, 0, 0, false, "auto"},
                        {{"fp8", 8, 0, 0, "token_head"}, 2},
                        {{"fp8", 8, 0, 0, "token_head", "e5m2"}},
                        {{"hqq", 8, 1, 32, ""}, 0, 0, true, "off"}};
  for (size_t n_case = 0; n_case < std::size(cases); ++n_case) {
    const Case& c = cases[n_case];
    const kvp_dtype dtype = n_case % 2 == 0 ? kBF16 : kF32;
    SCOPED_TRACE(c.kind.name() + ", " + std::to_string(dtype.bits) + " bits, sinks " + std::to_string(c.sinks) +
                 ", window " + std::to_string(c.window) + (c.turned ? ", turned, " : ", ") + c.fused);
    Cache cpu(c, dtype, KVP_DEVICE_CPU, 1), device(c, dtype, KVP_DEVICE_CUDA, 2);
    const int64_t steps[] = {150, 1, 1, 60, 1, 20, 1, 1};
    for (size_t step = 0; step < std::size(steps); ++step) {
      SCOPED_TRACE("step " + std::to_string(step));
      const int64_t n = steps[step];
      const Values q = normal(dtype, 1, 6, n, 32, random), k = normal(dtype, 1, 2, n, 32, random),
                   v = normal(dtype, 1, 2, n, 32, random);
      const Values out = make(kF32, {1, 6, n, 32}), got = make(kF32, {1, 6, n, 32});
      const Values lse = make(kF32, {1, 6, n}), got_lse = make(kF32, {1, 6, n});
      cpu.attend(q, k, v, out, lse);
      device.attend(q, k, v, got, got_lse);
      for (int64_t h = 0; h < 6; ++h) {
        for (int64_t i = 0; i < n; ++i) {
          ASSERT_NEAR(lse.get(0, h, i), got_lse.get(0, h, i), 0.02) << h << ' ' << i;
          for (int64_t d = 0; d < 32; ++d) ASSERT_NEAR(out.get(0, h, i, d), got.get(0, h, i, d), 0.02) << h << ' ' << i;
        }
      }
      if (step == 4 && c.window == 0) cpu.crop(33), device.crop(33);  // into a block that is packed
      if (step % 4 != 0) continue;
      const auto want = cpu.views(), seen = device.views();
      ASSERT_NO_FATAL_FAILURE(expect_same(want.first, seen.first)) << "keys";
      ASSERT_NO_FATAL_FAILURE(expect_same(want.second, seen.second)) << "values";
    }
    const kvp_memory host = cpu.memory(), memory = device.memory();
    for (const int32_t purpose : {KVP_PURPOSE_PACKED, KVP_PURPOSE_RESIDUAL, KVP_PURPOSE_SCALES}) {
      EXPECT_GT(memory.used[KVP_TIER_DEVICE][purpose], 0u);
      EXPECT_EQ(memory.used[KVP_TIER_DEVICE][purpose], host.used[KVP_TIER_HOST][purpose]);
      EXPECT_EQ(memory.reserved[KVP_TIER_HOST][purpose], 0u);
    }
  }
}

TEST(CudaQuantized, RefusesWhatOnlyTheCpuHas) {
  const auto refusal = [](const Case& c) {
    try {
      const Cache made(c, kF32, KVP_DEVICE_CUDA, 3);
    } catch (const std::runtime_error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(refusal({{"quanto", 4, 0, 32, ""}}), "");
  EXPECT_NE(refusal({{"quanto", 2, 0, 24, ""}}).find("multiple of 16"), std::string::npos);
}

}  // namespace
}  // namespace kvplug::test
