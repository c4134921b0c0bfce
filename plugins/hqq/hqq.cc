// SPDX-License-Identifier: Apache-2.0
// The quantizer "hqq": HQQ's affine codes of 1 to 4 or 8 bits, the offset solved for robustly. Blocks of tokens on the
// arithmetic of kernel-inl.h; with hf_compat = "strict" the reference's own, whole tensors at once (strict.h).
#include <kvplug/sdk/affine_quantizer.h>
#include <kvplug/sdk/plugin.h>
#include <kvplug/sdk/quantizer_plugin.h>

#include <optional>

#include "kernels.h"
#include "strict.h"

namespace kvplug::hqq {
namespace {

constexpr std::initializer_list<int64_t> kBits = {1, 2, 3, 4, 8}, kBitsStrict = {1, 2, 3, 4, 8};
constexpr int64_t kTokensAxis = 0, kHeadAxis = 1;

const sdk::AffineKernels& kernels() {
#if defined(__x86_64__)
  if (sdk::simd_level() == 2) return kAvx512Kernels;
  if (sdk::simd_level() == 1) return kAvx2Kernels;
#endif
  return kScalarKernels;
}

class Hqq {
 public:
  static uint32_t spec_count() noexcept { return sdk::affine_spec_count(kBits, kBitsStrict); }
  static void spec_range(uint32_t i, kvp_qspec& low, kvp_qspec& high) {
    sdk::affine_spec_range(i, kBits, kBitsStrict, low, high);
  }

  static std::string refusal(int32_t device_type) { return sdk::affine_refusal("hqq", device_type, cuda_kernels()); }

  explicit Hqq(const kvp_qcreate& create)
      : options_(sdk::affine_options("hqq", create, kBits, kBitsStrict, kTokensAxis, kHeadAxis)),
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
  // In steps. Blocks: a half, where the offset moved a code's worth away from an end another half, and what the type
  // takes from the step over all levels. The last rounding at most doubles what there is: the value lies on its grid.
  // Strict: the solver may leave a level and more at either end, and the zero itself is rounded.
  double error_bound() const {
    const double u = dtype_.bits == 32 ? 0x1p-23 : dtype_.code == KVP_DTYPE_BFLOAT ? 0x1p-8 : 0x1p-11;
    const double levels = (1 << options_.nbits) - 1;
    return 2 * (1 + 2 * levels * u);
  }

  uint64_t attend_probe(const Hqq& values, const kvp_qattend_desc& desc) const {
    return blocks().attend_probe(values.blocks(), desc);
  }
  void attend(const Hqq& values, const kvp_call& call, const kvp_qattend_args& args, kvp_tensor& out,
              kvp_tensor& lse) const {
    blocks().attend(values.blocks(), call, args, out, lse);
  }
  static const void* extension(std::string_view id) noexcept {
    return id == KVP_EXT_QUANT_ATTEND ? sdk::QuantizerPlugin<Hqq>::attend_extension() : nullptr;
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
}  // namespace kvplug::hqq

// The schema is the text of hqq.options.json.
KVPLUG_PLUGIN("hqq", "0.1.0", "kvplug",
              {{sizeof(kvp_descriptor), "hqq", KVP_IFACE_QUANTIZER,
                kvplug::sdk::QuantizerPlugin<kvplug::hqq::Hqq>::iface(),
                "HQQ's affine codes of 1 to 4 or 8 bits, the offset solved for robustly", R"json({
  "type": "object",
  "properties": {
    "nbits": {
      "type": "integer",
      "default": 4,
      "enum": [1, 2, 3, 4, 8],
      "description": "bits of a code"
    },
    "axis": {
      "type": "integer",
      "default": 0,
      "enum": [0, 1],
      "description": "0: groups along tokens, of one channel; 1: along head_dim, of one token (advised)"
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
