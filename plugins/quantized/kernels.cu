// SPDX-License-Identifier: Apache-2.0
// A warp a vector; the arithmetic of vectors.h.
#include "kernels.h"

#include <cmath>

#include "cuda/packed_codes.h"

namespace kvplug::quantized {
namespace {

using namespace sdk::cuda;

constexpr int kWarp = 32, kFill = 256;

struct Vectors {
  void* data;
  kvp_dtype dtype;
  int64_t stride[3], heads, tokens;  // batch, head, token
};

Vectors vectors_of(const kvp_tensor& t) {
  return {t.data,
          {t.dtype_code, t.dtype_bits, t.dtype_lanes},
          {t.strides[0], t.strides[1], t.strides[2]},
          t.shape[1],
          t.shape[2]};
}
int64_t count(const kvp_tensor& t) { return t.shape[0] * t.shape[1] * t.shape[2]; }
dim3 grid(int64_t x, int64_t y = 1) { return dim3(static_cast<unsigned>(x), static_cast<unsigned>(y)); }

KVP_DEVICE_CODE int64_t offset(const Vectors& v, int64_t i) {
  return i / (v.heads * v.tokens) * v.stride[0] + i / v.tokens % v.heads * v.stride[1] + i % v.tokens * v.stride[2];
}

KVP_KERNEL void fill_kernel(uint32_t* to, int64_t words, uint32_t pattern) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kFill + threadIdx.x;
  if (i < words) to[i] = pattern;
}

// grid: (positions, heads).
template <class Bits>
KVP_KERNEL void show_kernel(const sdk::KvBlock* blocks, int64_t first_block, int64_t from, int keys, Vectors out,
                            int dim) {
  const int64_t position = from + blockIdx.x, head = blockIdx.y, place = position % sdk::kBlockTokens;
  const sdk::KvBlock block = blocks[position / sdk::kBlockTokens - first_block];
  const Bits* const in = static_cast<const Bits*>(keys ? block.k : block.v) +
                         head * (keys ? block.k_head_stride : block.v_head_stride) +
                         place * (keys ? block.k_token_stride : block.v_token_stride);
  Bits* const to = static_cast<Bits*>(out.data) + head * out.stride[1] + blockIdx.x * out.stride[2];
  for (int d = static_cast<int>(threadIdx.x); d < dim; d += kWarp) to[d] = in[d];
}

// block: the part of a vector that is turned by itself, 0: nothing is; scale: 1 / sqrt(block).
KVP_KERNEL void convert_kernel(Vectors from, Vectors to, int dim, int block, float scale) {
  const int64_t in = offset(from, blockIdx.x), out = offset(to, blockIdx.x);
  const int first = static_cast<int>(threadIdx.x);
  if (block == 0) {
    for (int d = first; d < dim; d += kWarp) {
      store_plain(to.dtype, to.data, out + d, load_plain(from.dtype, from.data, in + d));
    }
    return;
  }
  float* const x = shared_memory();
  for (int d = first; d < dim; d += kWarp) x[d] = load_plain(from.dtype, from.data, in + d);
  __syncthreads();
  for (int half = 1; half < block; half *= 2) {
    for (int i = first; i < dim / 2; i += kWarp) {
      float* const a = x + i / half * 2 * half + i % half;
      const float sum = a[0] + a[half], difference = a[0] - a[half];
      a[0] = sum;
      a[half] = difference;
    }
    __syncthreads();
  }
  for (int d = first; d < dim; d += kWarp) store_plain(to.dtype, to.data, out + d, x[d] * scale);
}

KVP_KERNEL void merge_kernel(float* sum, float* sum_lse, const float* part, const float* part_lse, int64_t dim) {
  const int64_t i = blockIdx.x;
  const float a = sum_lse[i], b = part_lse[i];
  __syncthreads();  // everybody has read what one will write
  if (b == -INFINITY) return;
  const float most = a != a || a > b ? a : b;
  const float wa = a == -INFINITY ? 0.0f : expf(a - most), wb = expf(b - most), all = wa + wb;
  for (int64_t d = threadIdx.x; d < dim; d += kWarp) {
    float& x = sum[i * dim + d];
    const float y = part[i * dim + d];
    x = a == -INFINITY ? y : wa / all * x + wb / all * y;
  }
  if (threadIdx.x == 0) sum_lse[i] = a == -INFINITY ? b : most + logf(all);
}

KVP_KERNEL void finish_kernel(const sdk::DeviceRow* rows, const float* sum, const float* sum_lse, Vectors out,
                              Vectors lse, int64_t dim) {
  const int64_t i = blockIdx.x, query = i % out.tokens;
  const sdk::DeviceRow& row = rows[i / (out.heads * out.tokens)];
  const bool live = query < row.q_count && row.q_position + query >= 0;
  const int64_t at = offset(out, i);
  for (int64_t d = threadIdx.x; d < dim; d += kWarp) {
    store_plain(out.dtype, out.data, at + d, live ? sum[i * dim + d] : 0.0f);
  }
  if (lse.data != nullptr && threadIdx.x == 0) {
    static_cast<float*>(lse.data)[offset(lse, i)] = live ? sum_lse[i] : -INFINITY;
  }
}

int fill(int device, void* stream, void* to, size_t bytes, uint32_t pattern) {
  if (bytes == 0) return 0;
  const Current current(device);
  if (pattern == 0) return clear_bytes(stream, to, bytes);
  const auto words = static_cast<int64_t>(bytes / 4);
  return launch(fill_kernel, grid((words + kFill - 1) / kFill), kFill, 0, stream, static_cast<uint32_t*>(to), words,
                pattern);
}

int show(int device, void* stream, const sdk::KvBlock* blocks, int64_t first_block, int64_t from, int64_t to, bool keys,
         const kvp_tensor& out) {
  if (from >= to) return 0;
  const Current current(device);
  const auto run = [&](auto bits) {
    return launch(show_kernel<decltype(bits)>, grid(to - from, out.shape[1]), kWarp, 0, stream, blocks, first_block,
                  from, keys ? 1 : 0, vectors_of(out), static_cast<int>(out.shape[3]));
  };
  return out.dtype_bits == 32 ? run(uint32_t{}) : run(uint16_t{});
}

int convert(int device, void* stream, const kvp_tensor& from, const kvp_tensor& to, bool turn) {
  if (count(from) == 0) return 0;
  const Current current(device);
  const int dim = static_cast<int>(from.shape[3]), block = turn ? dim & -dim : 0;
  return launch(convert_kernel, grid(count(from)), kWarp, static_cast<size_t>(turn ? dim : 0) * sizeof(float), stream,
                vectors_of(from), vectors_of(to), dim, block,
                turn ? 1.0f / std::sqrt(static_cast<float>(block)) : 1.0f);
}

int merge(int device, void* stream, float* sum, float* sum_lse, const float* part, const float* part_lse,
          int64_t vectors, int64_t dim) {
  if (vectors == 0) return 0;
  const Current current(device);
  return launch(merge_kernel, grid(vectors), kWarp, 0, stream, sum, sum_lse, part, part_lse, dim);
}

int finish(int device, void* stream, const sdk::DeviceRow* rows, const float* sum, const float* sum_lse,
           const kvp_tensor& out, const kvp_tensor* lse) {
  if (count(out) == 0) return 0;
  const Current current(device);
  return launch(finish_kernel, grid(count(out)), kWarp, 0, stream, rows, sum, sum_lse, vectors_of(out),
                lse == nullptr ? Vectors{} : vectors_of(*lse), out.shape[3]);
}

}  // namespace

const DeviceKernels& cuda_kernels() noexcept {
  static const DeviceKernels kernels = {fill, show, convert, merge, finish};
  return kernels;
}

}  // namespace kvplug::quantized
