// SPDX-License-Identifier: Apache-2.0
// The records of the reference quantizers (tests/data/golden/quantizers), repeated in strict mode through the plugin
// ABI. quanto and fp8: every bit. hqq: scales bit for bit; codes except where W*s + z lies within 1e-3 of a
// half-integer (those beside, as the reference's sums depend on its machine); zeros within 1e-3, 0.1 for 8 bits; values
// within a step where codes differ, else within what the zero's difference makes.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "golden/tally.h"
#include "support/loaded_quantizer.h"
#include "support/safetensors.h"

namespace kvplug::testing {
namespace {

using nlohmann::json;

struct File {
  json cases;
  std::map<std::string, GoldenTensor> tensors;

  explicit File(const std::string& name) {
    const std::filesystem::path folder = std::filesystem::path(KVPLUG_TEST_DATA) / "golden/quantizers";
    std::ifstream in(folder / (name + ".json"));
    const json document = json::parse(in);
    cases = document.at("cases");
    tensors = read_safetensors(folder / document.at("tensors").get<std::string>());
  }
};

kvp_dtype dtype_named(const std::string& name) {
  return name == "float32" ? test::kF32 : name == "float16" ? test::kF16 : test::kBF16;
}

// One case: its input, an instance, what comes of it.
class Case {
 public:
  Case(const std::string& plugin, const File& file, const json& golden)
      : file_(file), golden_(golden), plugin_(plugin), dtype_(dtype_named(golden.at("dtype"))) {
    const auto s = golden.at("shape").get<std::vector<int64_t>>();
    input_ = test::make(dtype_, {s[0], s[1], s[2], s[3]});
    const std::string& bytes = tensor("input").bytes;
    std::memcpy(input_.memory->data(), bytes.data(), bytes.size());
    result_ = test::make(dtype_, {s[0], s[1], s[2], s[3]});
  }

  test::LoadedQuantizer::Options options() const {
    test::LoadedQuantizer::Options out = {test::option("hf_compat", "strict")};
    if (plugin_ != "fp8") {
      out.push_back(test::option("nbits", golden_.at("nbits").get<int64_t>()));
      out.push_back(test::option("axis", golden_.at("axis").get<int64_t>()));
      out.push_back(test::option("q_group_size", golden_.at("q_group_size").get<int64_t>()));
    }
    return out;
  }

  void refused() {
    std::string text;
    try {
      test::LoadedQuantizer quantizer(plugin_, options(), dtype_, static_cast<int32_t>(input_.t.shape[3]));
      quantizer.quantize(input_.t);
    } catch (const std::runtime_error& e) {
      text = e.what();
    }
    EXPECT_EQ(text.rfind(std::to_string(KVP_INVALID_ARGUMENT) + ": ", 0), 0u) << text;
  }

  void quanto() {
    test::LoadedQuantizer quantizer(plugin_, options(), dtype_, static_cast<int32_t>(input_.t.shape[3]));
    const test::Packed packed = quantizer.quantize(input_.t);
    same_bits(packed, 0, "packed");
    same_values(packed.memory[1], "scale");
    same_values(packed.memory[2], "shift");
    ASSERT_EQ(quantizer.dequantize(packed, &result_.t), KVP_OK) << quantizer.text();
    same_values(*result_.memory, "dequantized");
  }

  void fp8() {
    test::LoadedQuantizer quantizer(plugin_, options(), dtype_, static_cast<int32_t>(input_.t.shape[3]));
    kvp_qplan plan{};
    ASSERT_EQ(quantizer.plan(input_.t, &plan), KVP_OK) << quantizer.text();
    test::Packed packed(plan);
    const bool given = !golden_.at("given_scale").is_null();
    if (given) *reinterpret_cast<float*>(packed.memory[1].data()) = golden_.at("given_scale").get<float>();
    ASSERT_EQ(quantizer.quantize(input_.t, given ? KVP_Q_KEEP_SCALE : 0, packed), KVP_OK) << quantizer.text();
    same_bits(packed, 0, "codes");
    same_values(packed.memory[1], "scale");
    ASSERT_EQ(quantizer.dequantize(packed, &result_.t), KVP_OK) << quantizer.text();
    same_values(*result_.memory, "dequantized");
  }

  void hqq() {
    const auto nbits = golden_.at("nbits").get<int64_t>(), axis = golden_.at("axis").get<int64_t>(),
               size = golden_.at("q_group_size").get<int64_t>();
    test::LoadedQuantizer quantizer(plugin_, options(), dtype_, static_cast<int32_t>(input_.t.shape[3]));
    const test::Packed packed = quantizer.quantize(input_.t);
    same_values(packed.memory[1], "scale");
    ASSERT_EQ(quantizer.dequantize(packed, &result_.t), KVP_OK) << quantizer.text();

    const std::vector<float> w = values("input"), s = values("scale_f32"), z = values("zero_f32");
    const std::vector<float> want =
        values(golden_.contains("dequantized_correct") ? "dequantized_correct" : "dequantized");
    const std::vector<float> want_zero = values("zero");
    const std::vector<uint8_t> codes = codes_of(packed, nbits, static_cast<int64_t>(w.size()));
    const std::string& want_codes = tensor("codes").bytes;
    const auto groups = static_cast<int64_t>(s.size());
    const float allowed = nbits == 8 ? 0.1f : 1e-3f;
    for (int64_t g = 0; g < groups; ++g) {
      const float zero = test::load(packed.memory[2].data() + g * dtype_.bits / 8, dtype_), ref = want_zero[g];
      const bool same = std::isnan(ref) ? std::isnan(zero) : zero == ref;
      // Rounded to the type, a difference of the solver's may be one place more.
      const float place =
          dtype_.bits == 32 ? 0 : std::fabs(ref) * (dtype_.code == KVP_DTYPE_BFLOAT ? 0x1p-7f : 0x1p-10f);
      EXPECT_TRUE(same || std::fabs(zero - ref) <= allowed + place) << "zero " << g << ": " << zero << ", not " << ref;
    }
    for (int64_t i = 0; i < static_cast<int64_t>(w.size()); ++i) {
      const int64_t g = axis == 0 ? i % groups : i / size;
      const double at = double{w[i]} / double{s[g]} + double{z[g]};
      const auto theirs = static_cast<uint8_t>(want_codes[i]);
      const bool near_half = std::fabs(at - std::floor(at) - 0.5) <= 1e-3;
      EXPECT_TRUE(codes[i] == theirs || (near_half && std::abs(codes[i] - theirs) == 1))
          << "code " << i << ": " << int{codes[i]} << ", not " << int{theirs} << "; W*s+z = " << at;
      const float got = test::load(result_.memory->data() + i * dtype_.bits / 8, dtype_);
      if (std::isnan(want[i]) || std::isinf(want[i])) {
        EXPECT_TRUE(std::isnan(want[i]) ? std::isnan(got) : got == want[i]) << "value " << i;
        continue;
      }
      const float step = std::fabs(s[g]) * (codes[i] == theirs ? allowed : 1.0f);
      const float place = dtype_.bits == 32 ? 1e-5f : dtype_.code == KVP_DTYPE_BFLOAT ? 0x1p-6f : 0x1p-9f;
      EXPECT_NEAR(got, want[i], step + place * std::fabs(want[i])) << "value " << i;
    }
  }

 private:
  const GoldenTensor& tensor(const char* key) const { return file_.tensors.at(golden_.at(key).get<std::string>()); }
  std::vector<float> values(const char* key) const {
    const GoldenTensor& t = tensor(key);
    const kvp_dtype type = dtype_of(t);
    std::vector<float> out;
    for (size_t i = 0; i < t.bytes.size(); i += type.bits / 8u) out.push_back(test::load(t.bytes.data() + i, type));
    return out;
  }
  static kvp_dtype dtype_of(const GoldenTensor& t) {
    return t.dtype == "F32" ? test::kF32 : t.dtype == "F16" ? test::kF16 : test::kBF16;
  }
  void same_bits(const test::Packed& packed, size_t part, const char* key) const {
    const GoldenTensor& want = tensor(key);
    ASSERT_EQ(packed.memory[part].size(), want.bytes.size()) << key;
    EXPECT_EQ(std::memcmp(packed.memory[part].data(), want.bytes.data(), want.bytes.size()), 0) << key;
  }
  // Bits, but any NaN for a NaN.
  void same_values(const std::vector<std::byte>& got, const char* key) const {
    const GoldenTensor& want = tensor(key);
    ASSERT_EQ(got.size(), want.bytes.size()) << key;
    const kvp_dtype type = dtype_of(want);
    for (size_t i = 0; i < got.size(); i += type.bits / 8u) {
      const float a = test::load(got.data() + i, type), b = test::load(want.bytes.data() + i, type);
      const bool same = std::memcmp(got.data() + i, want.bytes.data() + i, type.bits / 8u) == 0;
      ASSERT_TRUE(same || (std::isnan(a) && std::isnan(b))) << key << ' ' << i << ": " << a << ", not " << b;
    }
  }
  // hqq's packing undone, by its own description.
  static std::vector<uint8_t> codes_of(const test::Packed& packed, int64_t nbits, int64_t n) {
    std::vector<uint8_t> out;
    const int64_t per = nbits == 3 ? 10 : 8 / nbits, words = packed.parts[0].t.shape[0] * packed.parts[0].t.shape[1];
    for (int64_t i = 0; i < n; ++i) {
      uint32_t word = 0;
      const int64_t bytes = nbits == 3 ? 4 : 1;
      std::memcpy(&word, packed.memory[0].data() + i % words * bytes, static_cast<size_t>(bytes));
      out.push_back(static_cast<uint8_t>(word >> ((per - 1 - i / words) * nbits) & ((1u << nbits) - 1)));
    }
    return out;
  }

  const File& file_;
  const json& golden_;
  std::string plugin_;
  kvp_dtype dtype_;
  test::Values input_, result_;
};

const char* skipped(const std::string& plugin, const json& golden) {
  if (plugin == "hqq" && !golden.value("optimize", true)) return "optimize = false: the cache never asks for it";
  if (!golden.contains("input")) return "a table, not a call: compared in the unit tests of its plugin";
  return nullptr;
}

// Where the reference gives no usable result, by section 2.8 of its description: codes lost or a late failure.
bool unusable(const std::string& plugin, const json& golden) {
  if (plugin != "hqq") return false;
  const auto nbits = golden.at("nbits").get<int64_t>(), size = golden.at("q_group_size").get<int64_t>();
  int64_t n = 1;
  for (const auto& d : golden.at("shape")) n *= d.get<int64_t>();
  const int64_t rows = golden.at("axis") == 0 ? size : n / size;
  return nbits != 3 && rows % (8 / nbits) != 0;
}

int run_all() {
  Tally tally(true);
  std::vector<std::unique_ptr<File>> files;
  for (const char* name : {"hqq", "quanto", "fp8"}) {
    const std::string plugin = name;
    files.push_back(std::make_unique<File>(plugin));
    const File& file = *files.back();
    for (const json& golden : file.cases) {
      if (const char* reason = skipped(plugin, golden)) {
        tally.skip(plugin, reason);
        continue;
      }
      const bool refused = golden.contains("error") || unusable(plugin, golden);
      tally.run(plugin + (refused ? " refuses" : ""), golden.at("id"), [plugin, refused, &file, &golden] {
        Case test(plugin, file, golden);
        if (refused) {
          test.refused();
        } else if (plugin == "quanto") {
          test.quanto();
        } else if (plugin == "hqq") {
          test.hqq();
        } else {
          test.fp8();
        }
      });
    }
  }
  const int failed = RUN_ALL_TESTS();
  return tally.close() ? failed : 1;
}

}  // namespace
}  // namespace kvplug::testing

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  try {
    return kvplug::testing::run_all();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
