// SPDX-License-Identifier: Apache-2.0
// Linears on LibTorch: weights as plain rows, at::mm. Serves what oneDNN has no fast kernel for.
#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <c10/core/InferenceMode.h>

#include <cstring>

#include "model/exec/linear.h"

namespace kvplug::model {
namespace {

at::ScalarType scalar_type(Type type) {
  if (type == Type::kFloat32) return at::kFloat;
  return type == Type::kBFloat16 ? at::kBFloat16 : at::kHalf;
}

at::Tensor wrap(const void* data, int64_t rows, int64_t columns, Type type) {
  return at::from_blob(const_cast<void*>(data), {rows, columns}, at::TensorOptions(scalar_type(type)));
}

class TorchProduct final : public Product {
 public:
  TorchProduct(const LinearShape& shape, int64_t rows) : shape_(shape), rows_(rows) {}

  void run(const void* x, const void* weight, const void* bias, void* y) override {
    const c10::InferenceMode guard;
    const auto in = wrap(x, rows_, shape_.in, shape_.type);
    const auto matrix = wrap(weight, shape_.out, shape_.in, shape_.type).t();
    auto out = wrap(y, rows_, shape_.out, shape_.type);
    if (shape_.bias) {
      at::addmm_out(out, wrap(bias, 1, shape_.out, shape_.type), in, matrix);
    } else {
      at::mm_out(out, in, matrix);
    }
  }

 private:
  const LinearShape shape_;
  const int64_t rows_;
};

class TorchLinear final : public LinearKind {
 public:
  using LinearKind::LinearKind;
  explicit TorchLinear(const LinearShape& shape) : LinearKind(shape) {}

  const char* backend() const override { return "libtorch"; }
  const char* layout() const override { return "plain"; }
  std::string implementation(int64_t) const override { return shape().bias ? "at::addmm" : "at::mm"; }
  size_t packed_bytes() const override { return static_cast<size_t>(shape().in * shape().out) * size_of(shape().type); }
  int64_t pack_rows() const override { return 1024; }
  void pack(const void* plain, int64_t first, int64_t rows, void* packed) const override {
    std::memcpy(offset(packed, first * shape().in, shape().type), plain,
                static_cast<size_t>(rows * shape().in) * size_of(shape().type));
  }
  std::unique_ptr<Product> product(int64_t rows, Scratchpad&) const override {
    return std::make_unique<TorchProduct>(shape(), rows);
  }
};

}  // namespace

std::unique_ptr<LinearKind> make_torch_linear(const LinearShape& shape) { return std::make_unique<TorchLinear>(shape); }

}  // namespace kvplug::model
