// SPDX-License-Identifier: Apache-2.0
// Linears with 16-bit weights for CPUs that have no 16-bit products, where oneDNN and LibTorch fall back to loops ten
// times slower than float32. Weights stay 16-bit rows. A few rows: each weight row is widened in cache and multiplied,
// so a decode step is bound by reading the weights. Many rows: panels of weight rows are widened into scratch and go
// through oneDNN's float32 matmul. Sums are float32, rounded to the type once.
#include <algorithm>
#include <cstring>
#include <oneapi/dnnl/dnnl.hpp>

#include "model/exec/kernels.h"
#include "model/exec/linear.h"
#include "model/exec/parallel.h"

namespace kvplug::model {
namespace {

using dnnl::matmul;
using dnnl::memory;

constexpr int64_t kPanelRows = 512;  // weight rows widened at a time: a few MB
constexpr int64_t kGrain = 16;       // weight rows of one thread, at least

const dnnl::engine& cpu() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

memory::desc floats(int64_t rows, int64_t columns, memory::format_tag tag) {
  return {{rows, columns}, memory::data_type::f32, tag};
}

// The scratchpad is cut into x and y as float32 and, for many rows, a panel.
class WidenedProduct : public Product {
 public:
  WidenedProduct(const LinearShape& shape, int64_t rows, int64_t extra, Scratchpad& scratchpad)
      : shape_(shape), rows_(rows), kernels_(kernels(shape.type)), scratchpad_(scratchpad) {
    scratchpad.need(sizeof(float) * static_cast<size_t>(rows * (shape.in + shape.out) + extra));
  }

 protected:
  float* x() const { return static_cast<float*>(scratchpad_.data()); }
  float* y() const { return x() + rows_ * shape_.in; }
  float* panel() const { return y() + rows_ * shape_.out; }

  void widen_input(const void* from) const { kernels_.to_float(from, x(), rows_ * shape_.in); }
  void narrow_output(const void* bias, void* to) const {
    parallel_for(rows_, 1, [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) {
        float* row = y() + r * shape_.out;
        if (bias != nullptr) add_bias(bias, row);
        kernels_.from_float(row, offset(to, r * shape_.out, shape_.type), shape_.out);
      }
    });
  }

  const LinearShape shape_;
  const int64_t rows_;
  const Kernels& kernels_;

 private:
  void add_bias(const void* bias, float* row) const {
    constexpr int64_t kPiece = 256;
    float wide[kPiece];
    for (int64_t i = 0; i < shape_.out; i += kPiece) {
      const int64_t n = std::min(kPiece, shape_.out - i);
      kernels_.to_float(static_cast<const char*>(bias) + static_cast<size_t>(i) * size_of(shape_.type), wide, n);
      for (int64_t j = 0; j < n; ++j) row[i + j] += wide[j];
    }
  }

  Scratchpad& scratchpad_;
};

class FewRows final : public WidenedProduct {
 public:
  FewRows(const LinearShape& shape, int64_t rows, Scratchpad& scratchpad)
      : WidenedProduct(shape, rows, 0, scratchpad) {}

  void run(const void* from, const void* weight, const void* bias, void* to) override {
    widen_input(from);
    parallel_for(shape_.out, kGrain, [&](int64_t first, int64_t last) {
      const void* w = static_cast<const char*>(weight) + static_cast<size_t>(first * shape_.in) * size_of(shape_.type);
      kernels_.dots(x(), rows_, w, last - first, shape_.in, y() + first, shape_.out);
    });
    narrow_output(bias, to);
  }
};

class ManyRows final : public WidenedProduct {
 public:
  ManyRows(const LinearShape& shape, int64_t rows, Scratchpad& scratchpad)
      : WidenedProduct(shape, rows, std::min(kPanelRows, shape.out) * shape.in, scratchpad),
        stream_(cpu()),
        whole_(make(std::min(kPanelRows, shape.out))),
        rest_(make(shape.out % kPanelRows)) {}

  void run(const void* from, const void* weight, const void* bias, void* to) override {
    widen_input(from);
    for (int64_t first = 0; first < shape_.out; first += kPanelRows) {
      const int64_t n = std::min(kPanelRows, shape_.out - first);
      parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
        const int64_t at = (first + begin) * shape_.in;
        kernels_.to_float(static_cast<const char*>(weight) + static_cast<size_t>(at) * size_of(shape_.type),
                          panel() + begin * shape_.in, (end - begin) * shape_.in);
      });
      multiply(n == std::min(kPanelRows, shape_.out) ? whole_ : rest_, y() + first);
    }
    narrow_output(bias, to);
  }

 private:
  // The product of one panel; its columns of y lie shape_.out apart.
  struct Panel {
    matmul primitive;
    memory x, w, y;
  };

  Panel make(int64_t n) const {
    if (n == 0) return {};
    const auto in = floats(rows_, shape_.in, memory::format_tag::ab);
    const auto w = floats(shape_.in, n, memory::format_tag::ba);
    const memory::desc out({rows_, n}, memory::data_type::f32, memory::dims{shape_.out, 1});
    const matmul::primitive_desc pd(cpu(), in, w, out);
    return {matmul(pd), memory(in, cpu(), DNNL_MEMORY_NONE), memory(w, cpu(), DNNL_MEMORY_NONE),
            memory(out, cpu(), DNNL_MEMORY_NONE)};
  }

  void multiply(Panel& p, float* out) {
    p.x.set_data_handle(x());
    p.w.set_data_handle(panel());
    p.y.set_data_handle(out);
    p.primitive.execute(stream_, {{DNNL_ARG_SRC, p.x}, {DNNL_ARG_WEIGHTS, p.w}, {DNNL_ARG_DST, p.y}});
  }

  dnnl::stream stream_;
  Panel whole_, rest_;
};

class WidenedLinear final : public LinearKind {
 public:
  explicit WidenedLinear(const LinearShape& shape) : LinearKind(shape) {}

  const char* backend() const override { return "widened"; }
  const char* layout() const override { return "plain"; }
  std::string implementation(int64_t rows) const override {
    return rows <= kMaxDotRows ? std::string("dots:") + kernel_level() : "onednn float32 panels";
  }
  size_t packed_bytes() const override { return static_cast<size_t>(shape().in * shape().out) * size_of(shape().type); }
  int64_t pack_rows() const override { return 1024; }
  void pack(const void* plain, int64_t first, int64_t rows, void* packed) const override {
    std::memcpy(offset(packed, first * shape().in, shape().type), plain,
                static_cast<size_t>(rows * shape().in) * size_of(shape().type));
  }
  std::unique_ptr<Product> product(int64_t rows, Scratchpad& scratchpad) const override {
    if (rows <= kMaxDotRows) return std::make_unique<FewRows>(shape(), rows, scratchpad);
    return std::make_unique<ManyRows>(shape(), rows, scratchpad);
  }
};

}  // namespace

std::unique_ptr<LinearKind> make_widened_linear(const LinearShape& shape) {
  return shape.type == Type::kFloat32 ? nullptr : std::make_unique<WidenedLinear>(shape);
}

}  // namespace kvplug::model
