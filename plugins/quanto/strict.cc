// SPDX-License-Identifier: Apache-2.0
#include "strict.h"

#include "quant/values.h"

namespace kvplug::quanto {

// The grouped matrix. Axis 0: [groups, size], rows are consecutive elements. Axis -1: [size, groups], groups run
// channel by channel; group (channel, k) is `size` rows of [batch * heads * tokens, head_dim] from row k * size on.
struct Strict::Matrix {
  int64_t rows, columns, packed_rows;
  int64_t head_dim, per_channel;  // axis -1
  int64_t size, scales;           // of a group; how many
  bool by_channel, single;

  int64_t elements() const { return rows * columns; }
  // Row and column of flat element i.
  int64_t at(int64_t i) const {
    if (!by_channel) return i;
    const int64_t row = i / head_dim, channel = i % head_dim;
    return row % size * columns + channel * per_channel + row / size;
  }
  int64_t group(int64_t at) const { return single ? at : by_channel ? at % columns : at / columns; }
};

Strict::Matrix Strict::matrix(int64_t batch, int64_t kv_heads, int64_t tokens, int64_t head_dim) const {
  const int64_t n = batch * kv_heads * tokens * head_dim, size = options_.group_size;
  const bool by_channel = options_.axis == -1;
  const int64_t kept = by_channel ? head_dim : batch, along = kept == 0 ? 0 : n / kept;
  if (along % size != 0) {
    sdk::fail(KVP_INVALID_ARGUMENT, "option 'q_group_size' is ", size, "; with hf_compat = \"strict\" and axis ",
              options_.axis, " it must divide ", along, ", the ",
              by_channel ? "tokens of all heads and rows" : "elements of one row",
              "; choose another size, or remove hf_compat");
  }
  Matrix m{};
  const int64_t groups = n / size;
  m.by_channel = by_channel;
  m.rows = by_channel ? size : groups;
  m.columns = by_channel ? groups : size;
  if (n == 0) m.rows = m.columns = 0;
  const int64_t per_byte = 8 / options_.nbits;
  m.packed_rows = (m.rows + per_byte - 1) / per_byte;
  m.head_dim = head_dim;
  m.per_channel = by_channel ? along / size : 0;
  m.size = size;
  m.single = !by_channel && groups == 1;  // the reference then reduces nothing: every element is its own group
  m.scales = m.single ? size : groups;
  return m;
}

void Strict::plan(int64_t batch, int64_t kv_heads, int64_t tokens, int64_t head_dim, kvp_qplan& out) const {
  const Matrix m = matrix(batch, kv_heads, tokens, head_dim);
  const bool column = !m.by_channel && !m.single;
  const int64_t high = column ? m.scales : 1, wide = column ? 1 : m.scales;
  out.token_block = 0;
  out.workspace_bytes = static_cast<uint64_t>(m.elements() * 5 + 2 * m.scales * 4);
  out.n_parts = 3;
  out.parts[0] = sdk::planned_part(KVP_PART_DATA, {KVP_DTYPE_UINT, 8, 1}, {m.packed_rows, m.columns});
  out.parts[1] = sdk::planned_part(KVP_PART_SCALE, dtype_, {high, wide});
  out.parts[2] = sdk::planned_part(KVP_PART_ZERO, dtype_, {high, wide});
  if (m.elements() > 0) {
    out.bits_per_element = static_cast<double>(8 * m.packed_rows * m.columns + 2 * dtype_.bits * m.scales) /
                           static_cast<double>(m.elements());
  }
}

void Strict::quantize(const kvp_tensor& in, const kvp_qpart* parts, uint32_t n_parts, void* workspace) const {
  sdk::check_tensor("the tensor to quantize", &in, dtype_, {-1, -1, -1, -1});
  const int64_t *s = in.shape, levels = (1 << options_.nbits) - 1;
  kvp_qplan plan{};
  this->plan(s[0], s[1], s[2], s[3], plan);
  sdk::check_parts(plan, parts, n_parts);
  const Matrix m = matrix(s[0], s[1], s[2], s[3]);
  if (m.elements() == 0) return;
  if (workspace == nullptr) sdk::fail(KVP_INVALID_ARGUMENT, "quantize without a workspace");
  auto* x = static_cast<float*>(workspace);
  float *low = x + m.elements(), *high = low + m.scales;
  auto* codes = reinterpret_cast<uint8_t*>(high + m.scales);

  for (int64_t g = 0; g < m.scales; ++g) low[g] = INFINITY, high[g] = -INFINITY;
  sdk::for_each_value(in, [&](int64_t i, const std::byte* row, int64_t d) {
    const int64_t at = m.at(i), g = m.group(at);
    x[at] = sdk::load_value(row, d, dtype_);
    low[g] = sdk::min_nan(x[at], low[g]);
    high[g] = sdk::max_nan(x[at], high[g]);
  });
  for (int64_t g = 0; g < m.scales; ++g) {
    const float scale = sdk::rounded(sdk::rounded(high[g] - low[g], dtype_) / static_cast<float>(levels), dtype_);
    sdk::store_value(parts[1].t.data, g, dtype_, scale);
    sdk::store_value(parts[2].t.data, g, dtype_, -low[g]);
    high[g] = scale;
  }
  for (int64_t i = 0; i < m.elements(); ++i) {
    const int64_t g = m.group(i);
    const float shifted = sdk::rounded(x[i] - low[g], dtype_);
    codes[i] = sdk::code_of(sdk::rounded(shifted / high[g], dtype_), static_cast<int32_t>(levels));
  }
  // Row blocks side by side in a byte, the first in the lowest bits.
  auto* packed = static_cast<uint8_t*>(parts[0].t.data);
  std::memset(packed, 0, static_cast<size_t>(m.packed_rows * m.columns));
  for (int64_t i = 0; i < m.elements(); ++i) {
    const int64_t r = i / m.columns, c = i % m.columns;
    uint8_t& to = packed[r % m.packed_rows * m.columns + c];
    to = static_cast<uint8_t>(to | codes[i] << (r / m.packed_rows * options_.nbits));
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
  const auto* packed = static_cast<const uint8_t*>(parts[0].t.data);
  const int32_t levels = (1 << options_.nbits) - 1;
  sdk::for_each_value(out, [&](int64_t i, std::byte* row, int64_t d) {
    const int64_t at = m.at(i), g = m.group(at), r = at / m.columns, c = at % m.columns;
    const int code = packed[r % m.packed_rows * m.columns + c] >> (r / m.packed_rows * options_.nbits) & levels;
    const float scale = sdk::load_value(parts[1].t.data, g, dtype_),
                shift = sdk::load_value(parts[2].t.data, g, dtype_);
    const float value = sdk::rounded(sdk::rounded(scale * static_cast<float>(code), dtype_) - shift, dtype_);
    sdk::store_value(row, d, out_dtype, value);
  });
}

}  // namespace kvplug::quanto
