// SPDX-License-Identifier: Apache-2.0
// The seam between the model and the libraries that multiply matrices: y = x * W^T + b.
//
// A LinearKind says how all linears of one shape are kept in memory and computed: oneDNN with weights in the layout its
// kernels like best, or LibTorch's matmul over plain rows. It is chosen once, by rule and not by the clock, so that two
// runs on one machine give the same bits. A Product is the kind bound to a number of rows.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "model/exec/buffer.h"
#include "model/exec/type.h"

namespace kvplug::model {

struct LinearShape {
  int64_t in = 0, out = 0;
  bool bias = false;
  Type type = Type::kFloat32;
  bool operator==(const LinearShape&) const = default;
};

// Memory that products may write during run(); one for all products of a session.
class Scratchpad {
 public:
  void need(size_t bytes) {
    if (bytes > buffer_.size()) buffer_ = Buffer(bytes);
  }
  void* data() const { return buffer_.data(); }
  size_t size() const { return buffer_.size(); }

 private:
  Buffer buffer_;
};

// For one thread at a time.
class Product {
 public:
  virtual ~Product() = default;
  // y [rows, out] = x [rows, in] * weight^T + bias [out]; no allocation of ours. Addresses may change between calls.
  virtual void run(const void* x, const void* weight, const void* bias, void* y) = 0;
};

// Immutable and thread-safe.
class LinearKind {
 public:
  virtual ~LinearKind() = default;
  const LinearShape& shape() const { return shape_; }
  virtual const char* backend() const = 0;
  // What computes a product of so many rows, "brg_matmul:avx512_core".
  virtual std::string implementation(int64_t rows) const = 0;
  // How the weight is kept: "packed" in blocks or "plain" rows.
  virtual const char* layout() const = 0;
  virtual size_t packed_bytes() const = 0;
  // Rows of the [out, in] matrix that pack() takes at once, but for the last call.
  virtual int64_t pack_rows() const = 0;
  // Puts rows [first, first + rows) of the matrix, given plain, into `packed`; first is a multiple of pack_rows().
  virtual void pack(const void* plain, int64_t first, int64_t rows, void* packed) const = 0;
  virtual std::unique_ptr<Product> product(int64_t rows, Scratchpad& scratchpad) const = 0;

 protected:
  explicit LinearKind(const LinearShape& shape) : shape_(shape) {}

 private:
  LinearShape shape_;
};

struct LinearOptions {
  // The layout serves products of this many rows first: the block of a deterministic run. 0 = decode and prefill.
  int64_t fixed_rows = 0;
};

// oneDNN; NULL where it has only reference kernels for the shape (400 times slower and more).
std::unique_ptr<LinearKind> make_onednn_linear(const LinearShape& shape, const LinearOptions& options);
// 16-bit weights on a CPU without 16-bit products: widened on the way, computed in float32. NULL for float32.
std::unique_ptr<LinearKind> make_widened_linear(const LinearShape& shape);
std::unique_ptr<LinearKind> make_torch_linear(const LinearShape& shape);
// oneDNN where it can, else widened, else LibTorch.
std::unique_ptr<LinearKind> make_linear(const LinearShape& shape, const LinearOptions& options);

std::string onednn_version();

}  // namespace kvplug::model
