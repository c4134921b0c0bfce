// SPDX-License-Identifier: Apache-2.0
// Encoder-decoder caches: each side of its own kind, the cross side filled once, batch operations on both, crop on self
// alone; a refusal of either side changes neither.
#include <gtest/gtest.h>

#include <cmath>

#include "core/encoder_decoder.h"
#include "core/registry.h"
#include "plugin_folder.h"

namespace kvplug {
namespace {

constexpr int64_t kHeads = 2, kDim = 8, kEncoder = 70, kLayers = 2;
const kvp_call kCall = {sizeof(kvp_call), KVP_DEVICE_CPU, 0, nullptr, 0, 0};

// [batch, heads, tokens, dim]; row b of every tensor with the same `start` is the same.
struct Values {
  Values(std::span<const int64_t> rows, int64_t tokens, float start)
      : data(rows.size() * static_cast<size_t>(kHeads * tokens * kDim)) {
    const int64_t row_size = kHeads * tokens * kDim;
    for (size_t b = 0; b < rows.size(); ++b) {
      for (int64_t i = 0; i < row_size; ++i) {
        data[b * static_cast<size_t>(row_size) + static_cast<size_t>(i)] =
            std::sin(start + 0.37F * static_cast<float>(i) + static_cast<float>(rows[b]));
      }
    }
    tensor = {data.data(),
              KVP_DEVICE_CPU,
              0,
              4,
              KVP_DTYPE_FLOAT,
              32,
              1,
              0,
              0,
              {static_cast<int64_t>(rows.size()), kHeads, tokens, kDim},
              {row_size, tokens * kDim, kDim, 1}};
  }
  std::vector<float> data;
  kvp_tensor tensor{};
};

class EncoderDecoder : public testing::TestWithParam<std::pair<const char*, const char*>> {
 protected:
  EncoderDecoder() { registry.add_search_path(fs::path(KVPLUG_TEST_BUILD) / "plugins"); }

  std::unique_ptr<CacheStack> side(const std::string& kind, int32_t layer_kind, int64_t tokens) {
    std::vector<kvp_layer> layers(kLayers);
    for (kvp_layer& layer : layers) {
      layer.struct_size = sizeof layer;
      layer.kind = layer_kind;
      layer.q_heads = layer.kv_heads = kHeads;
      layer.key_dim = layer.value_dim = kDim;
    }
    CacheChoice choice;
    choice.kind = kind;
    if (kind.starts_with("offloaded")) choice.options["disk_path"] = folder.path().string();
    StackParams params;
    params.dtype = {KVP_DTYPE_FLOAT, 32, 1};
    params.tokens = tokens;
    return CacheStack::create(registry, layers, choice, params);
  }
  std::unique_ptr<EncoderDecoderStack> make(const char* self, const char* cross) {
    return std::make_unique<EncoderDecoderStack>(side(self, KVP_LAYER_FULL, 100),
                                                 side(cross, KVP_LAYER_CROSS, kEncoder));
  }

  static kvp_attend_args args_for(int32_t layer, const Values& q) {
    kvp_attend_args args{};
    args.struct_size = sizeof args;
    args.layer = layer;
    args.q = &q.tensor;
    args.scale = 0.3F;
    return args;
  }
  // One decoder step: self attention with new tokens, then cross attention, filled where it is empty.
  static std::vector<float> step(EncoderDecoderStack& pair, std::span<const int64_t> rows, int64_t tokens,
                                 float start) {
    std::vector<float> all;
    const std::vector<int64_t> count(rows.begin(), rows.end());
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      const Values q(rows, tokens, start), k(rows, tokens, start + 1), v(rows, tokens, start + 2);
      Values out(rows, tokens, 0);
      kvp_attend_args args = args_for(layer, q);
      args.flags = KVP_ATTEND_CAUSAL;
      args.k = &k.tensor;
      args.v = &v.tensor;
      pair.self().attend(kCall, args, out.tensor, nullptr);
      all.insert(all.end(), out.data.begin(), out.data.end());

      args = args_for(layer, q);
      const Values encoded_k(rows, kEncoder, 10 + static_cast<float>(layer)), encoded_v(rows, kEncoder, 20);
      std::vector<int64_t> lengths;
      for (const int64_t row : rows) lengths.push_back(kEncoder - row);  // right padding of the encoder
      if (!pair.is_filled(layer)) {
        args.k = &encoded_k.tensor;
        args.v = &encoded_v.tensor;
        args.count = lengths.data();
      }
      pair.cross().attend(kCall, args, out.tensor, nullptr);
      all.insert(all.end(), out.data.begin(), out.data.end());
    }
    return all;
  }

  TempFolder folder;
  HostServices host;
  Registry registry{host};
};

TEST_P(EncoderDecoder, GivesTheBitsOfDynamicOnBothSides) {
  const auto pair = make(GetParam().first, GetParam().second), plain = make("dynamic", "dynamic");
  std::vector<int64_t> rows = {0, 3, 5};
  const auto same_step = [&](EncoderDecoderStack& a, EncoderDecoderStack& b, int64_t tokens, float start) {
    ASSERT_EQ(step(a, rows, tokens, start), step(b, rows, tokens, start));
  };
  same_step(*pair, *plain, 4, 1);
  for (float t = 0; t < 5; ++t) same_step(*pair, *plain, 1, t);
  EXPECT_EQ(pair->self().seen(), 9);
  EXPECT_EQ(pair->cross().seen(), kEncoder);

  const std::vector<int64_t> source = {2, 0, 0, 2};
  pair->gather(kCall, source);
  plain->gather(kCall, source);
  rows = {5, 0, 0, 5};
  same_step(*pair, *plain, 1, 7);

  const auto copy = pair->clone(kCall), plain_copy = plain->clone(kCall);
  const std::vector<int64_t> two = {2};
  pair->crop(kCall, two);
  plain->crop(kCall, two);
  EXPECT_EQ(pair->self().seen(), 8);
  EXPECT_EQ(pair->cross().seen(), kEncoder) << "crop is for the self side";
  same_step(*pair, *plain, 2, 8);
  same_step(*copy, *plain_copy, 1, 9);

  pair->reset(kCall);
  plain->reset(kCall);
  EXPECT_FALSE(pair->is_filled(0));
  rows = {4, 1};
  same_step(*pair, *plain, 3, 2);
}

// What a cross layer is given, it is given once.
TEST_P(EncoderDecoder, IsFilledOnce) {
  const auto pair = make(GetParam().first, GetParam().second);
  const std::vector<int64_t> rows = {0, 2};
  step(*pair, rows, 2, 1);
  const Values q(rows, 1, 3), k(rows, 5, 4), v(rows, 5, 5);
  Values out(rows, 1, 0);
  kvp_attend_args args = args_for(1, q);
  args.k = &k.tensor;
  args.v = &v.tensor;
  const Error error = error_of([&] { pair->cross().attend(kCall, args, out.tensor, nullptr); });
  EXPECT_EQ(error.code(), Code::kInvalidState);
  EXPECT_HAS(error.what(), "holds 70 tokens already; it is filled once");
  EXPECT_EQ(pair->cross().seen(), kEncoder);
}

TEST_P(EncoderDecoder, ARefusalChangesNeitherSide) {
  const auto pair = make(GetParam().first, GetParam().second);
  const std::vector<int64_t> rows = {1, 2}, wrong = {0, 7};
  step(*pair, rows, 2, 1);
  EXPECT_EQ(error_of([&] { pair->gather(kCall, wrong); }).code(), Code::kInvalidArgument);
  EXPECT_EQ(pair->self().batch(), 2);
  EXPECT_EQ(pair->cross().batch(), 2);
  kvp_call check = kCall;
  check.flags = KVP_CALL_CHECK;
  const std::vector<int64_t> source = {1};
  pair->gather(check, source);
  EXPECT_EQ(pair->self().batch(), 2);
}

INSTANTIATE_TEST_SUITE_P(Kinds, EncoderDecoder,
                         testing::Values(std::pair("dynamic", "dynamic"), std::pair("static", "dynamic"),
                                         std::pair("dynamic", "static"), std::pair("static", "static"),
                                         std::pair("offloaded", "dynamic"), std::pair("offloaded_static", "static")),
                         [](const auto& param) { return std::string(param.param.first) + "_" + param.param.second; });

TEST(CrossChoice, FollowsTransformersAndIsNeverOffloaded) {
  const auto kind = [](const char* self) {
    CacheChoice choice;
    choice.kind = self;
    return cross_choice(choice).kind;
  };
  EXPECT_EQ(kind("dynamic"), "dynamic");
  EXPECT_EQ(kind("static"), "static");
  EXPECT_EQ(kind("offloaded"), "dynamic");
  EXPECT_EQ(kind("offloaded_static"), "static");
  EXPECT_EQ(kind("quantized"), "dynamic");
}

}  // namespace
}  // namespace kvplug
