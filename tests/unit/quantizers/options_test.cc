// SPDX-License-Identifier: Apache-2.0
// What the options come to, and what is refused, in which words.
#include "quantizer_kinds.h"

namespace kvplug::test {
namespace {

using Options = LoadedQuantizer::Options;

std::string refusal(const std::string& plugin, const Options& options, kvp_dtype dtype = kF32) {
  try {
    LoadedQuantizer q(plugin, options, dtype, 64);
  } catch (const std::runtime_error& e) {
    return e.what();
  }
  return "accepted";
}

TEST(QuantizerOptions, RefusalsNameKeyValueAndWhatIsAllowed) {
  const std::string wrong = std::to_string(KVP_INVALID_ARGUMENT) + ": ";
  EXPECT_EQ(refusal("quanto", {option("nbits", 3)}), wrong + "option 'nbits' is 3; quanto packs 2, 4 or 8 bits");
  EXPECT_EQ(refusal("quanto", {option("nbits", 8), option("hf_compat", "strict")}),
            wrong +
                "option 'nbits' is 8; quanto packs 2 or 4 bits, as hf_compat = \"strict\" repeats the reference; "
                "remove hf_compat");
  EXPECT_EQ(refusal("hqq", {option("nbits", 5)}), wrong + "option 'nbits' is 5; hqq packs 1, 2, 3, 4 or 8 bits");
  EXPECT_EQ(refusal("quanto", {option("axis", 1)}), wrong + "option 'axis' is 1; quanto takes 0 or -1");
  EXPECT_EQ(refusal("hqq", {option("axis", -1)}), wrong + "option 'axis' is -1; hqq takes 0 or 1");
  EXPECT_EQ(refusal("hqq", {option("q_group_size", int64_t{0})}),
            wrong + "option 'q_group_size' is 0; expected 1 or more");
  EXPECT_EQ(refusal("hqq", {option("nbits", 5), option("axis", 7), option("q_group_size", -1)}),
            wrong + "option 'nbits' is 5; hqq packs 1, 2, 3, 4 or 8 bits");
  EXPECT_EQ(refusal("quanto", {option("hf_compat", "loose")}),
            wrong + "option 'hf_compat' is \"loose\"; expected \"fixed\" or \"strict\"");
  EXPECT_EQ(refusal("quanto", {option("axis_key", int64_t{0})}), wrong + "unknown option 'axis_key'");
  EXPECT_EQ(
      refusal("fp8", {option("nbits", 8)}),
      wrong +
          "backend \"fp8\" has no groups and takes no nbits; remove the key, or use backend = \"quanto\" or \"hqq\"");
  EXPECT_EQ(refusal("fp8", {option("fp8_format", "e3m4")}),
            wrong + "option 'fp8_format' is \"e3m4\"; expected one of \"e4m3\", \"e5m2\"");
  EXPECT_EQ(refusal("fp8", {option("fp8_format", "e5m2"), option("hf_compat", "strict")}),
            wrong +
                "option 'fp8_format': hf_compat = \"strict\" is e4m3 with one scale for the tensor; remove the option, "
                "or hf_compat");
  EXPECT_EQ(refusal("hqq", {}, {KVP_DTYPE_FLOAT, 64, 1}).rfind(std::to_string(KVP_UNSUPPORTED) + ": values of ", 0),
            0u);
}

TEST(QuantizerOptions, DefaultsAreThoseOfTransformers) {
  for (const char* plugin : {"hqq", "quanto"}) {
    LoadedQuantizer q(plugin, {}, kBF16, 96);
    const kvp_qspec spec = q.describe();
    EXPECT_EQ(spec.n_levels, 16u);
    EXPECT_EQ(spec.group_size, 64);
    EXPECT_EQ(spec.group_dim, plugin == std::string("hqq") ? KVP_GROUP_TOKENS : KVP_GROUP_HEAD_DIM);
    EXPECT_EQ(spec.flags, 0u);
  }
  LoadedQuantizer fp8("fp8", {}, kBF16, 96);
  EXPECT_EQ(fp8.describe().format, KVP_FORMAT_FP8_E4M3);
  EXPECT_EQ(fp8.describe().group_dim, KVP_GROUP_HEAD_DIM);
}

TEST(QuantizerOptions, TheOtherAxisIsTheOtherGroup) {
  EXPECT_EQ(LoadedQuantizer("hqq", {option("axis", 1)}, kF32, 64).describe().group_dim, KVP_GROUP_HEAD_DIM);
  EXPECT_EQ(LoadedQuantizer("quanto", {option("axis", -1)}, kF32, 64).describe().group_dim, KVP_GROUP_TOKENS);
}

TEST(QuantizerOptions, StrictSaysSoAndTakesWholeTensors) {
  const Values in = make(kF32, {1, 2, 64, 64});
  for (const char* plugin : {"hqq", "quanto", "fp8"}) {
    LoadedQuantizer q(plugin, {option("hf_compat", "strict")}, kF32, 64);
    EXPECT_EQ(q.describe().flags, KVP_Q_STRICT);
    kvp_qplan plan{};
    ASSERT_EQ(q.plan(in.t, &plan), KVP_OK) << q.text();
    EXPECT_EQ(plan.token_block, 0);
  }
}

// The scale that the first tokens set is kept, and what is louder later saturates; strict: NaN beyond 464 / 448.
TEST(QuantizerOptions, AKeptScaleOfFp8) {
  for (const bool strict : {false, true}) {
    const Values first = make(kF32, {1, 2, 4, 8}), later = make(kF32, {1, 2, 4, 8});
    Random random(10);
    fill(first, random);
    first.set(7, 0, 0, 0, 0);
    later.set(1000, 0, 1, 2, 3);
    later.set(7 * 1.03f, 0, 1, 2, 4);
    LoadedQuantizer q("fp8", {option("hf_compat", strict ? "strict" : "fixed"), option("scale_granularity", "tensor")},
                      kF32, 8);
    Packed packed = q.quantize(first.t);
    const auto scale = packed.memory[1];
    ASSERT_EQ(q.quantize(later.t, KVP_Q_KEEP_SCALE, packed), KVP_OK) << q.text();
    EXPECT_EQ(packed.memory[1], scale);
    Values out = make(kF32, {1, 2, 4, 8});
    ASSERT_EQ(q.dequantize(packed, &out.t), KVP_OK) << q.text();
    float s;
    std::memcpy(&s, scale.data(), 4);
    if (strict) {
      EXPECT_TRUE(std::isnan(out.get(0, 1, 2, 3)));
    } else {
      EXPECT_EQ(out.get(0, 1, 2, 3), 448 * s);
    }
    EXPECT_EQ(out.get(0, 0, 0, 1), 0);
  }
}

}  // namespace
}  // namespace kvplug::test
