// SPDX-License-Identifier: Apache-2.0
// A cache of a kind with what it should hold beside it, for tests that ask for one thing at a time.
#pragma once

#include <gtest/gtest.h>

#include "kinds.h"

namespace kvplug::test {

inline constexpr int64_t kCapacity = 40;
inline const LayerShape kFull{4, 2, 8, 4};
inline const LayerShape kSliding{4, 2, 8, 4, KVP_LAYER_SLIDING, 8};

// A cache and what it should hold.
struct Filled {
  std::vector<LayerShape> shapes;
  KindArgs args;
  LoadedCache cache;
  ReferenceCache want;
  int64_t max;
  Random random{4};

  Filled(const Kind& kind, std::vector<LayerShape> layers, std::string folder = "", int64_t tokens = kCapacity)
      : shapes(std::move(layers)),
        args(kind, shapes, kF32, 1, kind.fixed ? tokens : -1, std::move(folder)),
        cache(iface_of(kind), args.create),
        want(reference_of(shapes)),
        max(kind.fixed ? tokens : -1) {}

  Values k(size_t i, int64_t batch, int64_t tokens) {
    return random_tensor(kF32, batch, shapes[i].kv_heads, tokens, shapes[i].key_dim, random);
  }
  Values v(size_t i, int64_t batch, int64_t tokens) {
    return random_tensor(kF32, batch, shapes[i].kv_heads, tokens, shapes[i].value_dim, random);
  }
  // Appends to every layer; the status of the first that refuses.
  int32_t append(int64_t batch, int64_t tokens) {
    for (size_t i = 0; i < shapes.size(); ++i) {
      const Values key = k(i, batch, tokens), value = v(i, batch, tokens);
      const int32_t status = cache.update(static_cast<int32_t>(i), key, value, nullptr, nullptr, nullptr, nullptr);
      if (status != KVP_OK) return status;
      want.append(i, key, value, nullptr, nullptr);
    }
    want.settle();
    return KVP_OK;
  }
  void expect_refused(int32_t got, int32_t status, const std::vector<std::string>& words) {
    EXPECT_EQ(got, status) << cache.text();
    for (const std::string& word : words)
      EXPECT_NE(cache.text().find(word), std::string::npos) << word << ": " << cache.text();
    ASSERT_NO_FATAL_FAILURE(expect_same());
  }
  void expect_same() { ASSERT_NO_FATAL_FAILURE(expect_kind_same(cache, want, max)); }
};

}  // namespace kvplug::test
