// SPDX-License-Identifier: Apache-2.0
#include "strict.h"

#include <kvplug/sdk/host.h>

#include "quant/values.h"

namespace kvplug::hqq {

// The tensor seen as [rows, columns], row-major. Axis 1: rows are groups. Axis 0: columns are.
struct Strict::Matrix {
  int64_t rows, columns, packed_rows, groups, size;
  bool axis0;

  int64_t elements() const { return rows * columns; }
  int64_t at(int64_t group, int64_t i) const { return axis0 ? i * groups + group : group * size + i; }
};

namespace {

constexpr int kIterations = 20;
constexpr float kRangeGuard = 1e-4f, kLargestInverse = 2e4f;

float shrink(float e) {
  const float left = std::fabs(e) - 0.1f * std::pow(std::fabs(e), -0.3f);
  return e == 0 ? 0 : std::copysign(left > 0 ? left : std::isnan(left) ? left : 0.0f, e);
}

// Codes in one container, and its bits; 3 bits: ten in the low 30 bits of an int32.
struct Container {
  int64_t codes, bits;
};
Container container(int64_t nbits) { return nbits == 3 ? Container{10, 32} : Container{8 / nbits, 8}; }

// How far block `i` of rows is shifted up: the first lies in the highest bits.
int shift_of(int64_t i, int64_t nbits) { return static_cast<int>((container(nbits).codes - 1 - i) * nbits); }

}  // namespace

Strict::Matrix Strict::matrix(int64_t batch, int64_t kv_heads, int64_t tokens, int64_t head_dim) const {
  const int64_t n = batch * kv_heads * tokens * head_dim, size = options_.group_size;
  if (n % size != 0) {
    sdk::fail(KVP_INVALID_ARGUMENT, "option 'q_group_size' is ", size, "; with hf_compat = \"strict\" it must divide ",
              n, ", the elements of all rows, heads and tokens; choose another size, or remove hf_compat");
  }
  Matrix m{};
  m.axis0 = options_.axis == 0;
  m.size = size;
  m.groups = n / size;
  m.rows = n == 0 ? 0 : m.axis0 ? size : m.groups;
  m.columns = n == 0 ? 0 : m.axis0 ? m.groups : size;
  const int64_t per = container(options_.nbits).codes;
  if (options_.nbits != 3 && m.rows % per != 0) {
    sdk::fail(KVP_INVALID_ARGUMENT, m.axis0 ? "option 'q_group_size' is " : "the number of groups is ", m.rows,
              "; with hf_compat = \"strict\", ", options_.nbits, " bits and axis ", options_.axis,
              " it must be a multiple of ", per, "; choose another q_group_size or nbits, or remove hf_compat");
  }
  m.packed_rows = (m.rows + per - 1) / per;
  return m;
}

void Strict::plan(int64_t batch, int64_t kv_heads, int64_t tokens, int64_t head_dim, kvp_qplan& out) const {
  const Matrix m = matrix(batch, kv_heads, tokens, head_dim);
  const int64_t high = m.axis0 ? 1 : m.groups, wide = m.axis0 ? m.groups : 1;
  const auto bits = static_cast<uint8_t>(container(options_.nbits).bits);
  const kvp_dtype data = bits == 32 ? kvp_dtype{KVP_DTYPE_INT, 32, 1} : kvp_dtype{KVP_DTYPE_UINT, 8, 1};
  out.token_block = 0;
  out.workspace_bytes = static_cast<uint64_t>(m.groups * 16 + m.elements() * 5);  // errors, steps, zeros, values, codes
  out.n_parts = 3;
  out.parts[0] = sdk::planned_part(KVP_PART_DATA, data, {m.packed_rows, m.columns});
  out.parts[1] = sdk::planned_part(KVP_PART_SCALE, dtype_, {high, wide});
  out.parts[2] = sdk::planned_part(KVP_PART_ZERO, dtype_, {high, wide});
  if (m.elements() > 0) {
    out.bits_per_element = static_cast<double>(bits * m.packed_rows * m.columns + 2 * dtype_.bits * m.groups) /
                           static_cast<double>(m.elements());
  }
}

void Strict::quantize(const kvp_tensor& in, const kvp_qpart* parts, uint32_t n_parts, void* workspace) const {
  sdk::check_tensor("the tensor to quantize", &in, dtype_, {-1, -1, -1, -1});
  const int64_t* s = in.shape;
  kvp_qplan plan{};
  this->plan(s[0], s[1], s[2], s[3], plan);
  sdk::check_parts(plan, parts, n_parts);
  const Matrix m = matrix(s[0], s[1], s[2], s[3]);
  if (m.elements() == 0) return;
  if (workspace == nullptr) sdk::fail(KVP_INVALID_ARGUMENT, "quantize without a workspace");
  const int32_t levels = (1 << options_.nbits) - 1;
  auto* error = static_cast<double*>(workspace);
  auto* inverse = reinterpret_cast<float*>(error + m.groups);
  float *zero = inverse + m.groups, *x = zero + m.groups;
  auto* codes = reinterpret_cast<uint8_t*>(x + m.elements());
  sdk::for_each_value(in, [&](int64_t i, const std::byte* row, int64_t d) { x[i] = sdk::load_value(row, d, dtype_); });

  const kvp_host_parallel* parallel = sdk::host_parallel();
  const auto each_group = [&](const auto& body) {
    sdk::parallel_for(parallel, m.groups, 64, [&](int64_t begin, int64_t end) {
      for (int64_t g = begin; g < end; ++g) body(g);
    });
  };
  each_group([&](int64_t g) {
    float low = INFINITY, high = -INFINITY;
    for (int64_t i = 0; i < m.size; ++i) {
      low = sdk::min_nan(x[m.at(g, i)], low);
      high = sdk::max_nan(x[m.at(g, i)], high);
    }
    const float range = high - low;
    float s1 = 1.0f / range * static_cast<float>(levels);  // a number over a tensor: by its reciprocal
    if (std::fabs(range) <= kRangeGuard) s1 = 1;
    inverse[g] = s1 > kLargestInverse ? kLargestInverse : s1;
    zero[g] = -low * inverse[g];
  });
  float best = INFINITY;
  for (int turn = 0; turn < kIterations; ++turn) {
    each_group([&](int64_t g) {
      double sum = 0, errors = 0;
      for (int64_t i = 0; i < m.size; ++i) {
        const float w = x[m.at(g, i)], q = sdk::code_of(w * inverse[g] + zero[g], levels);
        const float r = (q - zero[g]) / inverse[g], e = w - r;
        sum += q - (w - shrink(e)) * inverse[g];
        errors += std::fabs(e);
      }
      zero[g] = static_cast<float>(sum / static_cast<double>(m.size));
      error[g] = errors;
    });
    double all = 0;
    for (int64_t g = 0; g < m.groups; ++g) all += error[g];
    const auto mean = static_cast<float>(all / static_cast<double>(m.elements()));
    if (!(mean < best)) break;
    best = mean;
  }
  each_group([&](int64_t g) {
    for (int64_t i = 0; i < m.size; ++i) codes[m.at(g, i)] = sdk::code_of(x[m.at(g, i)] * inverse[g] + zero[g], levels);
    sdk::store_value(parts[1].t.data, g, dtype_, 1.0f / inverse[g]);
    sdk::store_value(parts[2].t.data, g, dtype_, zero[g]);
  });

  const int64_t packed = m.packed_rows * m.columns;
  const auto pack = [&](auto* to) {
    for (int64_t i = 0; i < packed; ++i) {
      uint32_t word = 0;
      for (int64_t k = 0; i + k * packed < m.elements(); ++k) {
        word |= uint32_t{codes[i + k * packed]} << shift_of(k, options_.nbits);
      }
      to[i] = static_cast<std::remove_reference_t<decltype(*to)>>(word);
    }
  };
  if (options_.nbits == 3) {
    pack(static_cast<int32_t*>(parts[0].t.data));
  } else {
    pack(static_cast<uint8_t*>(parts[0].t.data));
  }
}

void Strict::dequantize(const kvp_qpart* parts, uint32_t n_parts, kvp_tensor& out) const {
  const kvp_dtype out_dtype = sdk::dtype_of(out);
  if (!sdk::is_plain_float(out_dtype)) sdk::fail(KVP_INVALID_ARGUMENT, "dequantize into ", sdk::name_of(out_dtype));
  sdk::check_tensor("the tensor to dequantize into", &out, out_dtype, {-1, -1, -1, -1});
  kvp_qplan plan{};
  this->plan(out.shape[0], out.shape[1], out.shape[2], out.shape[3], plan);
  sdk::check_parts(plan, parts, n_parts);
  const Matrix m = matrix(out.shape[0], out.shape[1], out.shape[2], out.shape[3]);
  const uint32_t levels = (1u << options_.nbits) - 1;
  const int64_t packed = m.packed_rows * m.columns;
  sdk::for_each_value(out, [&](int64_t i, std::byte* row, int64_t d) {
    const int64_t at = i % packed, g = m.axis0 ? i % m.columns : i / m.columns;
    const uint32_t word = options_.nbits == 3 ? static_cast<uint32_t>(static_cast<const int32_t*>(parts[0].t.data)[at])
                                              : static_cast<const uint8_t*>(parts[0].t.data)[at];
    const auto q = static_cast<float>(word >> shift_of(i / packed, options_.nbits) & levels);
    const float zero = sdk::load_value(parts[2].t.data, g, dtype_), scale = sdk::load_value(parts[1].t.data, g, dtype_);
    sdk::store_value(row, d, out_dtype, sdk::rounded(sdk::rounded(q - zero, dtype_) * scale, dtype_));
  });
}

}  // namespace kvplug::hqq
