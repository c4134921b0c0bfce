// SPDX-License-Identifier: Apache-2.0
#include "blocks.h"

#include <kvplug/sdk/affine_quantizer.h>
#include <kvplug/sdk/host.h>
#include <kvplug/sdk/packed_attention.h>

namespace kvplug::fp8 {
namespace {

constexpr int64_t kMostDims = 1024;

}  // namespace

float scale_of(float largest, bool e5m2) noexcept {
  const float scale = largest / (e5m2 ? 57344.0f : 448.0f);
  return scale < 0x1p-126f ? 0x1p-126f : scale;
}

Blocks::Blocks(int32_t role, int64_t head_dim, bool e5m2, kvp_dtype dtype, const Kernels& kernels, int32_t device_type)
    : dtype_(dtype),
      kernels_(kernels),
      device_type_(device_type),
      device_(device_type == KVP_DEVICE_CPU ? nullptr : cuda_kernels(dtype)) {
  if (head_dim > kMostDims) sdk::fail(KVP_UNSUPPORTED, "head_dim ", head_dim, "; 1 to ", kMostDims, " are quantized");
  form_.role = role;
  form_.bits = 8;
  form_.group_size = form_.head_dim = head_dim;
  form_.scale_dtype = sdk::kFloat32;
  form_.format = e5m2 ? KVP_FORMAT_FP8_E5M2 : KVP_FORMAT_FP8_E4M3;
}

void Blocks::plan(int64_t batch, int64_t kv_heads, int64_t tokens, kvp_qplan& out) const {
  const int64_t block = form_.token_block(), blocks = tokens / block;
  if (tokens % block != 0) {
    sdk::fail(KVP_INVALID_ARGUMENT, "plan for ", tokens, " tokens; expected whole blocks of ", block);
  }
  out.token_block = block;
  out.bits_per_element =
      8.0 * static_cast<double>(form_.data_bytes() + 4 * form_.groups()) / static_cast<double>(block * form_.head_dim);
  out.n_parts = 2;
  out.parts[0] =
      sdk::planned_part(KVP_PART_DATA, {KVP_DTYPE_UINT, 8, 1}, {batch, kv_heads, blocks, form_.data_bytes()});
  out.parts[1] = sdk::planned_part(KVP_PART_SCALE, sdk::kFloat32, {batch, kv_heads, blocks, form_.groups()});
  for (kvp_qpart& part : out.parts) part.t.device_type = device_type_;
}

void Blocks::quantize(const kvp_call& call, const kvp_tensor& in, const kvp_qpart* parts, uint32_t n_parts) const {
  const int64_t batch = in.shape[0], heads = in.shape[1], block = form_.token_block(), blocks = in.shape[2] / block;
  kvp_qplan plan{};
  this->plan(batch, heads, in.shape[2], plan);
  sdk::check_parts(plan, parts, n_parts);
  if (batch * heads * blocks == 0) return;
  if (device_ != nullptr) {
    return sdk::check_device(call, device_->quantize(call.device_id, call.stream, form_, in, parts, nullptr));
  }
  sdk::parallel_for(sdk::host_parallel(), batch * heads * blocks, 4, [&](int64_t begin, int64_t end) {
    uint8_t codes[sdk::kTileTokens * kMostDims];
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / (heads * blocks), h = i / blocks % heads, k = i % blocks;
      auto* const scales = reinterpret_cast<float*>(sdk::at(parts[1].t, b, h, k));
      for (int64_t t = 0; t < block; ++t) {
        const std::byte* row = sdk::at(in, b, h, k * block + t);
        scales[t] = scale_of(kernels_.largest(row, dtype_, form_.head_dim, false), e5m2());
        kernels_.encode(row, dtype_, form_.head_dim, scales[t], e5m2(), true, codes + t * form_.head_dim);
      }
      sdk::pack_block(form_, codes, sdk::at(parts[0].t, b, h, k));
    }
  });
}

void Blocks::dequantize(const kvp_call& call, const kvp_qpart* parts, uint32_t n_parts, kvp_tensor& out) const {
  const int64_t batch = out.shape[0], heads = out.shape[1], block = form_.token_block(), blocks = out.shape[2] / block;
  kvp_qplan plan{};
  this->plan(batch, heads, out.shape[2], plan);
  sdk::check_parts(plan, parts, n_parts);
  if (batch * heads * blocks == 0) return;
  if (device_ != nullptr) {
    return sdk::check_device(call, device_->dequantize(call.device_id, call.stream, form_, parts, out));
  }
  sdk::parallel_for(sdk::host_parallel(), batch * heads * blocks, 4, [&](int64_t begin, int64_t end) {
    uint8_t codes[sdk::kTileTokens * kMostDims];
    for (int64_t i = begin; i < end; ++i) {
      const int64_t b = i / (heads * blocks), h = i / blocks % heads, k = i % blocks;
      const auto* const scales = reinterpret_cast<const float*>(sdk::at(parts[1].t, b, h, k));
      sdk::unpack_tile(form_, sdk::at(parts[0].t, b, h, k), codes);
      for (int64_t t = 0; t < block; ++t) {
        kernels_.decode(codes + t * form_.head_dim, form_.head_dim, scales[t], e5m2(), dtype_,
                        sdk::at(out, b, h, k * block + t), sdk::dtype_of(out));
      }
    }
  });
}

uint64_t Blocks::attend_probe(const Blocks& values, const kvp_qattend_desc& desc) const {
  return sdk::packed_probe(form_, device_type_, values.form_, values.device_type_, desc);
}

void Blocks::attend(const Blocks& values, const kvp_call& call, const kvp_qattend_args& args, kvp_tensor& out,
                    kvp_tensor& lse) const {
  sdk::packed_call(form_, values.form_, device_type_, call, args, out, lse);
}

}  // namespace kvplug::fp8
