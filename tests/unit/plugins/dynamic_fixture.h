// SPDX-License-Identifier: Apache-2.0
// What the tests of the cache plugin dynamic share: the loaded plugin and comparison with the reference cache.
#pragma once

#include <gtest/gtest.h>

#include "loaded_cache.h"
#include "reference_cache.h"

namespace kvplug::test {

inline const kvp_cache_iface* dynamic_iface() {
  static const kvp_plugin* plugin = load_plugin("dynamic.so");
  return static_cast<const kvp_cache_iface*>(plugin->descriptor(0)->iface);
}

inline ReferenceCache reference_for(const std::vector<LayerShape>& shapes) {
  std::vector<ReferenceCache::Layer> layers;
  for (const LayerShape& s : shapes) layers.push_back({s.kv_heads, s.key_dim, s.value_dim, {}});
  return ReferenceCache(layers);
}

// The views of a layer against the reference, bit for bit. kv_len: what lengths promised.
inline void expect_views(const ReferenceCache& want, size_t layer, const kvp_tensor& k, const kvp_tensor& v,
                         int64_t kv_len) {
  const ReferenceCache::Layer& l = want.layer(layer);
  const int64_t batch = static_cast<int64_t>(l.rows.size());
  ASSERT_EQ(k.shape[2], kv_len);
  ASSERT_EQ(v.shape[2], kv_len);
  if (kv_len == 0) return;
  ASSERT_EQ(k.shape[0], batch);
  ASSERT_EQ(k.shape[1], l.kv_heads);
  ASSERT_EQ(k.shape[3], l.key_dim);
  ASSERT_EQ(v.shape[3], l.value_dim);
  const Values got_k{nullptr, k}, got_v{nullptr, v};
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t h = 0; h < l.kv_heads; ++h) {
      for (int64_t s = 0; s < kv_len; ++s) {
        for (int64_t d = 0; d < l.key_dim; ++d) {
          ASSERT_EQ(got_k.get(b, h, s, d), want.k(layer, b, h, s, d)) << "k, row " << b << ", slot " << s;
        }
        for (int64_t d = 0; d < l.value_dim; ++d) {
          ASSERT_EQ(got_v.get(b, h, s, d), want.v(layer, b, h, s, d)) << "v, row " << b << ", slot " << s;
        }
      }
    }
  }
}

// Everything the cache shows: lengths, rows, and the views of a zero-token update of each layer.
inline void expect_same(LoadedCache& cache, const ReferenceCache& want) {
  for (size_t i = 0; i < want.n_layers(); ++i) {
    const auto layer = static_cast<int32_t>(i);
    const ReferenceCache::Layer& l = want.layer(i);
    std::vector<int64_t> seen(l.rows.size()), pad(l.rows.size());
    const kvp_lengths lengths = cache.lengths(layer, 3, &seen, &pad);
    ASSERT_EQ(lengths.seen, want.longest(i));
    ASSERT_EQ(lengths.max, -1);
    ASSERT_EQ(lengths.kv_len, want.longest(i) + 3);
    ASSERT_EQ(lengths.kv_offset, 0);
    for (size_t b = 0; b < l.rows.size(); ++b) {
      ASSERT_EQ(seen[b], l.rows[b].seen()) << "row " << b;
      ASSERT_EQ(pad[b], l.rows[b].pad()) << "row " << b;
    }
    kvp_update_args args{};
    args.struct_size = sizeof args;
    args.layer = layer;
    kvp_tensor k{}, v{};
    ASSERT_EQ(cache.update(args, &k, &v), KVP_OK) << cache.text();
    expect_views(want, i, k, v, want.longest(i));
  }
}

inline Values random_kv(kvp_dtype dtype, int64_t batch, int64_t heads, int64_t tokens, int64_t dim, Random& random) {
  return fill(pick(random, 0, 1) == 0 ? make(dtype, {batch, heads, tokens, dim})
                                      : make_fused(dtype, batch, heads, tokens, dim, pick(random, 0, 3), 2),
              random);
}

}  // namespace kvplug::test
