// SPDX-License-Identifier: Apache-2.0
#include "model/exec/attention.h"

#include <algorithm>
#include <string>

#include "core/error.h"
#include "model/exec/parallel.h"

namespace kvplug::model {
namespace {

constexpr int64_t kExpectedTokens = 8192;

sdk::AttendShape attend_shape(const kvp_layer& layer, Type type, int64_t batch, int64_t queries) {
  return {.batch = batch,
          .q_heads = layer.q_heads,
          .kv_heads = layer.kv_heads,
          .max_query = queries,
          .key_dim = layer.key_dim,
          .value_dim = layer.value_dim,
          .dtype = dtype_of(type)};
}

// The element of row b at a column, which may lie outside the view as long as nobody reads it.
const void* element(const kvp_tensor& t, int64_t b, int64_t column) {
  return static_cast<const char*>(t.data) + (b * t.strides[0] + column * t.strides[2]) * (t.dtype_bits / 8);
}

}  // namespace

int64_t window_of(const kvp_layer& layer) { return layer.kind == KVP_LAYER_SLIDING ? layer.window : 0; }
int64_t chunk_of(const kvp_layer& layer) { return layer.kind == KVP_LAYER_CHUNKED ? layer.window : 0; }

kvp_attend_desc step_desc(size_t index, const kvp_layer& layer, Type type, Scores scores, const StepShape& shape) {
  kvp_attend_desc desc{};
  desc.struct_size = sizeof desc;
  desc.layer = static_cast<int32_t>(index);
  desc.flags = KVP_ATTEND_CAUSAL | KVP_ATTEND_APPEND | KVP_ATTEND_PADDED;
  desc.max_batch = shape.max_batch;
  desc.max_query = shape.max_query;
  desc.q_dtype = desc.out_dtype = dtype_of(type);
  desc.scale = scores.scale;
  desc.softcap = scores.softcap;
  desc.window = window_of(layer);
  desc.chunk = chunk_of(layer);
  return desc;
}

Attention::Attention(std::span<const kvp_layer> layers, Type type, Scores scores, const StepShape& shape,
                     CacheStack* stack)
    : layers_(layers.begin(), layers.end()), type_(type), scores_(scores), shape_(shape) {
  row_seen_.resize(static_cast<size_t>(shape.max_batch));
  row_pad_.resize(static_cast<size_t>(shape.max_batch));
  rows_.resize(static_cast<size_t>(shape.max_batch));
  ask(stack);
}

void Attention::ask(CacheStack* stack) {
  stack_ = stack;
  fused_.assign(layers_.size(), false);
  size_t bytes = 0;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const kvp_layer& layer = layers_[i];
    if (stack != nullptr) {
      const kvp_attend_desc desc = step_desc(i, layer, type_, scores_, shape_);
      fused_[i] = stack->can_attend(desc.layer, desc, nullptr);
    }
    if (fused_[i]) continue;
    const kvp_host_parallel* pool = torch_parallel();
    const size_t need = sdk::attend_scratch_bytes(attend_shape(layer, type_, shape_.max_batch, shape_.max_query),
                                                  pool->workers(pool->ctx));
    bytes = std::max(bytes, need);
  }
  if (bytes > scratch_.size()) scratch_ = Buffer(bytes);
  if (bytes == 0) return;
  // Room for the blocks of a step: decoding grows a row by one token, and must not allocate each time.
  const int64_t tokens = std::max({shape_.max_query, stack != nullptr ? stack->params().tokens : 0, kExpectedTokens});
  blocks_.reserve(static_cast<size_t>(shape_.max_batch * (tokens / sdk::kBlockTokens + 2)));
}

kvp_call Attention::call_for(const ForwardInput& input, CacheStack* stack) {
  if (stack != stack_) ask(stack);
  call_ = call();
  const bool fused = std::find(fused_.begin(), fused_.end(), false) == fused_.end();
  if (input.prepared && fused) call_.flags = KVP_CALL_PREPARED;
  return call_;
}

void Attention::begin(const ForwardInput& input, CacheStack* stack, int64_t* positions, int64_t* slots) {
  input_ = &input;
  const auto batch = static_cast<size_t>(input.batch);
  std::fill_n(row_seen_.begin(), batch, 0);
  std::fill_n(row_pad_.begin(), batch, 0);
  if (stack != nullptr && !layers_.empty()) lengths(0, row_seen_.data(), row_pad_.data());
  for (size_t b = 0; b < batch; ++b) {
    if (input.pad != nullptr) row_pad_[b] += input.pad[b];
    const int64_t first = row_seen_[b] - row_pad_[b];
    for (int64_t i = 0; i < input.tokens; ++i) {
      *positions++ = std::max<int64_t>(0, first + i);
      *slots++ = row_seen_[b] + i;
    }
  }
}

kvp_lengths Attention::lengths(int32_t layer, int64_t* row_seen, int64_t* row_pad) const {
  kvp_lengths lengths{};
  lengths.struct_size = sizeof lengths;
  lengths.row_seen = row_seen;
  lengths.row_pad = row_pad;
  lengths.n_rows = row_seen != nullptr ? static_cast<size_t>(input_->batch) : 0;
  stack_->lengths(layer, input_->tokens, lengths);
  return lengths;
}

void Attention::run(int32_t index, const kvp_tensor& q, const kvp_tensor& k, const kvp_tensor& v, kvp_tensor& out) {
  const kvp_layer& layer = layers_[static_cast<size_t>(index)];
  if (stack_ == nullptr) {
    attend_views(layer, q, k, v, 0, out);
    return;
  }
  if (fused_[static_cast<size_t>(index)]) {
    kvp_attend_args args{};
    args.struct_size = sizeof args;
    args.layer = index;
    args.flags = KVP_ATTEND_CAUSAL;
    args.q = &q, args.k = &k, args.v = &v;
    args.pad = input_->pad, args.count = input_->count;
    args.scale = scores_.scale;
    args.softcap = scores_.softcap;
    args.window = window_of(layer);
    args.chunk = chunk_of(layer);
    stack_->attend(call_, args, out, nullptr);
    return;
  }
  const int64_t first_slot = lengths(index, nullptr, nullptr).kv_offset;
  kvp_update_args args{};
  args.struct_size = sizeof args;
  args.layer = index;
  args.k = &k, args.v = &v;
  args.pad = input_->pad, args.count = input_->count;
  kvp_tensor view_k{}, view_v{};
  stack_->update(call_, args, &view_k, &view_v);
  attend_views(layer, q, view_k, view_v, first_slot, out);
}

void Attention::attend_views(const kvp_layer& layer, const kvp_tensor& q, const kvp_tensor& k, const kvp_tensor& v,
                             int64_t first_slot, kvp_tensor& out) {
  blocks_.clear();
  for (int64_t b = 0; b < input_->batch; ++b) {
    const auto at = static_cast<size_t>(b);
    const int64_t pad = row_pad_[at], count = input_->count != nullptr ? input_->count[b] : input_->tokens;
    sdk::AttendRow& row = rows_[at];
    row = {};
    row.kv_end = std::max<int64_t>(0, row_seen_[at] + count - pad);
    row.kv_begin = std::min(row.kv_end, std::max<int64_t>(0, first_slot - pad));
    row.q_position = row_seen_[at] - pad;
    row.q_count = count;
    row.bias_column = pad - first_slot;
    row.first_block = row.kv_begin / sdk::kBlockTokens;
    for (int64_t p = row.first_block * sdk::kBlockTokens; p < row.kv_end; p += sdk::kBlockTokens) {
      const int64_t column = p + pad - first_slot;
      blocks_.push_back({.k = element(k, b, column),
                         .v = element(v, b, column),
                         .k_head_stride = k.strides[1],
                         .k_token_stride = k.strides[2],
                         .v_head_stride = v.strides[1],
                         .v_token_stride = v.strides[2]});
    }
  }
  const sdk::KvBlock* next = blocks_.data();
  for (int64_t b = 0; b < input_->batch; ++b) {
    sdk::AttendRow& row = rows_[static_cast<size_t>(b)];
    row.blocks = next;
    next += (row.kv_end + sdk::kBlockTokens - 1) / sdk::kBlockTokens - row.first_block;
  }
  const sdk::AttendCall attend{.q = &q,
                               .out = &out,
                               .lse = nullptr,
                               .bias = nullptr,
                               .sinks = nullptr,
                               .rows = rows_.data(),
                               .window = window_of(layer),
                               .chunk = chunk_of(layer),
                               .scale = scores_.scale,
                               .softcap = scores_.softcap,
                               .causal = true};
  const kvp_status status = sdk::attend(attend_shape(layer, type_, input_->batch, input_->tokens), attend,
                                        torch_parallel(), scratch_.data(), scratch_.size());
  if (status != KVP_OK) {
    throw Error(Code::kInternal, "attention of layer " + std::to_string(layer.model_layer) +
                                     " refused its arguments (" + std::to_string(status) + ")");
  }
}

}  // namespace kvplug::model
