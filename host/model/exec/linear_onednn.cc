// SPDX-License-Identifier: Apache-2.0
// Linears on oneDNN. One layout serves every number of rows, since weights are kept once. Measured with hidden sizes of
// 576 to 4096 on AVX-512: in float32 the layout made for a prefill block is as fast for a single row as any other and
// 1.5 times faster from two rows on; 16-bit types have a kernel for a single row over plain rows that is 1.3 times
// faster than over blocks, and lose 10 % of a long prefill by it. Decode decides.
#include <oneapi/dnnl/dnnl.hpp>
#include <string_view>
#include <vector>

#include "model/exec/linear.h"

namespace kvplug::model {
namespace {

using dnnl::matmul;
using dnnl::memory;

constexpr int64_t kPrefillRows = 128;
// A multiple of every block oneDNN cuts the output dimension into.
constexpr int64_t kPackRows = 1024;

const dnnl::engine& cpu() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

memory::data_type data_type(Type type) {
  if (type == Type::kFloat32) return memory::data_type::f32;
  return type == Type::kBFloat16 ? memory::data_type::bf16 : memory::data_type::f16;
}

memory::desc rows_of(int64_t rows, int64_t width, Type type) {
  return {{rows, width}, data_type(type), memory::format_tag::ab};
}

matmul::primitive_desc describe(const LinearShape& shape, int64_t rows, const memory::desc& weight, bool fixed) {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (fixed) attr.set_deterministic(true);
  const auto x = rows_of(rows, shape.in, shape.type), y = rows_of(rows, shape.out, shape.type);
  constexpr bool kAllowEmpty = true;
  if (!shape.bias) return {cpu(), x, weight, y, attr, kAllowEmpty};
  return {cpu(), x, weight, rows_of(1, shape.out, shape.type), y, attr, kAllowEmpty};
}

bool usable(const matmul::primitive_desc& pd) { return pd && !std::string_view(pd.impl_info_str()).starts_with("ref"); }

class OneDnnProduct final : public Product {
 public:
  OneDnnProduct(const matmul::primitive_desc& pd, bool bias, Scratchpad& scratchpad)
      : primitive_(pd),
        stream_(cpu()),
        scratchpad_(scratchpad),
        x_(pd.src_desc(), cpu(), DNNL_MEMORY_NONE),
        weight_(pd.weights_desc(), cpu(), DNNL_MEMORY_NONE),
        y_(pd.dst_desc(), cpu(), DNNL_MEMORY_NONE),
        scratch_(pd.scratchpad_desc(), cpu(), DNNL_MEMORY_NONE),
        args_{{DNNL_ARG_SRC, x_.get()},
              {DNNL_ARG_WEIGHTS, weight_.get()},
              {DNNL_ARG_DST, y_.get()},
              {DNNL_ARG_SCRATCHPAD, scratch_.get()}} {
    scratchpad.need(pd.scratchpad_desc().get_size());
    if (!bias) return;
    bias_ = memory(pd.bias_desc(), cpu(), DNNL_MEMORY_NONE);
    args_.push_back({DNNL_ARG_BIAS, bias_.get()});
  }

  void run(const void* x, const void* weight, const void* bias, void* y) override {
    x_.set_data_handle(const_cast<void*>(x));
    weight_.set_data_handle(const_cast<void*>(weight));
    y_.set_data_handle(y);
    scratch_.set_data_handle(scratchpad_.data());
    if (bias_) bias_.set_data_handle(const_cast<void*>(bias));
    // The C call: the C++ one builds a map and a vector each time.
    dnnl::error::wrap_c_api(
        dnnl_primitive_execute(primitive_.get(), stream_.get(), static_cast<int>(args_.size()), args_.data()),
        "a matrix product failed");
  }

 private:
  matmul primitive_;
  dnnl::stream stream_;
  Scratchpad& scratchpad_;
  memory x_, weight_, y_, scratch_, bias_;
  std::vector<dnnl_exec_arg_t> args_;
};

class OneDnnLinear final : public LinearKind {
 public:
  OneDnnLinear(const LinearShape& shape, const memory::desc& weight, bool fixed)
      : LinearKind(shape),
        weight_(weight),
        fixed_(fixed),
        plain_(memory::desc({shape.in, shape.out}, data_type(shape.type), memory::format_tag::ba) == weight) {
    // Rows go in piece by piece where the layout can be cut there.
    const bool cuttable =
        shape.out > kPackRows &&
        weight.submemory_desc({shape.in, kPackRows}, {0, kPackRows * (shape.out > 2 * kPackRows)}, true);
    pack_rows_ = cuttable ? kPackRows : shape.out;
  }

  const char* backend() const override { return "onednn"; }
  const char* layout() const override { return plain_ ? "plain" : "packed"; }
  std::string implementation(int64_t rows) const override {
    return describe(shape(), rows, weight_, fixed_).impl_info_str();
  }
  size_t packed_bytes() const override { return weight_.get_size(); }
  int64_t pack_rows() const override { return pack_rows_; }

  void pack(const void* plain, int64_t first, int64_t rows, void* packed) const override {
    const memory::desc from({shape().in, rows}, data_type(shape().type), memory::format_tag::ba);
    const auto to = rows == shape().out ? weight_ : weight_.submemory_desc({shape().in, rows}, {0, first});
    memory source(from, cpu(), const_cast<void*>(plain)), target(to, cpu(), packed);
    dnnl::stream stream(cpu());
    dnnl::reorder(source, target).execute(stream, source, target);
    stream.wait();
  }

  std::unique_ptr<Product> product(int64_t rows, Scratchpad& scratchpad) const override {
    return std::make_unique<OneDnnProduct>(describe(shape(), rows, weight_, fixed_), shape().bias, scratchpad);
  }

 private:
  memory::desc weight_;
  bool fixed_, plain_;
  int64_t pack_rows_;
};

}  // namespace

std::unique_ptr<LinearKind> make_onednn_linear(const LinearShape& shape, const LinearOptions& options) {
  const bool fixed = options.fixed_rows > 0;
  const int64_t rows = fixed ? options.fixed_rows : shape.type == Type::kFloat32 ? kPrefillRows : 1;
  const memory::desc any({shape.in, shape.out}, data_type(shape.type), memory::format_tag::any);
  const auto chosen = describe(shape, rows, any, fixed);
  if (!usable(chosen)) return nullptr;
  const auto weight = chosen.weights_desc();
  if (!fixed && !(usable(describe(shape, 1, weight, fixed)) && usable(describe(shape, kPrefillRows, weight, fixed)))) {
    return nullptr;
  }
  return std::make_unique<OneDnnLinear>(shape, weight, fixed);
}

std::unique_ptr<LinearKind> make_linear(const LinearShape& shape, const LinearOptions& options) {
  if (auto kind = make_onednn_linear(shape, options)) return kind;
  if (auto kind = make_widened_linear(shape)) return kind;
  return make_torch_linear(shape);
}

std::string onednn_version() {
  const dnnl_version_t* v = dnnl_version();
  return std::to_string(v->major) + "." + std::to_string(v->minor) + "." + std::to_string(v->patch);
}

}  // namespace kvplug::model
