// SPDX-License-Identifier: Apache-2.0
// What the tests of hf_compat = "strict" share: what create is given, with quantizers of the test, and tokens.
#pragma once

#include "kinds.h"
#include "loaded_quantizer.h"
#include "strict_quantizer.h"

namespace kvplug::test {

inline const kvp_cache_iface* iface() { return iface_of(kQuantized); }

inline const std::vector<LayerShape> kShapes = {{4, 2, 8, 4}, {2, 1, 4, 8}};

// What create is given, with quantizers of the test.
struct Given : CreateArgs {
  WholeQuantizer k, v;
  kvp_qhandle handles[2];
  std::vector<kvp_option> options;

  explicit Given(const std::vector<LayerShape>& shapes = kShapes, kvp_dtype dtype = kF32, bool appends = false,
                 std::vector<kvp_option> more = {})
      : CreateArgs(shapes, dtype, 1), options(std::move(more)) {
    k.dtype = v.dtype = dtype;
    k.appends = v.appends = appends;
    handles[0] = k.handle();
    handles[1] = v.handle();
    options.push_back(option("hf_compat", "strict"));
    create.quantizer_key = &handles[0];
    create.quantizer_value = &handles[1];
    create.options = options.data();
    create.n_options = options.size();
  }
};

inline Values tokens_of(const LayerShape& s, bool keys, int64_t batch, int64_t tokens, Random& random,
                        kvp_dtype dtype = kF32) {
  return random_tensor(dtype, batch, s.kv_heads, tokens, keys ? s.key_dim : s.value_dim, random);
}

}  // namespace kvplug::test
