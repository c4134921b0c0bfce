// SPDX-License-Identifier: Apache-2.0
// What dynamic refuses, in which words, and that a refusal touches nothing: arguments, layers it does not serve,
// options, error buffers of every size, structs of other versions, the entry.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "dynamic_fixture.h"

namespace kvplug::test {
namespace {

const LayerShape kShape{4, 2, 8, 4};

struct ErrorText {
  char buf[512];
  kvp_error err{sizeof(kvp_error), 0, 0, buf, sizeof buf, 0};
  std::string text() const { return {buf, std::min(err.len, sizeof buf - 1)}; }
};

TEST(DynamicContract, ProbeRefusesInWords) {
  const auto expect_unsupported = [](const kvp_cache_create& create, const char* word) {
    kvp_cache_info info{};
    info.struct_size = sizeof info;
    const kvp_cache_info untouched = info;
    ErrorText error;
    EXPECT_EQ(dynamic_iface()->probe(&create, &info, &error.err), KVP_UNSUPPORTED) << word;
    EXPECT_NE(error.text().find(word), std::string::npos) << error.text();
    EXPECT_EQ(error.err.code, KVP_UNSUPPORTED);
    EXPECT_EQ(0, std::memcmp(&info, &untouched, sizeof info));
    kvp_cache* self = nullptr;
    EXPECT_EQ(dynamic_iface()->create(&create, &self, nullptr), KVP_UNSUPPORTED);
    EXPECT_EQ(self, nullptr);
  };
  const std::pair<int32_t, const char*> kinds[] = {{KVP_LAYER_STATE, "dynamic does not serve state layers"},
                                                   {KVP_LAYER_NONE, "empty layers"},
                                                   {99, "unknown layers"}};
  for (const auto& [kind, word] : kinds) {
    LayerShape other = kShape;
    other.kind = kind;
    const CreateArgs args({kShape, other}, kF32, 1);
    expect_unsupported(args.create, word);
    expect_unsupported(args.create, "layer 1 ");
  }
  CreateArgs args({kShape}, kF32, 1);
  args.create.device_type = KVP_DEVICE_METAL;
  expect_unsupported(args.create, "CPU");
  args.create.device_type = KVP_DEVICE_CPU;
  args.create.dtype = {KVP_DTYPE_FLOAT, 64, 1};
  expect_unsupported(args.create, "float32, float16 or bfloat16");
  args.create.dtype = kF32;
  args.layers[0].index_dim = 4;
  expect_unsupported(args.create, "indexer");
  args.layers[0].index_dim = 0;
  args.layers[0].flags = KVP_LAYER_SHARED;
  expect_unsupported(args.create, "shares");
  args.layers[0].flags = 0;
  const kvp_qhandle quantizer{sizeof quantizer, nullptr, nullptr, "x"};
  args.create.quantizer_value = &quantizer;
  expect_unsupported(args.create, "quantizer");
}

TEST(DynamicContract, CreateChecksShapesAndOptions) {
  CreateArgs args({{3, 2, 8, 4}}, kF32, 1);
  ErrorText error;
  kvp_cache* self = nullptr;
  EXPECT_EQ(dynamic_iface()->create(&args.create, &self, &error.err), KVP_INVALID_ARGUMENT);
  EXPECT_NE(error.text().find("3 query heads, 2 K/V heads"), std::string::npos) << error.text();
  args.layers[0].q_heads = 4;
  kvp_option option{};
  option.key = "nbits";
  option.type = KVP_OPTION_INTEGER;
  args.create.options = &option;
  args.create.n_options = 1;
  EXPECT_EQ(dynamic_iface()->create(&args.create, &self, &error.err), KVP_INVALID_ARGUMENT);
  EXPECT_NE(error.text().find("'nbits'"), std::string::npos) << error.text();
  args.create.n_options = 0;
  args.create.n_layers = 0;
  EXPECT_EQ(dynamic_iface()->create(&args.create, &self, &error.err), KVP_INVALID_ARGUMENT);
  EXPECT_EQ(self, nullptr);
}

TEST(DynamicContract, BadArgumentsChangeNothing) {
  const CreateArgs args({kShape}, kF32, 1);
  LoadedCache cache(dynamic_iface(), args.create);
  ReferenceCache want = reference_for({kShape});
  Random random(4);
  const Values k = random_kv(kF32, 2, 2, 5, 8, random), v = random_kv(kF32, 2, 2, 5, 4, random);
  ASSERT_EQ(cache.update(0, k, v, nullptr, nullptr, nullptr, nullptr), KVP_OK);
  want.append(0, k, v, nullptr, nullptr);
  const auto expect_refused = [&](int32_t status, const char* words) {
    EXPECT_EQ(status, KVP_INVALID_ARGUMENT) << words;
    EXPECT_NE(cache.text().find(words), std::string::npos) << cache.text();
    ASSERT_NO_FATAL_FAILURE(expect_same(cache, want));
  };
  kvp_tensor out_k{}, out_v{};
  const auto update = [&](const Values& key, const Values& value, const std::vector<int64_t>& pad = {},
                          const std::vector<int64_t>& count = {}) {
    const int32_t status = cache.update(0, key, value, pad.empty() ? nullptr : pad.data(),
                                        count.empty() ? nullptr : count.data(), &out_k, &out_v);
    EXPECT_EQ(out_k.ndim, 0);
    return status;
  };
  const auto kv = [&](int64_t b, int64_t h, int64_t n, int64_t d) { return random_kv(kF32, b, h, n, d, random); };
  expect_refused(update(kv(3, 2, 5, 8), kv(3, 2, 5, 4)), "the batch is 3; the cache holds 2 rows");
  expect_refused(update(kv(3, 2, 0, 8), kv(3, 2, 0, 4)), "the batch is 3; the cache holds 2 rows");
  expect_refused(update(kv(2, 1, 5, 8), v), "k has shape [2, 1, 5, 8]; expected [any, 2, any, 8]");
  expect_refused(update(k, kv(2, 2, 4, 4)), "v has shape [2, 2, 4, 4]; expected [2, 2, 5, 4]");
  expect_refused(update(random_kv(kBF16, 2, 2, 5, 8, random), v), "k is bfloat16; expected float32");
  expect_refused(update(k, v, {1, 0}), "pad[0] is 1, but row 0 already holds 5 tokens");
  expect_refused(update(k, v, {0, -1}), "pad[1] is -1");
  expect_refused(update(k, v, {}, {5, 6}), "count[1] is 6; the call has 5 tokens a row");
  expect_refused(update(k, v, {}, {-1, 0}), "count[0] is -1");
  Values strided = kv(2, 2, 5, 8);
  strided.t.strides[3] = 2;
  expect_refused(update(strided, v), "k has last stride 2");
  strided.t.strides[3] = 1;
  strided.t.device_type = KVP_DEVICE_CUDA;
  expect_refused(update(strided, v), "k lies on a device of type 2");
  expect_refused(cache.update(0, k, v, nullptr, nullptr, &out_k, nullptr), "view of one");
  expect_refused(cache.update(7, k, v, nullptr, nullptr, nullptr, nullptr), "layer 7 was asked for; the cache has 1");
  expect_refused(cache.gather({0, 2}), "src_rows[1] is 2");
  expect_refused(cache.gather({-2}), "src_rows[0] is -2");
  expect_refused(cache.gather({}), "gather to 0 rows");
  expect_refused(cache.crop({1, 2, 3}), "crop with 3 counts");
  expect_refused(cache.crop({-1}), "n_remove[0] is -1");
  expect_refused(cache.reserve(1, -1), "reserve for batch 1 and -1 tokens");
  expect_refused(cache.set_rollback(-1), "set_rollback to -1");
  for (const uint32_t flag : {0u, KVP_CALL_CHECK}) {
    expect_refused(cache.gather({0, 2}, flag), "src_rows[1] is 2");
    expect_refused(cache.crop({-1}, flag), "n_remove[0] is -1");
  }

  Values q = kv(2, 4, 5, 8), out = kv(2, 4, 5, 4), lse = make(kF32, {2, 4, 5});
  kvp_attend_args attend{};
  attend.struct_size = sizeof attend;
  attend.q = &q.t;
  attend.k = &k.t;
  attend.v = &v.t;
  attend.scale = 1;
  const auto expect_attend_refused = [&](const char* words) {
    const float before = out.get(1, 1, 1, 1);
    expect_refused(cache.attend(attend, &out.t, &lse.t), words);
    EXPECT_EQ(out.get(1, 1, 1, 1), before);
  };
  const Values bad_q = kv(2, 4, 5, 4), bad_bias = make(kF32, {2, 4, 5, 9}), bad_sinks = make(kF32, {3});
  attend.q = &bad_q.t;
  expect_attend_refused("q has shape");
  attend.q = &q.t;
  attend.v = nullptr;
  expect_attend_refused("v is missing");
  attend.v = &v.t;
  attend.bias = &bad_bias.t;
  expect_attend_refused("bias has shape [2, 4, 5, 9]; expected one that broadcasts to [2, 4, 5, 10]");
  attend.bias = nullptr;
  attend.sinks = &bad_sinks.t;
  expect_attend_refused("sinks has shape [3]");
  attend.sinks = nullptr;
  attend.window = -1;
  expect_attend_refused("window is -1");
  attend.window = 0;
  out.t.shape[2] = 4;
  expect_attend_refused("out has shape");
}

TEST(DynamicContract, ErrorBuffersOfEverySize) {
  const CreateArgs args({kShape}, kF32, 1);
  LoadedCache cache(dynamic_iface(), args.create);
  const kvp_call call{sizeof(kvp_call), KVP_DEVICE_CPU, 0, nullptr, 0, 0};
  const int64_t counts[1] = {-1};
  const auto crop = [&](kvp_error* err) { return dynamic_iface()->crop(cache.self(), &call, counts, 1, err); };
  EXPECT_EQ(crop(nullptr), KVP_INVALID_ARGUMENT);
  ErrorText whole;
  EXPECT_EQ(crop(&whole.err), KVP_INVALID_ARGUMENT);
  for (const size_t cap : {size_t{0}, size_t{1}, size_t{16}}) {
    char buf[17];
    std::memset(buf, 'x', sizeof buf);
    kvp_error err{sizeof(kvp_error), 0, 7, buf, cap, 0};
    EXPECT_EQ(crop(&err), KVP_INVALID_ARGUMENT);
    EXPECT_EQ(err.code, KVP_INVALID_ARGUMENT);
    EXPECT_EQ(err.native_code, 0);
    EXPECT_EQ(err.len, whole.err.len);
    EXPECT_EQ(buf[cap], 'x');
    if (cap > 0) {
      EXPECT_EQ(std::string(buf), whole.text().substr(0, cap - 1));
    }
  }
  kvp_error no_buffer{sizeof(kvp_error), 0, 0, nullptr, 100, 0};
  EXPECT_EQ(crop(&no_buffer), KVP_INVALID_ARGUMENT);
  EXPECT_EQ(no_buffer.len, whole.err.len);
}

TEST(DynamicContract, LengthsBeyondTheBatch) {
  const CreateArgs args({kShape}, kF32, 1);
  LoadedCache cache(dynamic_iface(), args.create);
  std::vector<int64_t> seen(3, 9), pad(3, 9);
  cache.lengths(0, 1, &seen, &pad);
  EXPECT_EQ(seen, std::vector<int64_t>(3, 0));
  Random random(1);
  const Values k = random_kv(kF32, 2, 2, 5, 8, random), v = random_kv(kF32, 2, 2, 5, 4, random);
  ASSERT_EQ(cache.update(0, k, v, nullptr, nullptr, nullptr, nullptr), KVP_OK);
  kvp_lengths out{};
  out.struct_size = sizeof out;
  out.row_seen = seen.data();
  out.n_rows = 3;
  EXPECT_EQ(dynamic_iface()->lengths(cache.self(), 0, 1, &out, nullptr), KVP_INVALID_ARGUMENT);
  EXPECT_EQ(seen, std::vector<int64_t>(3, 0));
  EXPECT_EQ(dynamic_iface()->lengths(cache.self(), 0, -1, &out, nullptr), KVP_INVALID_ARGUMENT);
}

// A host that knows fewer fields, and one that knows more.
TEST(DynamicContract, StructsOfOtherVersions) {
  const CreateArgs args({kShape}, kF32, 1);
  struct Larger {
    kvp_memory memory;
    uint64_t more;
  } larger{};
  larger.memory.struct_size = sizeof larger;
  larger.more = 77;
  ASSERT_EQ(dynamic_iface()->plan(&args.create, 1, 100, &larger.memory, nullptr), KVP_OK);
  EXPECT_EQ(larger.memory.struct_size, sizeof larger);
  EXPECT_GT(larger.memory.peak[KVP_TIER_HOST], 0u);
  EXPECT_EQ(larger.more, 77u);
  kvp_memory shorter{};
  shorter.struct_size = offsetof(kvp_memory, peak);
  ASSERT_EQ(dynamic_iface()->plan(&args.create, 1, 100, &shorter, nullptr), KVP_OK);
  EXPECT_EQ(shorter.peak[KVP_TIER_HOST], 0u);
  EXPECT_GT(shorter.reserved[KVP_TIER_HOST][KVP_PURPOSE_KV], 0u);
  EXPECT_EQ(dynamic_iface()->plan(&args.create, -1, 100, &shorter, nullptr), KVP_INVALID_ARGUMENT);
}

TEST(DynamicContract, TheDescriptorCarriesTheSchemaFile) {
  const kvp_plugin* plugin = load_plugin("dynamic.so");
  EXPECT_EQ(load_plugin("dynamic.so"), plugin);
  ASSERT_EQ(plugin->n_descriptors, 1u);
  EXPECT_EQ(plugin->descriptor(1), nullptr);
  const kvp_descriptor* descriptor = plugin->descriptor(0);
  EXPECT_STREQ(descriptor->id, "dynamic");
  EXPECT_STREQ(descriptor->iface_id, KVP_IFACE_CACHE);
  std::ifstream file(KVPLUG_TEST_BUILD "/plugins/dynamic.options.json");
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(descriptor->options_schema, text.str());
  EXPECT_EQ(dynamic_iface()->get_extension("kvp.nothing/1"), nullptr);
}

}  // namespace
}  // namespace kvplug::test
