// SPDX-License-Identifier: Apache-2.0
// Bodies of kernels.h, included once per instruction set with KVPLUG_LEVEL and KVPLUG_TABLE defined. Rows are worked on
// in tiles of floats that stay in the first-level cache; the loops are plain and left to the vectoriser. Everything
// lies in a namespace of its own and nothing inline from the standard library is used: code built for a newer CPU must
// never be merged with code that runs on an older one.
#include "model/exec/kernels.h"
#include "model/exec/kernels_curves-inl.h"
#include "model/exec/kernels_types-inl.h"

namespace kvplug::model::KVPLUG_LEVEL {
namespace {

struct Lanes {
  float sum[kLanes];
};

inline void add_squares(Lanes& lanes, const float* x, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lanes.sum[j] += x[i + j] * x[i + j];
  }
  for (; i < n; ++i) lanes.sum[i % kLanes] += x[i] * x[i];
}
inline void add_products(Lanes& lanes, const float* a, const float* b, int64_t n) {
  Lanes sums = lanes;  // in registers
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) sums.sum[j] += a[i + j] * b[i + j];
  }
  for (; i < n; ++i) sums.sum[i % kLanes] += a[i] * b[i];
  lanes = sums;
}
inline float total(const Lanes& lanes) {
  float tree[kLanes];
  memcpy(tree, lanes.sum, sizeof tree);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) tree[j] += tree[j + width];
  }
  return tree[0];
}
inline float inverse_rms(const Lanes& lanes, int64_t n, float eps) {
  return 1.0f / __builtin_sqrtf(total(lanes) / static_cast<float>(n) + eps);
}

// tile = weight * round(tile * inverse); kOnce: without that rounding.
template <class T, bool kOnce = false>
inline void scale_tile(float* tile, const float* weight, float inverse, int64_t n) {
  for (int64_t i = 0; i < n; ++i) tile[i] *= inverse;
  if (!kOnce) round_to(T{}, tile, n);
  for (int64_t i = 0; i < n; ++i) tile[i] *= weight[i];
}

template <class T, bool kOnce>
void normalise(const typename T::Stored* x, const Lanes& lanes, const float* weight, float eps, typename T::Stored* y,
               int64_t n) {
  const float inverse = inverse_rms(lanes, n, eps);
  float tile[kTile];
  for (int64_t i = 0; i < n; i += kTile) {
    const int64_t count = smaller(n - i, kTile);
    widen(T{}, x + i, tile, count);
    scale_tile<T, kOnce>(tile, weight + i, inverse, count);
    narrow(T{}, tile, y + i, count);
  }
}

template <class T, bool kOnce>
void rms_norm(const void* from, const float* weight, float eps, void* to, int64_t rows, int64_t n) {
  float tile[kTile];
  for (int64_t r = 0; r < rows; ++r) {
    const auto* x = static_cast<const typename T::Stored*>(from) + r * n;
    Lanes lanes{};
    for (int64_t i = 0; i < n; i += kTile) {
      const int64_t count = smaller(n - i, kTile);
      widen(T{}, x + i, tile, count);
      add_squares(lanes, tile, count);
    }
    normalise<T, kOnce>(x, lanes, weight, eps, static_cast<typename T::Stored*>(to) + r * n, n);
  }
}

template <class T, bool kOnce>
void add_rms_norm(void* into, const void* delta, const float* weight, float eps, void* to, int64_t rows, int64_t n) {
  float tile[kTile], more[kTile];
  for (int64_t r = 0; r < rows; ++r) {
    auto* x = static_cast<typename T::Stored*>(into) + r * n;
    const auto* d = static_cast<const typename T::Stored*>(delta) + r * n;
    Lanes lanes{};
    for (int64_t i = 0; i < n; i += kTile) {
      const int64_t count = smaller(n - i, kTile);
      widen(T{}, x + i, tile, count);
      widen(T{}, d + i, more, count);
      for (int64_t j = 0; j < count; ++j) tile[j] += more[j];
      round_to(T{}, tile, count);
      narrow(T{}, tile, x + i, count);
      add_squares(lanes, tile, count);
    }
    normalise<T, kOnce>(x, lanes, weight, eps, static_cast<typename T::Stored*>(to) + r * n, n);
  }
}

template <class T>
void rope(void* x, int64_t row_stride, int64_t rows, int64_t heads, int64_t head_dim, const float* cos,
          const float* sin, const float* weight, float eps) {
  const int64_t half = head_dim / 2;
  float head[kMaxHeadDim], a[kMaxHeadDim], b[kMaxHeadDim];
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t h = 0; h < heads; ++h) {
      auto* at = static_cast<typename T::Stored*>(x) + r * row_stride + h * head_dim;
      widen(T{}, at, head, head_dim);
      if (weight != nullptr) {
        Lanes lanes{};
        add_squares(lanes, head, head_dim);
        scale_tile<T>(head, weight, inverse_rms(lanes, head_dim, eps), head_dim);
        round_to(T{}, head, head_dim);
      }
      if (cos != nullptr) {
        const float *c = cos + r * half, *s = sin + r * half;
        for (int64_t i = 0; i < half; ++i) {
          a[i] = head[i] * c[i];
          b[i] = head[i + half] * s[i];
          a[i + half] = head[i + half] * c[i];
          b[i + half] = head[i] * s[i];
        }
        round_to(T{}, a, head_dim);
        round_to(T{}, b, head_dim);
        for (int64_t i = 0; i < half; ++i) {
          head[i] = a[i] - b[i];
          head[i + half] = a[i + half] + b[i + half];
        }
      }
      narrow(T{}, head, at, head_dim);
    }
  }
}

template <class T>
void rope_pairs(void* x, int64_t row_stride, int64_t rows, int64_t heads, int64_t head_dim, const float* cos,
                const float* sin, bool unit_norm, float eps) {
  const int64_t half = head_dim / 2;
  float head[kMaxHeadDim];
  for (int64_t r = 0; r < rows; ++r) {
    const float *c = cos + r * half, *s = sin + r * half;
    for (int64_t h = 0; h < heads; ++h) {
      auto* at = static_cast<typename T::Stored*>(x) + r * row_stride + h * head_dim;
      widen(T{}, at, head, head_dim);
      for (int64_t i = 0; i < half; ++i) {
        const float a = head[2 * i], b = head[2 * i + 1];
        head[2 * i] = a * c[i] - b * s[i];
        head[2 * i + 1] = a * s[i] + b * c[i];
      }
      if (unit_norm) {
        round_to(T{}, head, head_dim);
        Lanes lanes{};
        add_squares(lanes, head, head_dim);
        const float inverse = inverse_rms(lanes, head_dim, eps);
        for (int64_t i = 0; i < head_dim; ++i) head[i] *= inverse;
      }
      narrow(T{}, head, at, head_dim);
    }
  }
}

template <class T>
void scale(const void* from, float factor, void* to, int64_t n) {
  float tile[kTile];
  const auto* x = static_cast<const typename T::Stored*>(from);
  auto* y = static_cast<typename T::Stored*>(to);
  for (int64_t i = 0; i < n; i += kTile) {
    const int64_t count = smaller(n - i, kTile);
    widen(T{}, x + i, tile, count);
    for (int64_t j = 0; j < count; ++j) tile[j] *= factor;
    narrow(T{}, tile, y + i, count);
  }
}

template <class T>
void accumulate(float* sum, const void* from, int64_t n) {
  float tile[kTile];
  const auto* x = static_cast<const typename T::Stored*>(from);
  for (int64_t i = 0; i < n; i += kTile) {
    const int64_t count = smaller(n - i, kTile);
    widen(T{}, x + i, tile, count);
    for (int64_t j = 0; j < count; ++j) sum[i + j] += tile[j];
  }
}

template <class T>
void add_sum(void* into, const float* sum, int64_t n) {
  float tile[kTile], more[kTile];
  auto* x = static_cast<typename T::Stored*>(into);
  for (int64_t i = 0; i < n; i += kTile) {
    const int64_t count = smaller(n - i, kTile);
    widen(T{}, x + i, tile, count);
    memcpy(more, sum + i, static_cast<size_t>(count) * 4);
    round_to(T{}, more, count);
    for (int64_t j = 0; j < count; ++j) tile[j] += more[j];
    narrow(T{}, tile, x + i, count);
  }
}

// A weight row is widened once, tile by tile, for all rows of x.
template <class T>
void dots(const float* x, int64_t rows, const void* weight, int64_t outs, int64_t in, float* y, int64_t y_stride) {
  float tile[kTile];
  for (int64_t o = 0; o < outs; ++o) {
    const auto* w = static_cast<const typename T::Stored*>(weight) + o * in;
    Lanes lanes[kMaxDotRows] = {};
    for (int64_t i = 0; i < in; i += kTile) {
      const int64_t count = smaller(in - i, kTile);
      widen(T{}, w + i, tile, count);
      for (int64_t r = 0; r < rows; ++r) add_products(lanes[r], x + r * in + i, tile, count);
    }
    for (int64_t r = 0; r < rows; ++r) y[r * y_stride + o] = total(lanes[r]);
  }
}

template <class T>
void to_float(const void* x, float* y, int64_t n) {
  widen(T{}, static_cast<const typename T::Stored*>(x), y, n);
}
template <class T>
void from_float(const float* x, void* y, int64_t n) {
  narrow(T{}, x, static_cast<typename T::Stored*>(y), n);
}

template <class T>
constexpr Kernels table_of() {
  return {.rms_norm = rms_norm<T, false>,
          .add_rms_norm = add_rms_norm<T, false>,
          .rms_norm_once = rms_norm<T, true>,
          .add_rms_norm_once = add_rms_norm<T, true>,
          .rope = rope<T>,
          .rope_pairs = rope_pairs<T>,
          .silu_mul = gated_mul<T, Silu>,
          .gelu_mul = gated_mul<T, Gelu>,
          .scale = scale<T>,
          .softcap = softcap<T>,
          .accumulate = accumulate<T>,
          .add_sum = add_sum<T>,
          .dots = dots<T>,
          .to_float = to_float<T>,
          .from_float = from_float<T>};
}

}  // namespace
}  // namespace kvplug::model::KVPLUG_LEVEL

namespace kvplug::model {

const Kernels KVPLUG_TABLE[3] = {KVPLUG_LEVEL::table_of<KVPLUG_LEVEL::F32>(),
                                 KVPLUG_LEVEL::table_of<KVPLUG_LEVEL::BF16>(),
                                 KVPLUG_LEVEL::table_of<KVPLUG_LEVEL::F16>()};

}  // namespace kvplug::model
