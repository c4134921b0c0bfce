// SPDX-License-Identifier: Apache-2.0
// Attention over packed data through the ABI equals attention over the unpacked values, and both sides are of one
// plugin. (The kernel's own tests are tests/unit/sdk.)
#include "quantizer_kinds.h"

namespace kvplug::test {
namespace {

constexpr int64_t kHeads = 2, kGroup = 3, kTokens = 128, kDim = 32;

kvp_qattend_desc description() {
  kvp_qattend_desc desc{};
  desc.struct_size = sizeof desc;
  desc.q_heads = kHeads * kGroup;
  desc.kv_heads = kHeads;
  desc.key_dim = desc.value_dim = kDim;
  desc.max_batch = desc.max_query = 1;
  desc.q_dtype = kF32;
  desc.device_type = KVP_DEVICE_CPU;
  return desc;
}

const kvp_qattend_ext* extension(const LoadedQuantizer& q) {
  return static_cast<const kvp_qattend_ext*>(q.iface()->get_extension(KVP_EXT_QUANT_ATTEND));
}

struct Refusal {
  char text[256] = "";
  kvp_error err{};
  Refusal() { err.struct_size = sizeof err, err.buf = text, err.cap = sizeof text; }
};

TEST(QuantizerAttend, EqualsAttentionOverTheUnpackedValues) {
  Random random(13);
  for (const char* plugin : {"hqq", "quanto", "fp8"}) {
    for (const int64_t axis : {0, 1}) {
      const bool fp8 = plugin == std::string("fp8");
      const double near = fp8 ? 1e-5 : 0.02;  // q and weights of 8 bits: packed_attention.h
      const Kind kind{
          plugin, 4, plugin == std::string("quanto") ? -axis : axis, 32, "token_head", axis == 0 ? "e4m3" : "e5m2"};
      SCOPED_TRACE(kind.name());
      LoadedQuantizer kq(plugin, kind.options(), kF32, kDim), vq(plugin, kind.options(), kF32, kDim, KVP_ROLE_VALUE);
      const Values k = normal(kF32, 1, kHeads, kTokens, kDim, random),
                   v = normal(kF32, 1, kHeads, kTokens, kDim, random),
                   q = normal(kF32, 1, kHeads * kGroup, 1, kDim, random);
      const Packed kp = kq.quantize(k.t), vp = vq.quantize(v.t);
      Values ku = make(kF32, {1, kHeads, kTokens, kDim}), vu = make(kF32, {1, kHeads, kTokens, kDim});
      ASSERT_EQ(kq.dequantize(kp, &ku.t), KVP_OK);
      ASSERT_EQ(vq.dequantize(vp, &vu.t), KVP_OK);

      const kvp_qattend_desc desc = description();
      const kvp_qhandle handle{sizeof handle, vq.iface(), vq.self(), plugin};
      uint64_t bytes = 0;
      Refusal no;
      ASSERT_EQ(extension(kq)->probe(kq.self(), &handle, &desc, &bytes, &no.err), KVP_OK) << no.text;
      std::vector<std::byte> memory(bytes + 64);
      void* work = memory.data();
      size_t room = memory.size();
      std::vector<void*> parts;
      for (const Packed* p : {&kp, &vp}) {
        for (const kvp_qpart& part : p->parts) parts.push_back(part.t.data);
      }
      const kvp_qpage page{0, 0, kTokens, parts.data()};
      const int64_t position = kTokens;
      kvp_qattend_args args{};
      args.struct_size = sizeof args;
      args.q = &q.t;
      args.k_parts = kp.parts.data();
      args.v_parts = vp.parts.data();
      args.n_k_parts = args.n_v_parts = static_cast<uint32_t>(kp.parts.size());
      args.pages = &page;
      args.n_pages = 1;
      args.q_position = &position;
      args.workspace = std::align(64, bytes, work, room);
      args.scale = 0.2f;
      Values out = make(kF32, {1, kHeads * kGroup, 1, kDim}), lse = make(kF32, {1, kHeads * kGroup, 1});
      const kvp_call call{sizeof call, KVP_DEVICE_CPU, 0, nullptr, 0, 0};
      ASSERT_EQ(extension(kq)->attend(kq.self(), &handle, &call, &args, &out.t, &lse.t, &no.err), KVP_OK) << no.text;
      for (int64_t h = 0; h < kHeads * kGroup; ++h) {
        std::vector<double> weights, want(kDim);
        double sum = 0;
        for (int64_t t = 0; t < kTokens; ++t) {
          double dot = 0;
          for (int64_t d = 0; d < kDim; ++d) dot += double{q.get(0, h, 0, d)} * double{ku.get(0, h / kGroup, t, d)};
          weights.push_back(std::exp(0.2 * dot));
          sum += weights.back();
        }
        for (int64_t d = 0; d < kDim; ++d) {
          double value = 0;
          for (int64_t t = 0; t < kTokens; ++t)
            value += weights[static_cast<size_t>(t)] / sum * double{vu.get(0, h / kGroup, t, d)};
          EXPECT_NEAR(out.get(0, h, 0, d), value, near) << h << ' ' << d;
        }
        EXPECT_NEAR(lse.get(0, h, 0), std::log(sum), near);
      }
    }
  }
}

TEST(QuantizerAttend, RefusesTheOtherPluginAndWholeTensorsInWords) {
  LoadedQuantizer hqq("hqq", {}, kF32, kDim), quanto("quanto", {}, kF32, kDim, KVP_ROLE_VALUE),
      strict("hqq", {option("hf_compat", "strict")}, kF32, kDim, KVP_ROLE_VALUE);
  const kvp_qattend_desc desc = description();
  uint64_t bytes = 77;
  Refusal no;
  kvp_qhandle handle{sizeof handle, quanto.iface(), quanto.self(), "quanto"};
  EXPECT_EQ(extension(hqq)->probe(hqq.self(), &handle, &desc, &bytes, &no.err), KVP_UNSUPPORTED);
  EXPECT_STREQ(no.text,
               "the values are packed by 'quanto'; attention over packed data needs one plugin for keys and values");
  handle = {sizeof handle, strict.iface(), strict.self(), "hqq"};
  EXPECT_EQ(extension(hqq)->probe(hqq.self(), &handle, &desc, &bytes, &no.err), KVP_UNSUPPORTED);
  EXPECT_STREQ(no.text, "hf_compat = \"strict\" packs whole tensors, which are unpacked to attend");
  LoadedQuantizer fp8("fp8", {}, kF32, kDim),
      whole("fp8", {option("scale_granularity", "head")}, kF32, kDim, KVP_ROLE_VALUE);
  handle = {sizeof handle, whole.iface(), whole.self(), "fp8"};
  EXPECT_EQ(extension(fp8)->probe(fp8.self(), &handle, &desc, &bytes, &no.err), KVP_UNSUPPORTED);
  EXPECT_STREQ(no.text, "scales that tokens share are not attended to packed; scale_granularity = \"token_head\" is");
  EXPECT_EQ(bytes, 77u);
}

}  // namespace
}  // namespace kvplug::test
