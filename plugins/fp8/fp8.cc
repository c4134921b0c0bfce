// SPDX-License-Identifier: Apache-2.0
// The quantizer "fp8": values over a scale as 8-bit floats. Scales come from the finite values, so that the largest one
// is the largest code; what is larger later (scale of a head, of the tensor) saturates, a NaN stays NaN alone. With
// hf_compat = "strict" as the reference: one scale, set once, and NaN beyond it.
#include <kvplug/sdk/affine_quantizer.h>
#include <kvplug/sdk/options.h>
#include <kvplug/sdk/plugin.h>
#include <kvplug/sdk/quantizer_plugin.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "blocks.h"

namespace kvplug::fp8 {
namespace {

enum class Granularity { kTensor, kHead, kTokenHead };

const Kernels& kernels() {
#if defined(__x86_64__)
  if (sdk::simd_level() == 2) return kAvx512Kernels;
  if (sdk::simd_level() == 1) return kAvx2Kernels;
#endif
  return kScalarKernels;
}

struct Settings {
  bool e5m2 = false, strict = false;
  Granularity granularity = Granularity::kTokenHead;
};

Settings from_spec(const kvp_qspec& spec) {
  if (spec.format != KVP_FORMAT_FP8_E4M3 && spec.format != KVP_FORMAT_FP8_E5M2) {
    sdk::fail(KVP_UNSUPPORTED, "fp8 has formats ", KVP_FORMAT_FP8_E4M3, " and ", KVP_FORMAT_FP8_E5M2,
              "; the spec asks for ", spec.format);
  }
  if (spec.group_size != 0) sdk::fail(KVP_UNSUPPORTED, "fp8 has no groups; the spec asks for ", spec.group_size);
  Settings out;
  out.e5m2 = spec.format == KVP_FORMAT_FP8_E5M2;
  out.strict = (spec.flags & KVP_Q_STRICT) != 0;
  out.granularity = spec.group_dim == KVP_GROUP_WHOLE    ? Granularity::kTensor
                    : spec.group_dim == KVP_GROUP_TOKENS ? Granularity::kHead
                                                         : Granularity::kTokenHead;
  if (out.strict && (out.e5m2 || out.granularity != Granularity::kTensor)) {
    sdk::fail(KVP_UNSUPPORTED, "strict is e4m3 with one scale");
  }
  return out;
}

Settings from_options(const kvp_qcreate& create) {
  for (size_t i = 0; i < create.n_options; ++i) {
    for (const std::string_view key : {"nbits", "axis", "q_group_size", "residual_length"}) {
      if (key != create.options[i].key) continue;
      sdk::fail(KVP_INVALID_ARGUMENT, "backend \"fp8\" has no groups and takes no ", key,
                "; remove the key, or use backend = \"quanto\" or \"hqq\"");
    }
  }
  const sdk::Options given(create.options, create.n_options, {"fp8_format", "scale_granularity", "hf_compat"});
  const auto choice = [&](const char* key, std::string_view fallback, std::initializer_list<std::string_view> words) {
    const std::string_view got = given.text(key, fallback);
    const auto* found = std::find(words.begin(), words.end(), got);
    if (found == words.end()) {
      std::string all;
      for (const std::string_view word : words) all += (all.empty() ? "\"" : ", \"") + std::string(word) + "\"";
      sdk::fail(KVP_INVALID_ARGUMENT, "option '", key, "' is \"", got, "\"; expected one of ", all);
    }
    return found - words.begin();
  };
  Settings out;
  out.strict = choice("hf_compat", "fixed", {"fixed", "strict"}) == 1;
  out.e5m2 = choice("fp8_format", "e4m3", {"e4m3", "e5m2"}) == 1;
  const auto granularity =
      choice("scale_granularity", out.strict ? "tensor" : "token_head", {"tensor", "head", "token_head"});
  out.granularity = static_cast<Granularity>(granularity);
  if (out.strict && (out.e5m2 || out.granularity != Granularity::kTensor)) {
    sdk::fail(KVP_INVALID_ARGUMENT, "option '", out.e5m2 ? "fp8_format" : "scale_granularity",
              "': hf_compat = \"strict\" is e4m3 with one scale for the tensor; remove the option, or hf_compat");
  }
  return out;
}

class Fp8 {
 public:
  // Types times formats times granularities; strict ones behind.
  static uint32_t spec_count() noexcept { return 3 * 7; }
  static void spec_range(uint32_t i, kvp_qspec& low, kvp_qspec& high) {
    constexpr kvp_dtype types[] = {sdk::kFloat32, sdk::kFloat16, sdk::kBFloat16};
    const uint32_t kind = i / 3;
    const Settings settings = {kind < 6 && kind % 2 == 1, kind == 6,
                               kind == 6 ? Granularity::kTensor : static_cast<Granularity>(kind / 2)};
    describe_as(settings, types[i % 3], low);
    high = low;
  }

  static std::string refusal(int32_t device_type) {
    return sdk::affine_refusal("fp8", device_type, cuda_kernels(sdk::kFloat32));
  }

  explicit Fp8(const kvp_qcreate& create)
      : settings_(create.spec != nullptr ? from_spec(*create.spec) : from_options(create)),
        dtype_(create.dtype),
        head_dim_(create.head_dim),
        device_type_(create.device_type) {
    if (!sdk::is_plain_float(dtype_)) {
      sdk::fail(KVP_UNSUPPORTED, "values of ", sdk::name_of(dtype_), "; float32, float16 and bfloat16 are quantized");
    }
    if (head_dim_ < 1) sdk::fail(KVP_INVALID_ARGUMENT, "head_dim ", head_dim_);
    if (settings_.granularity == Granularity::kTokenHead) {
      blocks_.emplace(create.role, head_dim_, settings_.e5m2, dtype_, kernels_, create.device_type);
    } else if (create.device_type != KVP_DEVICE_CPU) {
      sdk::fail(KVP_UNSUPPORTED,
                "scales that tokens share are packed on the CPU; scale_granularity = \"token_head\" is ",
                "on devices too");
    }
  }

  void describe(kvp_qspec& out) const { describe_as(settings_, dtype_, out); }

  void plan(int64_t batch, int64_t kv_heads, int64_t tokens, int64_t head_dim, kvp_qplan& out) const {
    if (head_dim != head_dim_) {
      sdk::fail(KVP_INVALID_ARGUMENT, "plan for head_dim ", head_dim, "; created for ", head_dim_);
    }
    if (blocks_) return blocks_->plan(batch, kv_heads, tokens, out);
    out.token_block = settings_.strict ? 0 : 1;
    out.n_parts = 2;
    out.parts[0] = sdk::planned_part(KVP_PART_DATA, {KVP_DTYPE_UINT, 8, 1}, {batch, kv_heads, tokens, head_dim});
    double scales = 1;
    if (settings_.granularity == Granularity::kTensor) {
      out.parts[1] = sdk::planned_part(KVP_PART_SCALE, sdk::kFloat32, {1, 1, 1, 1}, KVP_QPART_SHARED);
    } else {
      out.parts[1] = sdk::planned_part(KVP_PART_SCALE, sdk::kFloat32, {batch, kv_heads, 1, 1}, KVP_QPART_SHARED);
      scales = static_cast<double>(batch * kv_heads);
    }
    const auto elements = static_cast<double>(batch * kv_heads * tokens * head_dim);
    if (elements > 0) out.bits_per_element = 8 + 32 * scales / elements;
    out.workspace_bytes = static_cast<uint64_t>(batch * kv_heads * tokens) * sizeof(float);  // largest of each token
  }

  void quantize(const kvp_call& call, const kvp_tensor& in, uint32_t flags, const kvp_qpart* parts, uint32_t n_parts,
                void* workspace) const {
    sdk::check_tensor("the tensor to quantize", &in, dtype_, {-1, -1, -1, head_dim_}, device_type_);
    if (blocks_) return blocks_->quantize(call, in, parts, n_parts);
    const int64_t heads = in.shape[1], tokens = in.shape[2], n = in.shape[0] * heads * tokens;
    kvp_qplan plan{};
    this->plan(in.shape[0], heads, tokens, head_dim_, plan);
    sdk::check_parts(plan, parts, n_parts);
    if (n == 0) return;
    const kvp_tensor &data = parts[0].t, &scale = parts[1].t;
    const auto each = [&](const auto& body) {
      sdk::parallel_for(sdk::host_parallel(), n, 32, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) body(i, i / (heads * tokens), i / tokens % heads, i % tokens);
      });
    };
    if ((flags & KVP_Q_KEEP_SCALE) == 0) {
      if (workspace == nullptr) sdk::fail(KVP_INVALID_ARGUMENT, "quantize without a workspace");
      auto* most = static_cast<float*>(workspace);
      each([&](int64_t i, int64_t b, int64_t h, int64_t t) {
        most[i] = kernels_.largest(sdk::at(in, b, h, t), dtype_, head_dim_, settings_.strict);
      });
      const int64_t share = settings_.granularity == Granularity::kHead ? tokens : n;
      for (int64_t i = 0; i < n; i += share) {
        float largest = 0;
        for (int64_t k = i; k < i + share; ++k) {
          if (most[k] > largest || std::isnan(most[k])) largest = most[k];
          if (std::isnan(largest)) break;
        }
        *scale_at(scale, i / tokens / heads, i / tokens % heads) = scale_of(largest, settings_.e5m2);
      }
    }
    each([&](int64_t, int64_t b, int64_t h, int64_t t) {
      kernels_.encode(sdk::at(in, b, h, t), dtype_, head_dim_, *scale_at(scale, b, h), settings_.e5m2,
                      !settings_.strict, reinterpret_cast<uint8_t*>(sdk::at(data, b, h, t)));
    });
  }

  void dequantize(const kvp_call& call, const kvp_qpart* parts, uint32_t n_parts, kvp_tensor& out) const {
    const kvp_dtype out_dtype = sdk::dtype_of(out);
    if (!sdk::is_plain_float(out_dtype)) sdk::fail(KVP_INVALID_ARGUMENT, "dequantize into ", sdk::name_of(out_dtype));
    sdk::check_tensor("the tensor to dequantize into", &out, out_dtype, {-1, -1, -1, head_dim_}, device_type_);
    if (blocks_) return blocks_->dequantize(call, parts, n_parts, out);
    const int64_t heads = out.shape[1], tokens = out.shape[2];
    kvp_qplan plan{};
    this->plan(out.shape[0], heads, tokens, head_dim_, plan);
    sdk::check_parts(plan, parts, n_parts);
    sdk::parallel_for(sdk::host_parallel(), out.shape[0] * heads * tokens, 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t b = i / (heads * tokens), h = i / tokens % heads, t = i % tokens;
        kernels_.decode(reinterpret_cast<const uint8_t*>(sdk::at(parts[0].t, b, h, t)), head_dim_,
                        *scale_at(parts[1].t, b, h), settings_.e5m2, dtype_, sdk::at(out, b, h, t), out_dtype);
      }
    });
  }

  // In scales, for values within the range that the scale was made for: half of the widest gap between codes, and what
  // the type itself rounds off.
  double error_bound() const {
    const double u = dtype_.bits == 32 ? 0x1p-22 : dtype_.code == KVP_DTYPE_BFLOAT ? 0x1p-8 : 0x1p-11;
    return settings_.e5m2 ? 4096 + 57344 * u : 16 + 448 * u;
  }

  uint64_t attend_probe(const Fp8& values, const kvp_qattend_desc& desc) const {
    return blocks().attend_probe(values.blocks(), desc);
  }
  void attend(const Fp8& values, const kvp_call& call, const kvp_qattend_args& args, kvp_tensor& out,
              kvp_tensor& lse) const {
    blocks().attend(values.blocks(), call, args, out, lse);
  }
  static const void* extension(std::string_view id) noexcept {
    return id == KVP_EXT_QUANT_ATTEND ? sdk::QuantizerPlugin<Fp8>::attend_extension() : nullptr;
  }

 private:
  static void describe_as(const Settings& settings, kvp_dtype dtype, kvp_qspec& out) {
    out.format = settings.e5m2 ? KVP_FORMAT_FP8_E5M2 : KVP_FORMAT_FP8_E4M3;
    out.storage_bits = 8;
    out.group_dim = settings.granularity == Granularity::kTensor ? KVP_GROUP_WHOLE
                    : settings.granularity == Granularity::kHead ? KVP_GROUP_TOKENS
                                                                 : KVP_GROUP_HEAD_DIM;
    out.scale_dtype = sdk::kFloat32;
    out.out_dtype = dtype;
    out.flags = settings.strict ? KVP_Q_STRICT : 0;
  }

  const Blocks& blocks() const {
    if (!blocks_) {
      sdk::fail(KVP_UNSUPPORTED,
                "scales that tokens share are not attended to packed; scale_granularity = "
                "\"token_head\" is");
    }
    return *blocks_;
  }
  float* scale_at(const kvp_tensor& scale, int64_t b, int64_t h) const {
    if (settings_.granularity == Granularity::kTensor) return static_cast<float*>(scale.data);
    return reinterpret_cast<float*>(sdk::at(scale, b, h, 0));
  }

  Settings settings_;
  kvp_dtype dtype_;
  int32_t head_dim_;
  int32_t device_type_;
  const Kernels& kernels_ = kernels();
  std::optional<Blocks> blocks_;  // a scale per token and head
};

}  // namespace
}  // namespace kvplug::fp8

// The schema is the text of fp8.options.json.
KVPLUG_PLUGIN("fp8", "0.1.0", "kvplug",
              {{sizeof(kvp_descriptor), "fp8", KVP_IFACE_QUANTIZER,
                kvplug::sdk::QuantizerPlugin<kvplug::fp8::Fp8>::iface(),
                "8-bit floats, e4m3 or e5m2, a scale per token and head", R"json({
  "type": "object",
  "properties": {
    "fp8_format": {
      "type": "string",
      "default": "e4m3",
      "enum": ["e4m3", "e5m2"],
      "description": "e4m3: 3 bits of mantissa, up to 448; e5m2: 2 bits, up to 57344"
    },
    "scale_granularity": {
      "type": "string",
      "enum": ["tensor", "head", "token_head"],
      "description": "what shares a scale: token_head (default), one token of one head; head or tensor: set by the first tokens and kept (strict: tensor)"
    },
    "hf_compat": {
      "type": "string",
      "default": "fixed",
      "enum": ["fixed", "strict"],
      "description": "strict: the reference's arithmetic; one scale set by the first tokens, values beyond it become NaN"
    }
  },
  "additionalProperties": false
}
)json"}})
