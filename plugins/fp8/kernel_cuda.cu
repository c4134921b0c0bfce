// SPDX-License-Identifier: Apache-2.0
// Tokens with scales of their own on a CUDA device: one block of threads a tile. Packing: a thread a token finds its
// scale, then all of them encode words of four codes.
#include "cuda/affine.h"

#include "codec-inl.h"
#include "kernels.h"

namespace kvplug::fp8 {
namespace {

using namespace sdk::cuda;

template <class F, class T>
KVP_KERNEL void pack_kernel(BlockParams p) {
  using Element = typename ElementOf<T>::type;
  const BlockAt at = block_at(p, blockIdx.x);
  const int64_t first[3] = {p.plain_stride[0], p.plain_stride[1], p.plain_stride[2] * kTile};
  const auto* const from = static_cast<const typename Element::Bits*>(p.plain) + at.in(first);
  const int dim = static_cast<int>(p.dim), tid = static_cast<int>(threadIdx.x);
  float* const scales = sdk::cuda::shared_memory();
  if (tid < kTile) {
    float most = 0;
    for (int d = 0; d < dim; ++d) {
      const float size = fabsf(Element::load(from[tid * p.plain_stride[2] + d]));
      if (size <= 0x1.fffffep127f && size > most) most = size;
    }
    const float largest = F::kLargest, scale = sdk::div(most, largest);
    scales[tid] = scale < 0x1p-126f ? 0x1p-126f : scale;
    static_cast<float*>(p.scale)[at.in(p.scale_stride) + tid] = scales[tid];
  }
  __syncthreads();
  auto* const to = reinterpret_cast<uint32_t*>(p.data + at.in(p.data_stride));
  for (int w = tid; w < static_cast<int>(p.tile_bytes / 4); w += sdk::kPanelPitch) {
    const int row = w / kTile, lane = w % kTile;
    uint32_t word = 0;
    for (int m = 0; m < 4; ++m) {
      const int t = p.role == KVP_ROLE_KEY ? lane : row % 4 * 4 + m;
      const int d = p.role == KVP_ROLE_KEY ? 4 * row + m : row / 4 * kTile + lane;
      if (d >= dim) continue;
      word |= sdk::encode<F>(sdk::div(Element::load(from[t * p.plain_stride[2] + d]), scales[t]), true) << 8 * m;
    }
    to[w] = word;
  }
}

template <class F, class T>
KVP_KERNEL void unpack_kernel(BlockParams p) {
  const BlockAt at = block_at(p, blockIdx.x);
  const int64_t first[3] = {p.plain_stride[0], p.plain_stride[1], p.plain_stride[2] * kTile};
  const int64_t to = at.in(first);
  const uint8_t* const tile = p.data + at.in(p.data_stride);
  const float* const scale = static_cast<const float*>(p.scale) + at.in(p.scale_stride);
  const int dim = static_cast<int>(p.dim);
  for (int i = static_cast<int>(threadIdx.x); i < kTile * dim; i += sdk::kPanelPitch) {
    const int t = i / dim, d = i % dim;
    const bool key = p.role == KVP_ROLE_KEY;
    const uint32_t quad = quad_of(8, 0, tile, key ? d / 4 : d / kTile * 4 + t / 4, key ? t : d % kTile);
    const uint32_t code = quad >> 8 * (key ? d % 4 : t % 4) & 255u;
    store_plain(p.plain_dtype, const_cast<void*>(p.plain), to + t * p.plain_stride[2] + d,
                sdk::round_to(sdk::mul(sdk::decode<F>(code), scale[t]), T()));
  }
}

template <class T>
const sdk::AffineDevice kKernels = {
    [](int device, void* stream, const sdk::PackedForm& form, const kvp_tensor& in, const kvp_qpart* parts, void*) {
      const Current current(device);
      const BlockParams p = block_params(form, in, parts, nullptr);
      const dim3 grid(static_cast<unsigned>(in.shape[0] * in.shape[1] * p.blocks));
      return launch(form.format == KVP_FORMAT_FP8_E5M2 ? pack_kernel<sdk::E5m2, T> : pack_kernel<sdk::E4m3, T>, grid,
                    sdk::kPanelPitch, kTile * sizeof(float), stream, p);
    },
    [](int device, void* stream, const sdk::PackedForm& form, const kvp_qpart* parts, const kvp_tensor& out) {
      const Current current(device);
      const BlockParams p = block_params(form, out, parts, nullptr);
      const dim3 grid(static_cast<unsigned>(out.shape[0] * out.shape[1] * p.blocks));
      return launch(form.format == KVP_FORMAT_FP8_E5M2 ? unpack_kernel<sdk::E5m2, T> : unpack_kernel<sdk::E4m3, T>,
                    grid, sdk::kPanelPitch, 0, stream, p);
    },
    [](const sdk::PackedForm&, int64_t) { return int64_t{0}; }};

}  // namespace

const sdk::AffineDevice* cuda_kernels(kvp_dtype dtype) noexcept {
  if (dtype.bits == 32) return &kKernels<float>;
  return dtype.code == KVP_DTYPE_BFLOAT ? &kKernels<sdk::Bf16> : &kKernels<sdk::F16>;
}

}  // namespace kvplug::fp8
