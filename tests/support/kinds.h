// SPDX-License-Identifier: Apache-2.0
// What the tests that hold for every cache kind share: the table of kinds, instances of one, and comparison with the
// reference cache. A kind of ours that is not in the table is not proven: add a line.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "exact_quantizer.h"
#include "loaded_cache.h"
#include "reference_cache.h"

namespace kvplug::test {

struct Kind {
  const char* name;        // the descriptor's id
  const char* library;     // in the build's plugin folder
  bool fixed;              // create.tokens is a capacity
  bool offloaded;          // has disk_path
  bool quantized = false;  // takes quantizers: the exact one, so that nothing is lost
};

constexpr Kind kQuantized{"quantized", "quantized.so", false, false, true};
constexpr Kind kKinds[] = {
    {"dynamic", "dynamic.so", false, false},
    {"static", "static.so", true, false},
    {"offloaded", "offloaded.so", false, true},
    {"offloaded_static", "offloaded.so", true, true},
    kQuantized,
};

inline std::vector<Kind> kinds_where(bool (*holds)(const Kind&)) {
  std::vector<Kind> all;
  std::copy_if(std::begin(kKinds), std::end(kKinds), std::back_inserter(all), holds);
  return all;
}

inline void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }
inline std::string name_of(const ::testing::TestParamInfo<Kind>& info) { return info.param.name; }

inline const kvp_descriptor& descriptor_of(const Kind& kind) {
  const kvp_plugin* plugin = load_plugin(kind.library);
  for (uint32_t i = 0; i < plugin->n_descriptors; ++i) {
    if (std::string_view(plugin->descriptor(i)->id) == kind.name) return *plugin->descriptor(i);
  }
  throw std::runtime_error(std::string(kind.library) + " has no kind " + kind.name);
}
inline const kvp_cache_iface* iface_of(const Kind& kind) {
  return static_cast<const kvp_cache_iface*>(descriptor_of(kind).iface);
}

// probe, plan and create answer `status`, the last with all of `words`, and nothing is held.
inline void expect_refused(const kvp_cache_iface* iface, const kvp_cache_create& create, int32_t status,
                           const std::vector<std::string>& words) {
  char text[512] = "";
  kvp_error err{sizeof err, 0, 0, text, sizeof text, 0};
  kvp_cache_info info{};
  info.struct_size = sizeof info;
  kvp_memory memory{};
  memory.struct_size = sizeof memory;
  kvp_cache* self = nullptr;
  EXPECT_EQ(iface->probe(&create, &info, &err), status) << text;
  EXPECT_EQ(iface->plan(&create, 1, 1, &memory, &err), status) << text;
  EXPECT_EQ(iface->create(&create, &self, &err), status) << text;
  EXPECT_EQ(self, nullptr);
  for (const std::string& word : words)
    EXPECT_NE(std::string(text).find(word), std::string::npos) << word << ": " << text;
  EXPECT_EQ(TestHost::get().held(), 0u);
}

// A folder of its own, gone with the object.
class TempFolder {
 public:
  TempFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "kvplug-kinds-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary folder");
    path_ = name;
  }
  TempFolder(const TempFolder&) = delete;
  ~TempFolder() { std::filesystem::remove_all(path_); }
  const std::filesystem::path& path() const { return path_; }
  bool empty() const { return std::filesystem::is_empty(path_); }

 private:
  std::filesystem::path path_;
};

// What a quantized cache is given: options and the exact quantizers of K and V.
struct QuantizedArgs {
  ExactQuantizer k, v;
  kvp_qhandle k_handle{}, v_handle{};
  std::vector<kvp_option> options;

  void integer(const char* key, int64_t value) { options.push_back({key, nullptr, value, 0, KVP_OPTION_INTEGER, 0}); }
  void text(const char* key, const char* value) { options.push_back({key, value, 0, 0, KVP_OPTION_TEXT, 0}); }
  void give(kvp_cache_create& create) {
    k.dtype = v.dtype = create.dtype;
    k_handle = k.handle();
    v_handle = v.handle();
    create.quantizer_key = &k_handle;
    create.quantizer_value = &v_handle;
    create.options = options.data();
    create.n_options = options.size();
  }
};

// What create is given: layers, capacity, and where a folder is named disk_path and whether windows are offloaded too.
struct KindArgs : CreateArgs {
  std::string disk_path;
  kvp_option options[2] = {};
  QuantizedArgs quantized;  // blocks of 2 tokens, the newest 4 and whatever is no whole block unpacked

  KindArgs(const Kind& kind, const std::vector<LayerShape>& shapes, kvp_dtype dtype, uint64_t owner,
           int64_t tokens = -1, std::string folder = "", bool only_non_sliding = false)
      : CreateArgs(shapes, dtype, owner), disk_path(std::move(folder)) {
    create.tokens = tokens;
    if (kind.quantized) {
      quantized.k.token_block = quantized.v.token_block = 2;
      quantized.integer("residual_length", 4);
      quantized.give(create);
    }
    if (!kind.offloaded || (disk_path.empty() && create.device_type == KVP_DEVICE_CPU)) return;
    options[0].key = "offload_only_non_sliding";
    options[0].type = KVP_OPTION_BOOLEAN;
    options[0].integer = only_non_sliding ? 1 : 0;
    options[1].key = "disk_path";
    options[1].type = KVP_OPTION_TEXT;
    options[1].text = disk_path.c_str();
    create.options = options;
    create.n_options = disk_path.empty() ? 1 : 2;
  }
};

// What plan answers.
inline kvp_memory plan_of(const Kind& kind, const kvp_cache_create& create, int64_t batch, int64_t tokens) {
  kvp_memory out{};
  out.struct_size = sizeof out;
  EXPECT_EQ(iface_of(kind)->plan(&create, batch, tokens, &out, nullptr), KVP_OK);
  return out;
}

inline ReferenceCache reference_of(const std::vector<LayerShape>& shapes) {
  std::vector<ReferenceCache::Layer> layers;
  for (const LayerShape& s : shapes) {
    layers.push_back({s.kv_heads, s.key_dim, s.value_dim, {}, s.kind, s.window});
  }
  return ReferenceCache(layers);
}

// Whether the view [batch, heads, kv_len, dim] shows what `token` gives for (row, head, slot): `dim` floats or NULL for
// zeros. Says where it does not.
template <class Token>
::testing::AssertionResult same_view(const kvp_tensor& view, int64_t kv_offset, Token&& token) {
  const Values got{nullptr, view};
  const int64_t dim = view.shape[3];
  std::vector<float> zeros(static_cast<size_t>(dim), 0.0f), row(static_cast<size_t>(dim));
  for (int64_t b = 0; b < view.shape[0]; ++b) {
    for (int64_t h = 0; h < view.shape[1]; ++h) {
      for (int64_t c = 0; c < view.shape[2]; ++c) {
        const float* want = token(b, h, kv_offset + c);
        if (want == nullptr) want = zeros.data();
        const std::byte* at = got.at(b, h, c);
        for (int64_t d = 0; d < dim; ++d)
          row[static_cast<size_t>(d)] = load(at + d * (view.dtype_bits / 8), got.dtype());
        if (std::memcmp(row.data(), want, row.size() * sizeof(float)) == 0) continue;
        return ::testing::AssertionFailure()
               << "row " << b << ", head " << h << ", slot " << kv_offset + c << ", column " << c << ": " << row[0]
               << ", ... expected " << want[0] << ", ...";
      }
    }
  }
  return ::testing::AssertionSuccess();
}

// The views of a layer against the reference, bit for bit; kv_offset and kv_len: as it was before the call.
inline void expect_kind_views(const ReferenceCache& want, size_t layer, const kvp_tensor& k, const kvp_tensor& v,
                              int64_t kv_offset, int64_t kv_len) {
  const ReferenceCache::Layer& l = want.layer(layer);
  ASSERT_EQ(k.shape[2], kv_len) << "layer " << layer;
  ASSERT_EQ(v.shape[2], kv_len) << "layer " << layer;
  if (kv_len == 0) return;
  const auto batch = static_cast<int64_t>(l.rows.size());
  ASSERT_EQ(std::vector<int64_t>(k.shape, k.shape + 4), (std::vector<int64_t>{batch, l.kv_heads, kv_len, l.key_dim}));
  ASSERT_EQ(std::vector<int64_t>(v.shape, v.shape + 4), (std::vector<int64_t>{batch, l.kv_heads, kv_len, l.value_dim}));
  ASSERT_TRUE(same_view(k, kv_offset, [&](int64_t b, int64_t h, int64_t s) { return want.k(layer, b, h, s); }))
      << "k of layer " << layer;
  ASSERT_TRUE(same_view(v, kv_offset, [&](int64_t b, int64_t h, int64_t s) { return want.v(layer, b, h, s); }))
      << "v of layer " << layer;
}

// Everything the cache shows: lengths, rows, and the views of a zero-token update of each layer. max: what lengths
// should name as the most that fits.
inline void expect_kind_same(LoadedCache& cache, ReferenceCache& want, int64_t max) {
  want.settle();
  for (size_t i = 0; i < want.n_layers(); ++i) {
    const auto layer = static_cast<int32_t>(i);
    const ReferenceCache::Layer& l = want.layer(i);
    std::vector<int64_t> seen(l.rows.size()), pad(l.rows.size());
    const int64_t query_len = l.cross() && want.longest(i) > 0 ? 0 : 3;
    const kvp_lengths lengths = cache.lengths(layer, query_len, &seen, &pad);
    ASSERT_EQ(lengths.seen, want.longest(i)) << "layer " << i;
    ASSERT_EQ(lengths.max, max) << "layer " << i;
    ASSERT_EQ(lengths.kv_offset, want.kv_offset(i)) << "layer " << i;
    ASSERT_EQ(lengths.kv_len, want.kv_len(i, query_len)) << "layer " << i;
    for (size_t b = 0; b < l.rows.size(); ++b) {
      ASSERT_EQ(seen[b], l.rows[b].seen()) << "layer " << i << ", row " << b;
      ASSERT_EQ(pad[b], l.rows[b].pad()) << "layer " << i << ", row " << b;
    }
    kvp_update_args args{};
    args.struct_size = sizeof args;
    args.layer = layer;
    kvp_tensor k{}, v{};
    ASSERT_EQ(cache.update(args, &k, &v), KVP_OK) << cache.text();
    ASSERT_NO_FATAL_FAILURE(expect_kind_views(want, i, k, v, want.kv_offset(i), want.kv_len(i, 0)));
  }
}

inline Values random_tensor(kvp_dtype dtype, int64_t batch, int64_t heads, int64_t tokens, int64_t dim,
                            Random& random) {
  return fill(pick(random, 0, 1) == 0 ? make(dtype, {batch, heads, tokens, dim})
                                      : make_fused(dtype, batch, heads, tokens, dim, pick(random, 0, 3), 2),
              random);
}

}  // namespace kvplug::test
