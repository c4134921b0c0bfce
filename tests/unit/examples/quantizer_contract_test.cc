// SPDX-License-Identifier: Apache-2.0
// quantizer_contract_test LIBRARY KIND SCHEMA [key=value ...] [panic]: a quantizer, whosever it is, held to the
// contract of <kvplug/quantizer.h>. Here: introduction, ranges, plans, refusals. What it does to numbers:
// quantizer_values_test.cc.
#include <functional>

#include "quantizer_library.h"

namespace kvplug::test {
namespace {

const QuantizerLibrary& library() { return QuantizerLibrary::get(); }

// A struct whose bytes tell whether somebody wrote to it.
template <class T>
struct Untouched {
  T value;
  T before;
  Untouched() {
    std::memset(&value, 0x6b, sizeof value);
    if constexpr (requires { value.struct_size; }) value.struct_size = sizeof value;
    before = value;
  }
  bool still() const { return std::memcmp(&value, &before, sizeof value) == 0; }
};

TEST(QuantizerContract, TheDoor) {
  ErrorText why;
  const kvp_plugin *plugin = nullptr, *again = nullptr;
  kvp_host stranger = *TestHost::get().table();
  stranger.abi_major = KVP_ABI_MAJOR + 1;
  EXPECT_EQ(library().entry(&stranger, &plugin, why), KVP_UNSUPPORTED);
  EXPECT_EQ(plugin, nullptr);
  EXPECT_NE(std::string(why.text).find("0.1"), std::string::npos) << why.text;
  EXPECT_NE(std::string(why.text).find("1.1"), std::string::npos) << why.text;
  EXPECT_EQ(library().entry(TestHost::get().table(), &plugin, nullptr), KVP_OK);
  EXPECT_EQ(library().entry(TestHost::get().table(), &again, nullptr), KVP_OK);
  ASSERT_EQ(plugin, again);
  EXPECT_EQ(plugin->descriptor(plugin->n_descriptors), nullptr);
  ASSERT_NE(library().descriptor->options_schema, nullptr);
  EXPECT_EQ(library().descriptor->options_schema, library().schema) << "another text than the file";
  const kvp_quantizer_iface& f = Quantizer::iface();
  EXPECT_EQ(f.struct_size, sizeof f);
  EXPECT_TRUE(f.get_extension == nullptr || f.get_extension("kvp.nothing/1") == nullptr);
  f.destroy(nullptr);
}

TEST(QuantizerContract, RangesAndDescriptions) {
  const kvp_quantizer_iface& f = Quantizer::iface();
  ASSERT_GT(f.spec_count(), 0u);
  Untouched<kvp_qspec> low, high;
  ErrorText why;
  EXPECT_EQ(f.spec_range(f.spec_count(), &low.value, &high.value, why), KVP_INVALID_ARGUMENT);
  EXPECT_TRUE(low.still() && high.still());
  EXPECT_STRNE(why.text, "");
  std::vector<std::pair<kvp_qspec, kvp_qspec>> ranges;
  for (uint32_t i = 0; i < f.spec_count(); ++i) {
    kvp_qspec a{}, z{};
    a.struct_size = z.struct_size = sizeof a;
    ASSERT_EQ(f.spec_range(i, &a, &z, nullptr), KVP_OK);
    EXPECT_TRUE(a.format == z.format && a.group_dim == z.group_dim && a.flags == z.flags);
    EXPECT_TRUE(a.n_levels <= z.n_levels && a.storage_bits <= z.storage_bits && a.group_size <= z.group_size);
    EXPECT_EQ(std::memcmp(&a.out_dtype, &z.out_dtype, sizeof a.out_dtype), 0) << "a range of types cannot be";
    ranges.emplace_back(a, z);
  }
  for_each_wish({64}, [&](const Quantizer& q) {
    const kvp_qspec is = q.describe();
    if (q.wish().by_spec) {
      EXPECT_EQ(std::memcmp(&is, &q.wish().spec, sizeof is), 0) << "described otherwise than asked for";
    }
    EXPECT_EQ(std::memcmp(&is.out_dtype, &q.wish().dtype, sizeof is.out_dtype), 0);
    EXPECT_TRUE(std::any_of(ranges.begin(), ranges.end(), [&](const auto& range) {
      const auto& [a, z] = range;
      return a.format == is.format && a.group_dim == is.group_dim && a.flags == is.flags && a.n_levels <= is.n_levels &&
             is.n_levels <= z.n_levels && a.group_size <= is.group_size && is.group_size <= z.group_size &&
             std::memcmp(&a.out_dtype, &is.out_dtype, sizeof is.out_dtype) == 0;
    })) << "in none of the declared ranges";
    Untouched<kvp_qspec> old;  // a host from before group_size
    old.value.struct_size = old.before.struct_size = offsetof(kvp_qspec, group_size);
    EXPECT_EQ(Quantizer::iface().describe(q.self(), &old.value, nullptr), KVP_OK);
    EXPECT_EQ(old.value.format, is.format);
    EXPECT_EQ(
        std::memcmp(&old.value.group_size, &old.before.group_size, sizeof old.value - offsetof(kvp_qspec, group_size)),
        0)
        << "written behind the caller's struct";
  });
}

TEST(QuantizerContract, Plans) {
  for_each_wish({1, 7, 64, 80, 128, 200}, [](const Quantizer& q) {
    const int64_t block = q.block();
    ASSERT_GT(block, 0);
    const int64_t tokens = std::max<int64_t>(4096 / block, 1) * block;
    const kvp_qplan plan = q.plan(2, 3, tokens), again = q.plan(2, 3, tokens), half = q.plan(1, 3, block);
    EXPECT_EQ(std::memcmp(&plan, &again, sizeof plan), 0) << "not pure";
    ASSERT_LE(plan.n_parts, static_cast<uint32_t>(KVP_MAX_PARTS));
    ASSERT_EQ(plan.n_parts, half.n_parts);
    double bits = 0;
    int data = 0;
    for (uint32_t i = 0; i < plan.n_parts; ++i) {
      const kvp_tensor &t = plan.parts[i].t, &h = half.parts[i].t;
      SCOPED_TRACE("part " + std::to_string(i));
      EXPECT_EQ(plan.parts[i].role, half.parts[i].role);
      data += plan.parts[i].role == KVP_PART_DATA;
      EXPECT_TRUE(t.data == nullptr && t.ndim == 4 && t.dtype_lanes == 1 && t.device_type == KVP_DEVICE_CPU);
      EXPECT_TRUE(t.dtype_bits == 8 || t.dtype_bits == 16 || t.dtype_bits == 32);
      EXPECT_TRUE(t.shape[3] > 0 && t.shape[3] == h.shape[3]);
      EXPECT_TRUE(t.strides[3] == 1 && t.strides[2] == t.shape[3] && t.strides[1] == t.shape[2] * t.shape[3] &&
                  t.strides[0] == t.shape[1] * t.strides[1])
          << "not dense";
      if ((plan.parts[i].flags & KVP_QPART_SHARED) != 0) {
        EXPECT_EQ(t.shape[2], 1);
      } else {
        EXPECT_TRUE(t.shape[0] == 2 && t.shape[1] == 3 && t.shape[2] == tokens / block)
            << "not [batch, heads, blocks, n]";
      }
      bits += static_cast<double>(t.shape[0] * t.strides[0] * t.dtype_bits);
    }
    EXPECT_EQ(data, 1);
    EXPECT_NEAR(plan.bits_per_element, bits / static_cast<double>(6 * tokens * q.wish().head_dim), 1e-3);
    Untouched<kvp_qplan> out;
    ErrorText why;
    EXPECT_EQ(Quantizer::iface().plan(q.self(), 1, 1, -1, q.wish().head_dim, &out.value, why), KVP_INVALID_ARGUMENT);
    EXPECT_TRUE(out.still());
    EXPECT_STRNE(why.text, "");
  });
}

TEST(QuantizerContract, NothingIsPackedWithoutComplaint) {
  for_each_wish({64}, [](const Quantizer& q) {
    const Values none = q.values(2, 3, 0);
    const Packed packed = q.packed(none.t);
    q.unpacked(packed, 2, 3, 0, kF32);
  });
}

TEST(QuantizerContract, BadWishesAreRefusedInWords) {
  const std::vector<kvp_option> options = library().options();
  std::vector<kvp_option> misspelt = options;
  misspelt.push_back({"no_such_option", nullptr, 1, 0, KVP_OPTION_INTEGER, 0});
  kvp_qspec odd{};
  odd.struct_size = sizeof odd;
  odd.format = KVP_FORMAT_CODEBOOK;
  odd.n_levels = 12345;
  const struct {
    const char* what;
    std::function<void(kvp_qcreate&)> change;
    const char* word;
  } wishes[] = {
      {"an unknown option", [&](kvp_qcreate& c) { c.options = misspelt.data(), c.n_options = misspelt.size(); },
       "no_such_option"},
      {"no role", [](kvp_qcreate& c) { c.role = 0; }, "role"},
      {"a third role", [](kvp_qcreate& c) { c.role = 3; }, "role"},
      {"no head_dim", [](kvp_qcreate& c) { c.head_dim = 0; }, "head_dim"},
      {"a device", [](kvp_qcreate& c) { c.device_type = KVP_DEVICE_CUDA; }, "device"},
      {"integers", [](kvp_qcreate& c) { c.dtype = {KVP_DTYPE_INT, 8, 1}; }, ""},
      {"doubles", [](kvp_qcreate& c) { c.dtype = {KVP_DTYPE_FLOAT, 64, 1}; }, ""},
      {"a spec of somebody else", [&](kvp_qcreate& c) { c.spec = &odd; }, ""},
  };
  for (const auto& wish : wishes) {
    SCOPED_TRACE(wish.what);
    kvp_qcreate create = create_of({}, options);
    wish.change(create);
    kvp_quantizer* self = nullptr;
    ErrorText why;
    const int32_t status = Quantizer::iface().create(&create, &self, why);
    EXPECT_TRUE(status == KVP_INVALID_ARGUMENT || status == KVP_UNSUPPORTED) << status;
    EXPECT_EQ(self, nullptr);
    EXPECT_EQ(why.error.code, status);
    EXPECT_GT(std::strlen(why.text), 10u);
    EXPECT_NE(std::string(why.text).find(wish.word), std::string::npos) << why.text;
    // error buffers of every size, and none
    EXPECT_EQ(Quantizer::iface().create(&create, &self, nullptr), status);
    for (size_t cap = 0; cap < 80; ++cap) {
      char small[81];
      std::memset(small, '#', sizeof small);
      kvp_error e{sizeof(kvp_error), 0, 0, cap == 0 ? nullptr : small, cap, 0};
      EXPECT_EQ(Quantizer::iface().create(&create, &self, &e), status);
      EXPECT_EQ(e.len, why.error.len);
      EXPECT_EQ(small[cap], '#') << "written behind a buffer of " << cap;
      if (cap > 0) {
        EXPECT_EQ(std::strlen(small), std::min(e.len, cap - 1));
      }
    }
  }
}

// A call with one thing wrong is refused with a text, and nothing is written: neither parts nor output.
TEST(QuantizerContract, BadCallsAreRefusedAndWriteNothing) {
  for_each_wish({64}, [](const Quantizer& q) {
    const Values in = q.values(2, 2, 2 * q.block());
    Random random(3);
    fill_normal(in, random);
    const Packed good = q.packed(in.t);
    struct Arguments {
      kvp_tensor t;
      std::vector<kvp_qpart> parts;
      bool packs;  // else unpacks
    };
    const struct {
      const char* what;
      std::function<void(Arguments&)> change;
    } faults[] = {
        {"a part less", [](Arguments& a) { a.parts.pop_back(); }},
        {"a part more", [](Arguments& a) { a.parts.push_back(a.parts.back()); }},
        {"another role", [](Arguments& a) { a.parts[0].role = KVP_PART_OWN + 7; }},
        {"another type of part", [](Arguments& a) { a.parts[0].t.dtype_bits = 64; }},
        {"a block less", [](Arguments& a) { a.parts[0].t.shape[2]--; }},
        {"a narrower part", [](Arguments& a) { a.parts[0].t.shape[3]--; }},
        {"another head_dim", [](Arguments& a) { a.t.shape[3]--; }},
        {"three axes", [](Arguments& a) { a.t.ndim = 3; }},
        {"a last stride of 2", [](Arguments& a) { a.t.strides[3] = 2; }},
        {"integers", [](Arguments& a) { a.t.dtype_code = KVP_DTYPE_INT; }},
        {"a tensor on a device", [](Arguments& a) { a.t.device_type = KVP_DEVICE_CUDA; }},
        {"a target that must not be written to",
         [](Arguments& a) { (a.packs ? a.parts[0].t : a.t).flags |= KVP_TENSOR_READ_ONLY; }},
    };
    for (const auto& fault : faults) {
      SCOPED_TRACE(fault.what);
      const uint64_t bytes = q.plan(2, 2, in.t.shape[2]).workspace_bytes;
      std::vector<std::byte> workspace(bytes + 64);
      void* aligned = workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64) % 64;
      const Packed room = q.room_for(in.t, 0x77), untouched = q.room_for(in.t, 0x77);
      Arguments a{in.t, room.parts, true};
      fault.change(a);
      ErrorText why;
      const auto n = static_cast<uint32_t>(a.parts.size());
      int32_t status = Quantizer::iface().quantize(q.self(), &kCpuCall, &a.t, 0, a.parts.data(), n,
                                                   bytes == 0 ? nullptr : aligned, why);
      EXPECT_TRUE(status == KVP_INVALID_ARGUMENT || status == KVP_UNSUPPORTED) << "quantize: " << status;
      EXPECT_GT(std::strlen(why.text), 10u);
      EXPECT_TRUE(room == untouched) << "quantize wrote";
      const Values out = q.values(2, 2, in.t.shape[2]);
      std::fill(out.memory->begin(), out.memory->end(), std::byte{0x77});
      const std::vector<std::byte> before = *out.memory;
      Arguments d{out.t, good.parts, false};
      fault.change(d);
      ErrorText reason;
      status = Quantizer::iface().dequantize(q.self(), &kCpuCall, d.parts.data(), n, &d.t, reason);
      EXPECT_TRUE(status == KVP_INVALID_ARGUMENT || status == KVP_UNSUPPORTED) << "dequantize: " << status;
      EXPECT_GT(std::strlen(reason.text), 10u);
      EXPECT_TRUE(*out.memory == before) << "dequantize wrote";
    }
  });
}

// Made by `panic`: the option panic_at of the examples whose language can catch.
TEST(QuantizerPanic, IsReportedAndTheInstanceIsLost) {
  const std::vector<kvp_option> options{{"panic_at", nullptr, 1, 0, KVP_OPTION_INTEGER, 0}};
  const kvp_qcreate create = create_of({}, options);
  kvp_quantizer* self = nullptr;
  ASSERT_EQ(Quantizer::iface().create(&create, &self, nullptr), KVP_OK);
  const Quantizer healthy(Wish{});
  const Values in = healthy.values(1, 1, healthy.block());
  const Packed room = healthy.room_for(in.t), untouched = healthy.room_for(in.t);
  ErrorText why;
  const auto quantize = [&](const Packed& to) {
    return Quantizer::iface().quantize(self, &kCpuCall, &in.t, 0, to.parts.data(), to.count(), nullptr, why);
  };
  EXPECT_EQ(quantize(healthy.room_for(in.t)), KVP_OK);
  EXPECT_EQ(quantize(room), KVP_INTERNAL);
  EXPECT_EQ(why.error.code, KVP_INTERNAL);
  EXPECT_NE(std::string(why.text).find(library().kind), std::string::npos) << why.text;
  EXPECT_NE(std::string(why.text).find("panic_at"), std::string::npos) << why.text;
  EXPECT_TRUE(room == untouched);
  EXPECT_EQ(quantize(room), KVP_POISONED);
  double bound = 7;
  EXPECT_EQ(Quantizer::iface().error_bound(self, &bound, why), KVP_POISONED);
  EXPECT_EQ(bound, 7);
  Quantizer::iface().destroy(self);
}

}  // namespace
}  // namespace kvplug::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const bool panic = argc > 4 && std::string(argv[argc - 1]) == "panic";
  if (argc < 4) {
    std::fputs("usage: quantizer_contract_test LIBRARY KIND SCHEMA [key=value ...] [panic]\n", stderr);
    return 2;
  }
  const std::string fault = kvplug::test::QuantizerLibrary::get().open(panic ? argc - 1 : argc, argv);
  if (!fault.empty()) {
    std::fprintf(stderr, "%s: %s: %s\n", argv[1], argv[2], fault.c_str());
    return 2;
  }
  if (testing::GTEST_FLAG(filter) == "*")
    testing::GTEST_FLAG(filter) = panic ? "QuantizerPanic.*" : "-QuantizerPanic.*";
  return RUN_ALL_TESTS();
}
