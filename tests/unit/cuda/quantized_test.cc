// SPDX-License-Identifier: Apache-2.0
// The cache "quantized" with real quantizers on a device, beside itself on the CPU: views to the bit, attention as near
// as sums of float32 in another order are, data where they belong. On the emulator here, on a device where tests/cuda
// is built.
#include "needs_device.h"
#include "quantizer_kinds.h"

namespace kvplug::test {
namespace {

struct Case {
  Kind kind;
  int64_t sinks = 0, window = 0;
  bool turned = false;
  const char* fused = "required";
  int64_t batch = 1;
  float softcap = 0;
  bool bias = false, logits = false;  // per query and column; per head (kvp_attend_args::sinks)
};

struct Step {
  Values q, k, v, bias = {}, logits = {};
  const int64_t *pad = nullptr, *count = nullptr;
  float softcap = 0;
};

// A view in memory that tests can read.
Values fetched(const kvp_tensor& t) {
  Values out = make({t.dtype_code, t.dtype_bits, t.dtype_lanes}, {t.shape[0], t.shape[1], t.shape[2], t.shape[3]});
  EXPECT_TRUE(std::equal(t.strides, t.strides + 4, out.t.strides)) << "dense";
  fetch_device(out.t.data, t.data, out.memory->size());
  return out;
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

  void attend(const Step& step, const Values& out, const Values* lse) {
    const auto* ext = static_cast<const kvp_attend_ext*>(iface_->get_extension(KVP_EXT_ATTEND));
    const kvp_tensor q = here(step.q), k = here(step.k), v = here(step.v), bias = here(step.bias),
                     logits = here(step.logits);
    kvp_tensor to = here(out), to_lse = lse == nullptr ? kvp_tensor{} : here(*lse);
    kvp_attend_args args{};
    args.struct_size = sizeof args;
    args.flags = KVP_ATTEND_CAUSAL;
    args.q = &q, args.k = &k, args.v = &v;
    args.pad = step.pad, args.count = step.count;
    if (step.bias.memory != nullptr) args.bias = &bias;
    if (step.logits.memory != nullptr) args.sinks = &logits;
    args.scale = 0.2f;
    args.softcap = step.softcap;
    const GuardedMemory::Closed closed;
    check(ext->attend(self_, &call_, &args, &to, lse == nullptr ? nullptr : &to_lse, &err_), "attend");
    finish_device();
  }
  void crop(const std::vector<int64_t>& n) {
    const GuardedMemory::Closed closed;
    check(iface_->crop(self_, &call_, n.data(), static_cast<int64_t>(n.size()), &err_), "crop");
  }
  void append(const Values& k, const Values& v) {
    const kvp_tensor k_here = here(k), v_here = here(v);
    kvp_update_args args{};
    args.struct_size = sizeof args;
    args.k = &k_here, args.v = &v_here;
    const GuardedMemory::Closed closed;
    check(iface_->update(self_, &call_, &args, nullptr, nullptr, &err_), "update");
    finish_device();
  }
  void set_rollback(int64_t n) { check(iface_->set_rollback(self_, &call_, n, &err_), "set_rollback"); }
  void reset() { check(iface_->reset(self_, &call_, &err_), "reset"); }
  int64_t columns(int64_t queries) {
    kvp_lengths out{};
    out.struct_size = sizeof out;
    check(iface_->lengths(self_, 0, queries, &out, &err_), "lengths");
    return out.kv_len;
  }
  std::pair<Values, Values> views() {
    kvp_update_args args{};
    args.struct_size = sizeof args;
    kvp_tensor k{}, v{};
    const GuardedMemory::Closed closed;
    check(iface_->update(self_, &call_, &args, &k, &v, &err_), "update");
    finish_device();
    EXPECT_EQ(k.device_type, call_.device_type);
    EXPECT_EQ(v.device_type, call_.device_type);
    return {fetched(k), fetched(v)};
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

void expect_same(const Values& want, const Values& got) {
  ASSERT_EQ(want.t.shape[2], got.t.shape[2]);
  for (int64_t b = 0; b < want.t.shape[0]; ++b) {
    for (int64_t h = 0; h < want.t.shape[1]; ++h) {
      for (int64_t t = 0; t < want.t.shape[2]; ++t) {
        for (int64_t d = 0; d < want.t.shape[3]; ++d) {
          ASSERT_EQ(want.get(b, h, t, d), got.get(b, h, t, d)) << b << ' ' << h << ' ' << t << ' ' << d;
        }
      }
    }
  }
}

void expect_near(const Values& want, const Values& got, float tolerance, const char* what) {
  for (int64_t b = 0; b < want.t.shape[0]; ++b) {
    for (int64_t h = 0; h < want.t.shape[1]; ++h) {
      for (int64_t i = 0; i < want.t.shape[2]; ++i) {
        for (int64_t d = 0; d < (want.t.ndim == 4 ? want.t.shape[3] : 1); ++d) {
          const float x = want.get(b, h, i, d), y = got.get(b, h, i, d);
          if (std::isinf(x)) {  // a query that sees nothing
            ASSERT_EQ(x, y) << what << ' ' << b << ' ' << h << ' ' << i;
          } else {
            ASSERT_NEAR(x, y, tolerance) << what << ' ' << b << ' ' << h << ' ' << i << ' ' << d;
          }
        }
      }
    }
  }
}

class CudaQuantized : public NeedsDevice {};

// The CPU unpacks, as its kernels for packed data round to integers and the device's do not; what is unpacked is
// rounded to the type of the cache. The second long step makes two tiles of queries that meet packed tokens.
void compare(const Case& c, kvp_dtype dtype, bool wide, uint64_t seed) {
  Random random(seed);
  Case unpacked = c;
  unpacked.fused = "off";
  Cache cpu(unpacked, dtype, KVP_DEVICE_CPU, 1), device(c, dtype, KVP_DEVICE_CUDA, 2);
  const bool packed = dtype.bits == 16 && std::string_view(c.fused) != "off" && !c.bias;
  const float near = packed ? 0.01f : 1e-4f, tolerance = near + (wide || dtype.bits == 32 ? 0.0f : 0.01f);
  const int64_t pad[] = {0, 13, 40}, count[] = {60, 33, 0}, steps[] = {150, 1, 1, 60, 1, 200, 1, 1};
  for (size_t n_step = 0; n_step < std::size(steps); ++n_step) {
    SCOPED_TRACE("step " + std::to_string(n_step));
    const int64_t n = steps[n_step];
    Step step{normal(dtype, c.batch, 6, n, 32, random), normal(dtype, c.batch, 2, n, 32, random),
              normal(dtype, c.batch, 2, n, 32, random)};
    step.softcap = c.softcap;
    if (c.batch > 1 && n_step == 0) step.pad = pad;
    if (c.batch > 1 && n_step == 3) step.count = count;
    if (c.bias) step.bias = normal(kF32, c.batch, 1, n, cpu.columns(n), random);
    if (c.logits) {
      step.logits = make(kF32, {6});
      for (int64_t h = 0; h < 6; ++h) step.logits.set(static_cast<float>(h) / 2 - 1, h);
    }
    const Values out = make(wide ? kF32 : dtype, {c.batch, 6, n, 32}), got = make(out.dtype(), {c.batch, 6, n, 32});
    const Values lse = make(kF32, {c.batch, 6, n}), got_lse = make(kF32, {c.batch, 6, n});
    const bool asks = n_step % 3 != 1;
    cpu.attend(step, out, asks ? &lse : nullptr);
    device.attend(step, got, asks ? &got_lse : nullptr);
    ASSERT_NO_FATAL_FAILURE(expect_near(out, got, tolerance, "out"));
    ASSERT_NO_FATAL_FAILURE(expect_near(lse, got_lse, near, "lse"));
    if (n_step == 4 && c.window == 0) {  // into blocks that are packed
      std::vector<int64_t> removed = {33, 5, 0};
      removed.resize(static_cast<size_t>(c.batch));
      cpu.crop(removed), device.crop(removed);
    }
    if (n_step % 4 > 1) continue;
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

TEST_F(CudaQuantized, IsWhatItIsOnTheCpu) {
  const Case cases[] = {{{"hqq", 4, 0, 64, ""}},
                        {{"hqq", 2, 1, 32, ""}, 4, 0, false, "required", 3},
                        {{"hqq", 4, 1, 32, ""}, 0, 70, false, "required", 3, 2},
                        {{"quanto", 4, 0, 32, ""}, 3, 0, true, "required", 3, 0, false, true},
                        {{"quanto", 8, -1, 48, ""}, 0, 0, false, "required", 1, 3},
                        {{"quanto", 2, 0, 24, ""}, 0, 0, false, "auto", 3},
                        {{"fp8", 8, 0, 0, "token_head"}, 2, 0, false, "required", 3, 0, false, true},
                        {{"fp8", 8, 0, 0, "token_head", "e5m2"}},
                        {{"hqq", 8, 1, 32, ""}, 0, 0, true, "off"},
                        {{"hqq", 3, 0, 32, ""}, 5, 0, true, "auto", 3, 2, true, true},
                        {{"fp8", 8, 0, 0, "token_head"}, 0, 90, true, "auto", 3, 0, true},
                        {{"quanto", 4, -1, 16, ""}, 2, 60, true, "required", 3, 0, false, true}};
  for (size_t n = 0; n < std::size(cases); ++n) {
    const Case& c = cases[n];
    const kvp_dtype dtype = n % 2 == 0 ? kBF16 : kF32;
    const bool wide = n % 4 >= 2;  // `out` in float32 whatever the cache's type is
    SCOPED_TRACE(c.kind.name() + ", " + std::to_string(dtype.bits) + " bits, batch " + std::to_string(c.batch) +
                 ", sinks " + std::to_string(c.sinks) + ", window " + std::to_string(c.window) +
                 (c.turned ? ", turned, " : ", ") + c.fused + (c.bias ? ", bias" : "") + (c.logits ? ", logits" : ""));
    compare(c, dtype, wide, n + 1);
    if (HasFatalFailure()) return;
  }
}

// Lists that few long rows made long in host memory hold many short ones too, but on a device every row has its own
// entry before them. Device memory has a fence behind its end.
TEST_F(CudaQuantized, ListsOnTheDeviceFitMoreRows) {
  Random random(1);
  Cache cache({{"quanto", 8, -1, 32, ""}}, kF32, KVP_DEVICE_CUDA, 2);
  cache.set_rollback(20000);
  const Values long_row = normal(kF32, 1, 2, 20100, 32, random), short_rows = normal(kF32, 8, 2, 2500, 32, random);
  cache.append(long_row, long_row);  // 326 blocks
  cache.set_rollback(0);
  cache.reset();
  cache.append(short_rows, short_rows);  // 320 of them, and 7 rows more
}

// A quantizer that plans as `inner` does and says that its parts lie on a device of another type. Nothing is packed.
struct Elsewhere {
  LoadedQuantizer& inner;
  int32_t device_type;

  kvp_qhandle handle() {
    static const kvp_quantizer_iface iface = [] {
      kvp_quantizer_iface made{};
      made.struct_size = sizeof made;
      made.describe = [](kvp_quantizer* self, kvp_qspec* out, kvp_error* err) {
        LoadedQuantizer& q = reinterpret_cast<Elsewhere*>(self)->inner;
        return q.iface()->describe(q.self(), out, err);
      };
      made.plan = [](kvp_quantizer* self, int64_t batch, int64_t heads, int64_t tokens, int64_t dim, kvp_qplan* out,
                     kvp_error* err) {
        const Elsewhere& e = *reinterpret_cast<Elsewhere*>(self);
        const int32_t status = e.inner.iface()->plan(e.inner.self(), batch, heads, tokens, dim, out, err);
        for (uint32_t i = 0; i < out->n_parts; ++i) out->parts[i].t.device_type = e.device_type;
        return status;
      };
      return made;
    }();
    return {sizeof(kvp_qhandle), &iface, reinterpret_cast<kvp_quantizer*>(this), "elsewhere"};
  }
};

// What creation on a device says; "" where it succeeds. `status`: what it answers then.
std::string refusal(const kvp_qhandle& quantizer, const LoadedQuantizer::Options& options, int32_t status) {
  const auto* iface = static_cast<const kvp_cache_iface*>(load_plugin("quantized.so")->descriptor(0)->iface);
  CreateArgs args({{6, 2, 32, 32}}, kF32, 3);
  args.create.options = options.data();
  args.create.n_options = options.size();
  args.create.quantizer_key = args.create.quantizer_value = &quantizer;
  args.create.device_type = KVP_DEVICE_CUDA;
  char text[256] = "";
  kvp_error err{sizeof err, 0, 0, text, sizeof text, 0};
  kvp_cache* self = nullptr;
  EXPECT_EQ(iface->create(&args.create, &self, &err), status) << text;
  iface->destroy(self);
  return text;
}

TEST_F(CudaQuantized, RefusesWhatOnlyTheCpuHas) {
  const LoadedQuantizer::Options affine = {option("nbits", int64_t{4}), option("axis", int64_t{0}),
                                           option("q_group_size", int64_t{32})};
  LoadedQuantizer here("quanto", affine, kF32, 32, KVP_ROLE_KEY, nullptr, KVP_DEVICE_CUDA);
  LoadedQuantizer on_cpu("quanto", affine, kF32, 32);
  const kvp_qhandle k{sizeof k, here.iface(), here.self(), "k"}, away{sizeof away, on_cpu.iface(), on_cpu.self(), "k"};
  EXPECT_EQ(refusal(k, {}, KVP_OK), "");
  EXPECT_EQ(refusal(k, {option("hf_compat", "strict")}, KVP_UNSUPPORTED),
            "hf_compat = \"strict\" computes on the CPU; device type 2 was asked for");
  EXPECT_EQ(refusal(away, {}, KVP_UNSUPPORTED),
            "quantizer 'k' packs into memory of device type 1; the cache is on one of type 2");
  for (const char* granularity : {"tensor", "head"}) {
    LoadedQuantizer shared("fp8", {option("scale_granularity", granularity)}, kF32, 32);
    Elsewhere device{shared, KVP_DEVICE_CUDA};
    EXPECT_EQ(refusal(device.handle(), {}, KVP_UNSUPPORTED),
              "quantizer 'elsewhere': part 1 is shared by all blocks of a row, which quantized keeps on the CPU only");
  }
}

TEST_F(CudaQuantized, FusedAttentionThatIsRequiredIsRefusedInWords) {
  const Case odd{{"quanto", 2, 0, 24, ""}};
  std::string why;
  try {
    const Cache made(odd, kF32, KVP_DEVICE_CUDA, 3);
  } catch (const std::runtime_error& error) {
    why = error.what();
  }
  EXPECT_NE(why.find("multiple of 16"), std::string::npos) << why;
}

}  // namespace
}  // namespace kvplug::test
