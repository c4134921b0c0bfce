// SPDX-License-Identifier: Apache-2.0
#include <kvplug/sdk/affine_quantizer.h>
#include <kvplug/sdk/options.h>

#include <algorithm>

namespace kvplug::sdk {
namespace {

constexpr kvp_dtype kTypes[] = {kFloat32, kFloat16, kBFloat16};
constexpr int32_t kGroupDims[] = {KVP_GROUP_HEAD_DIM, KVP_GROUP_TOKENS};
constexpr int64_t kMaxGroup = 65536;

bool among(int64_t x, std::initializer_list<int64_t> list) {
  return std::find(list.begin(), list.end(), x) != list.end();
}

std::string listed(std::initializer_list<int64_t> list) {
  std::string out;
  for (const int64_t& x : list) {
    out += (out.empty() ? "" : &x + 1 == list.end() ? " or " : ", ") + std::to_string(x);
  }
  return out;
}

AffineOptions from_spec(const kvp_qspec& spec, const char* plugin, int64_t tokens_axis, int64_t head_axis) {
  if (spec.format != KVP_FORMAT_AFFINE) {
    fail(KVP_UNSUPPORTED, plugin, " is affine (format ", KVP_FORMAT_AFFINE, "); the spec asks for ", spec.format);
  }
  if (spec.group_dim != KVP_GROUP_TOKENS && spec.group_dim != KVP_GROUP_HEAD_DIM) {
    fail(KVP_UNSUPPORTED, plugin, " has groups along tokens or along head_dim; the spec asks for ", spec.group_dim);
  }
  AffineOptions out;
  out.nbits = 0;
  while (out.nbits < 9 && (uint32_t{1} << out.nbits) < spec.n_levels) ++out.nbits;
  if (spec.n_levels != uint32_t{1} << out.nbits)
    fail(KVP_UNSUPPORTED, plugin, " has no form of ", spec.n_levels, " levels");
  out.axis = spec.group_dim == KVP_GROUP_TOKENS ? tokens_axis : head_axis;
  out.group_size = spec.group_size;
  out.strict = (spec.flags & KVP_Q_STRICT) != 0;
  return out;
}

}  // namespace

AffineOptions affine_options(const char* plugin, const kvp_qcreate& create, std::initializer_list<int64_t> nbits,
                             std::initializer_list<int64_t> nbits_strict, int64_t tokens_axis, int64_t head_axis) {
  const Options given(create.options, create.n_options, {"nbits", "axis", "q_group_size", "hf_compat"});
  AffineOptions out;
  if (create.spec != nullptr) {
    out = from_spec(*create.spec, plugin, tokens_axis, head_axis);
  } else {
    const std::string_view compat = given.text("hf_compat", "fixed");
    if (compat != "fixed" && compat != "strict") {
      fail(KVP_INVALID_ARGUMENT, "option 'hf_compat' is \"", compat, "\"; expected \"fixed\" or \"strict\"");
    }
    out.strict = compat == "strict";
    out.nbits = given.integer("nbits", 4, INT64_MIN, INT64_MAX);
    out.axis = given.integer("axis", 0, INT64_MIN, INT64_MAX);
    out.group_size = given.integer("q_group_size", 64, INT64_MIN, INT64_MAX);
  }
  if (!among(out.nbits, out.strict ? nbits_strict : nbits)) {
    fail(KVP_INVALID_ARGUMENT, "option 'nbits' is ", out.nbits, "; ", plugin, " packs ",
         listed(out.strict ? nbits_strict : nbits), " bits",
         out.strict && among(out.nbits, nbits) ? ", as hf_compat = \"strict\" repeats the reference; remove hf_compat"
                                               : "");
  }
  if (out.axis != tokens_axis && out.axis != head_axis) {
    fail(KVP_INVALID_ARGUMENT, "option 'axis' is ", out.axis, "; ", plugin, " takes ",
         std::max(tokens_axis, head_axis) == 1 ? "0 or 1" : "0 or -1");
  }
  if (out.group_size < 1 && (create.spec == nullptr || out.group_size < 0)) {
    fail(KVP_INVALID_ARGUMENT, "option 'q_group_size' is ", out.group_size, "; expected 1 or more");
  }
  return out;
}

uint32_t affine_spec_count(std::initializer_list<int64_t> nbits, std::initializer_list<int64_t> nbits_strict) noexcept {
  return static_cast<uint32_t>(6 * (nbits.size() + nbits_strict.size()));
}

void affine_spec_range(uint32_t i, std::initializer_list<int64_t> nbits, std::initializer_list<int64_t> nbits_strict,
                       kvp_qspec& low, kvp_qspec& high) {
  AffineOptions options;
  const size_t bits = i / 6;
  options.strict = bits >= nbits.size();
  options.nbits = options.strict ? nbits_strict.begin()[bits - nbits.size()] : nbits.begin()[bits];
  options.group_size = 1;
  describe_affine(kTypes[i % 3], options, kGroupDims[i / 3 % 2], low);
  high = low;
  high.group_size = kMaxGroup;
}

void describe_affine(kvp_dtype dtype, const AffineOptions& options, int32_t group_dim, kvp_qspec& out) {
  out.format = KVP_FORMAT_AFFINE;
  out.n_levels = uint32_t{1} << options.nbits;
  out.storage_bits = static_cast<uint32_t>(options.nbits);
  out.group_dim = group_dim;
  out.group_size = options.group_size;
  out.scale_dtype = out.zero_dtype = out.out_dtype = dtype;
  out.flags = options.strict ? KVP_Q_STRICT : 0;
}

}  // namespace kvplug::sdk
