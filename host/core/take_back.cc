// SPDX-License-Identifier: Apache-2.0
#include "core/take_back.h"

#include <kvplug/tensor.h>

#include <algorithm>

#include "core/error.h"

namespace kvplug {
namespace {

using Rows = std::vector<int64_t>;

struct RowLengths {
  Rows seen, pad;
};

RowLengths rows_of(const CacheInstance& instance, int32_t index, size_t batch) {
  RowLengths rows{Rows(batch), Rows(batch)};
  kvp_lengths out{};
  out.struct_size = sizeof out;
  out.row_seen = rows.seen.data();
  out.row_pad = rows.pad.data();
  out.n_rows = batch;
  instance.lengths(index, 0, out);
  return rows;
}

Rows minus(const Rows& a, const Rows& b) {
  Rows result(a.size());
  std::transform(a.begin(), a.end(), b.begin(), result.begin(), std::minus<>());
  return result;
}

bool all_zero(const Rows& rows) {
  return std::all_of(rows.begin(), rows.end(), [](int64_t value) { return value == 0; });
}

// [batch, heads, tokens, dim] of zeros, all from one row of them.
kvp_tensor zeros(void* row, const kvp_call& call, kvp_dtype dtype, const int64_t (&shape)[4]) {
  kvp_tensor tensor{};
  tensor.data = row;
  tensor.device_type = call.device_type;
  tensor.device_id = call.device_id;
  tensor.ndim = 4;
  tensor.dtype_code = dtype.code;
  tensor.dtype_bits = dtype.bits;
  tensor.dtype_lanes = dtype.lanes;
  tensor.flags = KVP_TENSOR_READ_ONLY;
  std::copy(std::begin(shape), std::end(shape), tensor.shape);
  tensor.strides[3] = 1;
  return tensor;
}

// Appends what the step appended elsewhere: `taken` tokens a row, of which `pad` are padding.
void fill(const CacheInstance& instance, int32_t index, const kvp_call& call, kvp_dtype dtype, const Rows& taken,
          const Rows& pad) {
  const kvp_layer& layer = instance.parts()[static_cast<size_t>(index)].spec;
  if (layer.kind == KVP_LAYER_STATE || call.device_type != KVP_DEVICE_CPU) {
    throw Error(Code::kPoisoned, "a step that failed half way cannot be taken back here");
  }
  const auto batch = static_cast<int64_t>(taken.size());
  const int64_t tokens = *std::max_element(taken.begin(), taken.end());
  std::vector<uint8_t> row(static_cast<size_t>(std::max(layer.key_dim, layer.value_dim)) * dtype.bits / 8);
  const kvp_tensor k = zeros(row.data(), call, dtype, {batch, layer.kv_heads, tokens, layer.key_dim});
  const kvp_tensor v = zeros(row.data(), call, dtype, {batch, layer.kv_heads, tokens, layer.value_dim});
  kvp_update_args args{};
  args.struct_size = sizeof args;
  args.layer = index;
  args.k = &k;
  args.v = &v;
  args.pad = all_zero(pad) ? nullptr : pad.data();
  args.count = taken.data();
  instance.call("update", instance.iface().update, &call, &args, nullptr, nullptr);
}

}  // namespace

void take_back(const CacheInstance& instance, const kvp_call& call, const StepMark& mark, kvp_dtype dtype) {
  if (mark.seen == 0) {
    instance.call("reset", instance.iface().reset, &call);
    return;
  }
  const auto n_layers = static_cast<int32_t>(instance.parts().size());
  Rows taken, pad;
  std::vector<int32_t> behind;
  for (int32_t index = 0; index < n_layers; ++index) {
    const RowLengths now = rows_of(instance, index, mark.row_seen.size());
    const Rows grown = minus(now.seen, mark.row_seen);
    if (all_zero(grown)) {
      behind.push_back(index);
    } else if (taken.empty()) {
      taken = grown;
      pad = minus(now.pad, mark.row_pad);
    } else if (grown != taken) {
      throw Error(Code::kPoisoned, "the layers do not agree on what the failed step appended");
    }
  }
  if (taken.empty()) return;  // The step never came to this instance.
  for (const int32_t index : behind) fill(instance, index, call, dtype, taken, pad);

  const bool even = std::all_of(taken.begin(), taken.end(), [&](int64_t count) { return count == taken.front(); });
  const int64_t n = even ? 1 : static_cast<int64_t>(taken.size());
  instance.call("crop", instance.iface().crop, &call, static_cast<const int64_t*>(taken.data()), n);
  if (rows_of(instance, 0, mark.row_seen.size()).seen != mark.row_seen) {
    throw Error(Code::kPoisoned, "crop did not bring the rows back to their lengths");
  }
}

}  // namespace kvplug
