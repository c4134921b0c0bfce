// SPDX-License-Identifier: Apache-2.0
// The quantizer "quanto": optimum-quanto's affine codes of 2, 4 or 8 bits, scale and offset from smallest and largest.
// Blocks of tokens on the arithmetic of kernel-inl.h; with hf_compat = "strict" the reference's own, whole tensors at
// once (strict.h).
#include <kvplug/sdk/affine_quantizer.h>
#include <kvplug/sdk/plugin.h>
#include <kvplug/sdk/quantizer_plugin.h>

#include <optional>

#include "kernels.h"
#include "strict.h"

namespace kvplug::quanto {
namespace {

constexpr std::initializer_list<int64_t> kBits = {2, 4, 8}, kBitsStrict = {2, 4};
constexpr int64_t kTokensAxis = -1, kHeadAxis = 0;

const sdk::AffineKernels& kernels() {
#if defined(__x86_64__)
  if (sdk::simd_level() == 2) return kAvx512Kernels;
  if (sdk::simd_level() == 1) return kAvx2Kernels;
#endif
  return kScalarKernels;
}

class Quanto {
 public:
  static uint32_t spec_count() noexcept { return sdk::affine_spec_count(kBits, kBitsStrict); }
  static void spec_range(uint32_t i, kvp_qspec& low, kvp_qspec& high) {
    sdk::affine_spec_range(i, kBits, kBitsStrict, low, high);
  }

  static std::string refusal(int32_t device_type) { return sdk::affine_refusal("quanto", device_type, cuda_kernels()); }

  explicit Quanto(const kvp_qcreate& create)
      : options_(sdk::affine_options("quanto", create, kBits, kBitsStrict, kTokensAxis, kHeadAxis)),
        group_dim_(options_.axis == kHeadAxis ? KVP_GROUP_HEAD_DIM : KVP_GROUP_TOKENS),
        dtype_(create.dtype) {
    const sdk::PackedForm form = sdk::packed_form(create, options_, group_dim_);
    if (options_.strict) {
      if (create.device_type != KVP_DEVICE_CPU) {
        sdk::fail(KVP_UNSUPPORTED, "hf_compat = \"strict\" computes on the CPU");
      }
      options_.group_size = form.group_size;
      strict_.emplace(dtype_, options_);
    } else {
      fixed_.emplace(form, kernels(), create.device_type, cuda_kernels());
    }
  }

  void describe(kvp_qspec& out) const {
    if (fixed_) return fixed_->describe(out);
    sdk::describe_affine(dtype_, options_, group_dim_, out);
  }
  void plan(int64_t batch, int64_t kv_heads, int64_t tokens, int64_t head_dim, kvp_qplan& out) const {
    if (fixed_) return fixed_->plan(batch, kv_heads, tokens, head_dim, out);
    strict_->plan(batch, kv_heads, tokens, head_dim, out);
  }
  void quantize(const kvp_call& call, const kvp_tensor& in, uint32_t, const kvp_qpart* parts, uint32_t n_parts,
                void* workspace) const {
    if (fixed_) return fixed_->quantize(call, in, parts, n_parts, workspace);
    strict_->quantize(in, parts, n_parts, workspace);
  }
  void dequantize(const kvp_call& call, const kvp_qpart* parts, uint32_t n_parts, kvp_tensor& out) const {
    if (fixed_) return fixed_->dequantize(call, parts, n_parts, out);
    strict_->dequantize(parts, n_parts, out);
  }
  // In steps. Rounding to the code: a half. x - low, the quotient, the step and its product each lose up to half a last
  // place of the type at `levels` steps. The last rounding at most doubles what there is: the value lies on its grid.
  double error_bound() const {
    const double u = dtype_.bits == 32 ? 0x1p-24 : dtype_.code == KVP_DTYPE_BFLOAT ? 0x1p-8 : 0x1p-11;
    const double levels = (1 << options_.nbits) - 1;
    return 2 * (0.5 + 5 * levels * u);
  }

  uint64_t attend_probe(const Quanto& values, const kvp_qattend_desc& desc) const {
    return blocks().attend_probe(values.blocks(), desc);
  }
  void attend(const Quanto& values, const kvp_call& call, const kvp_qattend_args& args, kvp_tensor& out,
              kvp_tensor& lse) const {
    blocks().attend(values.blocks(), call, args, out, lse);
  }
  static const void* extension(std::string_view id) noexcept {
    return id == KVP_EXT_QUANT_ATTEND ? sdk::QuantizerPlugin<Quanto>::attend_extension() : nullptr;
  }

 private:
  const sdk::AffineQuantizer& blocks() const {
    if (!fixed_) sdk::fail(KVP_UNSUPPORTED, "hf_compat = \"strict\" packs whole tensors, which are unpacked to attend");
    return *fixed_;
  }

  sdk::AffineOptions options_;
  int32_t group_dim_;
  kvp_dtype dtype_;
  std::optional<sdk::AffineQuantizer> fixed_;
  std::optional<Strict> strict_;
};

}  // namespace
}  // namespace kvplug::quanto

// The schema is the text of quanto.options.json.
KVPLUG_PLUGIN("quanto", "0.1.0", "kvplug",
              {{sizeof(kvp_descriptor), "quanto", KVP_IFACE_QUANTIZER,
                kvplug::sdk::QuantizerPlugin<kvplug::quanto::Quanto>::iface(),
                "optimum-quanto's affine codes of 2, 4 or 8 bits, scale and offset from smallest and largest", R"json({
  "type": "object",
  "properties": {
    "nbits": {
      "type": "integer",
      "default": 4,
      "enum": [2, 4, 8],
      "description": "bits of a code; 8 in hf_compat \"fixed\" only"
    },
    "axis": {
      "type": "integer",
      "default": 0,
      "enum": [0, -1],
      "description": "0: groups along head_dim, of one token; -1: along tokens, of one channel"
    },
    "q_group_size": {
      "type": "integer",
      "default": 64,
      "minimum": 1,
      "description": "values that share a scale and an offset"
    },
    "hf_compat": {
      "type": "string",
      "default": "fixed",
      "enum": ["fixed", "strict"],
      "description": "strict: the reference library's arithmetic, the whole tensor at once"
    }
  },
  "additionalProperties": false
}
)json"}})
