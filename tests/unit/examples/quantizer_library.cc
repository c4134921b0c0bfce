// SPDX-License-Identifier: Apache-2.0
#include "quantizer_library.h"

namespace kvplug::test {

std::vector<int64_t> scale_of_elements(const Quantizer& q) {
  const int64_t tokens = q.block(), dim = q.wish().head_dim;
  const Values in = q.values(1, 1, tokens);
  Random random(1);
  fill_normal(in, random);
  const Packed packed = q.packed(in.t);
  std::vector<int64_t> of(static_cast<size_t>(tokens * dim), -1);
  for (uint32_t i = 0; i < packed.count(); ++i) {
    if (packed.parts[i].role != KVP_PART_SCALE) continue;
    const Values& scales = packed.memory[i];
    const int64_t n = scales.t.shape[3];
    for (int64_t j = 0; j < n; ++j) {
      const float kept = scales.get(0, 0, 0, j);
      put(scales, NAN, 0, 0, 0, j);
      const Values out = q.unpacked(packed, 1, 1, tokens, kF32);
      put(scales, kept, 0, 0, 0, j);
      for (size_t e = 0; e < of.size(); ++e) {
        const auto at = static_cast<int64_t>(e);
        if (std::isnan(out.get(0, 0, at / dim, at % dim))) of[e] = of[e] == -1 ? j : -2;
      }
    }
  }
  return of;
}

std::vector<Wish> wishes(std::initializer_list<int64_t> head_dims) {
  const kvp_quantizer_iface& iface = Quantizer::iface();
  std::vector<Wish> out;
  const auto add = [&](Wish wish) {
    for (wish.role = KVP_ROLE_KEY; wish.role <= KVP_ROLE_VALUE; ++wish.role) {
      for (const int64_t dim : head_dims) {
        wish.head_dim = dim;
        out.push_back(wish);
      }
    }
  };
  for (uint32_t i = 0; i < iface.spec_count(); ++i) {
    kvp_qspec low{}, high{};
    low.struct_size = high.struct_size = sizeof low;
    EXPECT_EQ(iface.spec_range(i, &low, &high, nullptr), KVP_OK);
    if ((low.flags & KVP_Q_STRICT) != 0) continue;
    Wish wish{low, true, KVP_ROLE_KEY, 1, low.out_dtype};
    add(wish);
    wish.spec = high;
    if (std::memcmp(&low, &high, sizeof low) != 0) add(wish);
  }
  for (const kvp_dtype dtype : {kF32, kF16, kBF16}) add({{}, false, KVP_ROLE_KEY, 1, dtype});
  return out;
}

std::string text_of(const Wish& wish) {
  const kvp_qspec& s = wish.spec;
  std::string out = wish.role == KVP_ROLE_KEY ? "keys" : "values";
  out += " of " + std::to_string(wish.head_dim) + " in ";
  out += wish.dtype.code == KVP_DTYPE_BFLOAT ? "bf16" : "f" + std::to_string(wish.dtype.bits);
  if (!wish.by_spec) return out + ", by options";
  return out + ", format " + std::to_string(s.format) + ", " + std::to_string(s.n_levels) + " levels, group dim " +
         std::to_string(s.group_dim) + " size " + std::to_string(s.group_size);
}

}  // namespace kvplug::test
