// SPDX-License-Identifier: Apache-2.0
// The decoder block on LibTorch's operations; see device_model.h. Roundings are those of Transformers: norms and the
// softmax in float32, everything between two operations in the model's type.
//
// What a step needs beside ids follows from them and the rows' lengths: all of it moves to the device as one list of
// integers. So a decode step can be recorded: the list lies where it lay, the plugin counts from a clock that the step
// sets, and a replay needs the next list only.
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "core/error.h"
#include "model/exec/attention.h"
#include "model/exec/device_model.h"
#include "model/exec/errors.h"

namespace kvplug::model {
namespace {

kvp_tensor describe(const at::Tensor& t, kvp_dtype dtype) {
  kvp_tensor out{};
  out.data = t.data_ptr();
  out.device_type = t.is_cuda() ? KVP_DEVICE_CUDA : KVP_DEVICE_CPU;
  out.device_id = t.is_cuda() ? t.get_device() : 0;
  out.ndim = static_cast<int32_t>(t.dim());
  out.dtype_code = dtype.code, out.dtype_bits = dtype.bits, out.dtype_lanes = dtype.lanes;
  for (int64_t i = 0; i < t.dim(); ++i) out.shape[i] = t.size(i), out.strides[i] = t.stride(i);
  return out;
}

class DeviceRunner final : public Runner {
 public:
  DeviceRunner(std::shared_ptr<const DeviceModel> model, const StepShape& shape, CacheStack* stack, GraphMaker graphs)
      : model_(std::move(model)),
        d_(model_->description),
        shape_(shape),
        graphs_(std::move(graphs)),
        layers_(d_.cache_layers()) {
    const c10::InferenceMode inference;
    const auto half = static_cast<int64_t>(model_->inverse_frequencies.size());
    frequencies_ = moved(model_->inverse_frequencies, {half}, at::kFloat);
    ask(stack);
  }

  void forward(const ForwardInput& input, CacheStack* stack, float* logits) override {
    step(input, stack, false, logits);
  }
  void forward_all(const ForwardInput& input, CacheStack* stack, float* logits) override {
    step(input, stack, true, logits);
  }
  void watch_attention(AttentionWatch watch) override { watch_ = std::move(watch); }
  uint64_t scratch_bytes() const override { return 0; }  // LibTorch's own allocator, outside of our books

 private:
  at::TensorOptions options() const { return model_->embedding.options(); }

  void ask(CacheStack* stack) {
    stack_ = stack;
    drop_graph();
    last_batch_ = 0;
    fused_.assign(layers_.size(), false);
    for (size_t i = 0; stack != nullptr && i < layers_.size(); ++i) {
      const Scores scores{static_cast<float>(d_.attention_scale), static_cast<float>(d_.attention_softcap)};
      const kvp_attend_desc desc = step_desc(i, layers_[i], model_->type, scores, shape_);
      fused_[i] = stack->can_attend(desc.layer, desc, nullptr);
    }
  }

  void step(const ForwardInput& input, CacheStack* stack, bool all, float* logits) {
    if (input.batch < 1 || input.tokens < 1 || input.batch > shape_.max_batch || input.tokens > shape_.max_query) {
      throw Error(Code::kInvalidArgument, "a step of " + std::to_string(input.batch) + " x " +
                                              std::to_string(input.tokens) + " tokens, prepared for at most " +
                                              std::to_string(shape_.max_batch) + " x " +
                                              std::to_string(shape_.max_query));
    }
    translated([&] {
      const c10::InferenceMode inference;
      const c10::StreamGuard guard(stream_of(model_->device));
      if (stack != stack_) ask(stack);
      masks_.clear();
      const std::vector<int64_t> numbers = numbers_of(input);
      at::Tensor out;
      if (!all && may_record(input)) out = recorded(input, numbers);
      if (!out.defined()) out = queued(input, numbers, all);
      const at::Tensor host = out.to(at::kCPU).contiguous();
      std::copy_n(host.const_data_ptr<float>(), host.numel(), logits);
    });
  }

  bool fused() const { return std::find(fused_.begin(), fused_.end(), false) == fused_.end(); }

  // Operation by operation.
  at::Tensor queued(const ForwardInput& input, const std::vector<int64_t>& numbers, bool all) {
    call_ = device_call(model_->device);
    if (input.prepared && fused()) call_.flags = KVP_CALL_PREPARED;
    if (stack_ != nullptr) stack_->begin_step(call_);
    try {
      const at::Tensor out = run(moved(numbers, {static_cast<int64_t>(numbers.size())}, at::kLong), input, all);
      if (stack_ != nullptr) stack_->end_step(call_);
      return out;
    } catch (...) {
      if (stack_ != nullptr) stack_->abort_step(call_);
      throw;
    }
  }

  // One token of every row, by plugins that can.
  bool may_record(const ForwardInput& input) {
    const auto rows = static_cast<size_t>(input.batch);
    const bool can =
        graphs_ && stack_ != nullptr && input.prepared && input.tokens == 1 && !watch_ &&
        (input.pad == nullptr || std::all_of(input.pad, input.pad + rows, [](int64_t n) { return n == 0; })) &&
        (input.count == nullptr || std::all_of(input.count, input.count + rows, [](int64_t n) { return n == 1; })) &&
        fused() && stack_->uncaptured().empty();
    // The first such step is queued: libraries take what they need at their first use, which must not be recorded.
    const bool again = std::exchange(last_batch_, can ? input.batch : 0) == input.batch;
    return can && again;
  }

  // Undefined if the step was not recorded after all: the stack then says why.
  at::Tensor recorded(const ForwardInput& input, const std::vector<int64_t>& numbers) {
    if (!graph_ || stack_->bound() != binding_) {
      try {
        record(input, numbers);
      } catch (const std::exception& error) {
        drop_graph();
        stack_->end_capture(error.what());
        return {};
      }
    }
    stack_->advance_capture(1);
    numbers_.copy_(list_of(numbers));
    graph_->replay();
    return logits_;
  }

  void record(const ForwardInput& input, const std::vector<int64_t>& numbers) {
    drop_graph();
    graph_ = graphs_();
    numbers_ = moved(numbers, {static_cast<int64_t>(numbers.size())}, at::kLong);
    const auto clock = std::make_shared<at::Tensor>(at::zeros({input.batch}, numbers_.options().dtype(at::kInt)));
    call_ = device_call(model_->device);
    binding_ = stack_->bind_capture(call_, 1, describe(*clock, {KVP_DTYPE_INT, 32, 1}), clock);
    call_.flags = KVP_CALL_CAPTURE;
    ForwardInput plain = input;
    plain.pad = plain.count = nullptr;
    graph_->record([this, plain, clock] {
      clock->copy_(numbers_.narrow(0, plain.batch, plain.batch));
      logits_ = run(numbers_, plain, false);
    });
  }

  void drop_graph() {
    logits_ = at::Tensor();  // in the graph's memory
    graph_.reset();
    binding_ = 0;
  }

  template <class T>
  at::Tensor moved(const std::vector<T>& values, at::IntArrayRef shape, at::ScalarType type) const {
    return at::from_blob(const_cast<T*>(values.data()), shape, at::TensorOptions().dtype(type))
        .clone()
        .to(model_->device);
  }
  static at::Tensor list_of(const std::vector<int64_t>& values) {
    return at::from_blob(const_cast<int64_t*>(values.data()), {static_cast<int64_t>(values.size())},
                         at::TensorOptions().dtype(at::kLong));
  }

  at::Tensor norm(const at::Tensor& x, const at::Tensor& weight) const {
    const at::Tensor wide = x.to(at::kFloat);
    const at::Tensor unit = wide * at::rsqrt(wide.pow(2).mean({-1}, true) + d_.rms_norm_eps);
    if (!weight.defined()) return unit.to(x.scalar_type());
    if (d_.norm_adds_one) return (unit * (1.0 + weight.to(at::kFloat))).to(x.scalar_type());
    return unit.to(x.scalar_type()) * weight;
  }
  at::Tensor norm_if(const at::Tensor& x, const at::Tensor& weight) const {
    return weight.defined() ? norm(x, weight) : x;
  }
  static at::Tensor product(const at::Tensor& x, const DeviceLinear& linear) {
    return at::linear(x, linear.weight, linear.bias.defined() ? std::optional<at::Tensor>(linear.bias) : std::nullopt);
  }
  at::Tensor activated(const at::Tensor& gate) const {
    return d_.hidden_act == "silu" ? at::silu(gate) : at::gelu(gate, "tanh");
  }

  // Of every token its id, slot and position, each [batch, tokens], and of every row its last token that counts.
  std::vector<int64_t> numbers_of(const ForwardInput& input) {
    const auto batch = static_cast<size_t>(input.batch);
    row_seen_.assign(batch, 0);
    row_pad_.assign(batch, 0);
    if (stack_ != nullptr && !layers_.empty()) lengths(0, input, row_seen_.data(), row_pad_.data());
    std::vector<int64_t> out(input.ids, input.ids + input.batch * input.tokens);
    for (size_t b = 0; b < batch; ++b) {
      if (input.pad != nullptr) row_pad_[b] += input.pad[b];
      for (int64_t i = 0; i < input.tokens; ++i) out.push_back(row_seen_[b] + i);
    }
    for (size_t b = 0; b < batch; ++b) {
      for (int64_t i = 0; i < input.tokens; ++i) out.push_back(std::max<int64_t>(0, row_seen_[b] - row_pad_[b] + i));
    }
    for (size_t b = 0; b < batch; ++b) {
      const int64_t count = input.count != nullptr ? input.count[b] : input.tokens;
      out.push_back(static_cast<int64_t>(b) * input.tokens + std::max<int64_t>(0, count - 1));
    }
    return out;
  }

  void turn(const at::Tensor& slots, const at::Tensor& positions) {
    const at::Tensor angle = positions.to(at::kFloat).unsqueeze(1).unsqueeze(-1) * frequencies_;
    cos_ = at::cos(angle), sin_ = at::sin(angle);
    if (!d_.rope_interleaved) cos_ = cos_.to(options().dtype()), sin_ = sin_.to(options().dtype());
    if (d_.temperature_scale == 0) return;
    const at::Tensor floors = at::floor((slots.to(at::kFloat) + 1.0) / d_.temperature_floor);
    temperature_ = (at::log1p(floors) * d_.temperature_scale + 1.0).unsqueeze(1).unsqueeze(-1);
  }

  kvp_lengths lengths(int32_t layer, const ForwardInput& input, int64_t* row_seen, int64_t* row_pad) const {
    kvp_lengths out{};
    out.struct_size = sizeof out;
    out.row_seen = row_seen, out.row_pad = row_pad;
    out.n_rows = row_seen != nullptr ? static_cast<size_t>(input.batch) : 0;
    stack_->lengths(layer, input.tokens, out);
    return out;
  }

  // [batch, heads, tokens, dim]
  at::Tensor rotated(const at::Tensor& x) const {
    if (d_.rope_interleaved) {
      const at::Tensor wide = x.to(at::kFloat), even = wide.slice(-1, 0, std::nullopt, 2),
                       odd = wide.slice(-1, 1, std::nullopt, 2);
      const at::Tensor turned =
          at::stack({even * cos_ - odd * sin_, even * sin_ + odd * cos_}, -1).flatten(-2).to(x.scalar_type());
      return d_.qk_unit_norm ? norm(turned, {}) : turned;
    }
    const int64_t half = d_.head_dim / 2;
    const at::Tensor low = x.slice(-1, 0, half), high = x.slice(-1, half);
    return at::cat({low * cos_ - high * sin_, high * cos_ + low * sin_}, -1);
  }

  // What each query sees of columns that begin at slot `offset`, [batch, 1, queries, kv_len]; a query that sees nothing
  // sees everything: it is padding, and nobody reads it.
  // One for all layers of a kind.
  at::Tensor mask_of(const ForwardInput& input, const kvp_layer& layer, int64_t offset, int64_t kv_len) {
    at::Tensor& made = masks_[{layer.kind, layer.window, offset, kv_len}];
    if (made.defined()) return made;
    std::vector<uint8_t> mask(static_cast<size_t>(input.batch * input.tokens * kv_len), 0);
    uint8_t* at = mask.data();
    const int64_t window = window_of(layer), chunk = chunk_of(layer);
    for (size_t b = 0; b < static_cast<size_t>(input.batch); ++b) {
      const int64_t pad = row_pad_[b], end = row_seen_[b] + (input.count != nullptr ? input.count[b] : input.tokens);
      for (int64_t i = 0; i < input.tokens; ++i, at += kv_len) {
        const int64_t slot = row_seen_[b] + i;
        bool any = false;
        for (int64_t c = 0; c < kv_len; ++c) {
          const int64_t j = offset + c;
          const bool sees = j >= pad && j < end && j <= slot && (window == 0 || j > slot - window) &&
                            (chunk == 0 || (j - pad) / chunk == (slot - pad) / chunk);
          at[c] = sees ? 1 : 0;
          any = any || sees;
        }
        if (!any) std::fill(at, at + kv_len, uint8_t{1});
      }
    }
    made = moved(mask, {input.batch, 1, input.tokens, kv_len}, at::kByte).to(at::kBool);
    return made;
  }

  at::Tensor attend_plain(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& mask) const {
    const bool grouped = d_.q_heads != d_.kv_heads;
    if (d_.attention_softcap == 0) {
      return at::scaled_dot_product_attention(q, k, v, mask, 0.0, false, d_.attention_scale, grouped);
    }
    const int64_t group = d_.q_heads / d_.kv_heads;
    const at::Tensor keys = k.repeat_interleave(group, 1), values = v.repeat_interleave(group, 1);
    at::Tensor scores = at::matmul(q, keys.transpose(-1, -2)) * d_.attention_scale;
    scores = at::tanh(scores / d_.attention_softcap) * d_.attention_softcap;
    scores = scores.to(at::kFloat).masked_fill(at::logical_not(mask), -INFINITY);
    return at::matmul(at::softmax(scores, -1).to(q.scalar_type()), values);
  }

  at::Tensor attend(int32_t index, const ForwardInput& input, const at::Tensor& q, const at::Tensor& k,
                    const at::Tensor& v) {
    const kvp_layer& layer = layers_[static_cast<size_t>(index)];
    if (stack_ == nullptr) return attend_plain(q, k, v, mask_of(input, layer, 0, input.tokens));
    const kvp_dtype dtype = dtype_of(model_->type);
    const kvp_tensor tq = describe(q, dtype), tk = describe(k, dtype), tv = describe(v, dtype);
    if (fused_[static_cast<size_t>(index)]) {
      at::Tensor out = at::empty_like(q, at::MemoryFormat::Contiguous);
      kvp_tensor to = describe(out, dtype);
      kvp_attend_args args{};
      args.struct_size = sizeof args;
      args.layer = index;
      args.flags = KVP_ATTEND_CAUSAL;
      args.q = &tq, args.k = &tk, args.v = &tv;
      args.pad = input.pad, args.count = input.count;
      args.scale = static_cast<float>(d_.attention_scale);
      args.softcap = static_cast<float>(d_.attention_softcap);
      args.window = window_of(layer), args.chunk = chunk_of(layer);
      stack_->attend(call_, args, to, nullptr);
      return out;
    }
    const int64_t offset = lengths(index, input, nullptr, nullptr).kv_offset;
    kvp_update_args args{};
    args.struct_size = sizeof args;
    args.layer = index;
    args.k = &tk, args.v = &tv;
    args.pad = input.pad, args.count = input.count;
    kvp_tensor view_k{}, view_v{};
    stack_->update(call_, args, &view_k, &view_v);
    const auto tensor_of = [&](const kvp_tensor& t) {
      return at::from_blob(t.data, at::IntArrayRef(t.shape, 4), at::IntArrayRef(t.strides, 4),
                           options().device(model_->device));
    };
    return attend_plain(q, tensor_of(view_k), tensor_of(view_v), mask_of(input, layer, offset, view_k.shape[2]));
  }

  // As Transformers: every expert runs over all tokens, those that it was not chosen for scaled to zero.
  at::Tensor experts(const DeviceLayer& layer, const at::Tensor& x) const {
    const at::Tensor flat = x.reshape({-1, d_.hidden_size}), logits = at::linear(flat, layer.router);
    const auto [top, index] = at::topk(logits, d_.experts_per_token, -1);
    const at::Tensor chosen = at::full_like(logits, -INFINITY).scatter(1, index, top);
    const at::Tensor scores = at::sigmoid(chosen.to(at::kFloat)).to(x.scalar_type());  // [tokens, experts]
    const at::Tensor in = flat.unsqueeze(0) * scores.t().unsqueeze(-1);                // [experts, tokens, hidden]
    const at::Tensor both = at::bmm(in, layer.experts_gate_up);
    const at::Tensor out =
        at::bmm(activated(both.slice(-1, 0, d_.expert_size)) * both.slice(-1, d_.expert_size), layer.experts_down);
    return out.to(at::kFloat).sum(0).reshape(x.sizes());
  }

  // numbers: as numbers_of made it, on the device. Returns the logits, float32.
  at::Tensor run(const at::Tensor& numbers, const ForwardInput& input, bool all) {
    const int64_t tokens = input.batch * input.tokens;
    const auto part = [&](int64_t i) {
      return numbers.narrow(0, i * tokens, tokens).view({input.batch, input.tokens});
    };
    turn(part(1), part(2));
    at::Tensor x = at::embedding(model_->embedding, part(0));
    if (d_.embedding_scale != 1.0) x = x * at::scalar_tensor(d_.embedding_scale, at::kFloat).to(x.scalar_type()).item();
    const auto heads = [&](const at::Tensor& t, int64_t n) {
      return t.view({input.batch, input.tokens, n, d_.head_dim}).transpose(1, 2);
    };
    for (size_t i = 0; i < model_->layers.size(); ++i) {
      const DeviceLayer& layer = model_->layers[i];
      const at::Tensor in = norm(x, layer.input_norm);
      at::Tensor q = norm_if(heads(product(in, layer.q), d_.q_heads), layer.q_norm);
      at::Tensor k = norm_if(heads(product(in, layer.k), d_.kv_heads), layer.k_norm);
      const at::Tensor v = heads(product(in, layer.v), d_.kv_heads);
      if (d_.layers[i].rope) {
        q = rotated(q), k = rotated(k);
      } else if (d_.temperature_scale != 0) {
        q = (q * temperature_.to(q.scalar_type()));
      }
      const at::Tensor seen = attend(static_cast<int32_t>(i), input, q, k, v)
                                  .transpose(1, 2)
                                  .reshape({input.batch, input.tokens, d_.q_heads * d_.head_dim});
      if (watch_) {
        const at::Tensor host = seen.to(at::kFloat).to(at::kCPU).contiguous();
        watch_(i, host.const_data_ptr<float>(), tokens, d_.q_heads * d_.head_dim);
      }
      x = x + norm_if(product(seen, layer.o), layer.attention_out_norm);
      const at::Tensor mlp_in = norm(x, layer.mlp_norm);
      at::Tensor delta = product(activated(product(mlp_in, layer.gate)) * product(mlp_in, layer.up), layer.down);
      if (layer.router.defined()) delta = (delta.to(at::kFloat) + experts(layer, mlp_in)).to(x.scalar_type());
      x = x + norm_if(delta, layer.mlp_out_norm);
    }
    if (!all) x = x.reshape({-1, d_.hidden_size}).index_select(0, numbers.narrow(0, 3 * tokens, input.batch));
    at::Tensor out = at::linear(norm(x, model_->final_norm), model_->lm_head);
    if (d_.logit_softcap != 0) out = at::tanh(out / d_.logit_softcap) * d_.logit_softcap;
    return out.to(at::kFloat);
  }

  const std::shared_ptr<const DeviceModel> model_;
  const Description& d_;
  const StepShape shape_;
  const GraphMaker graphs_;
  const std::vector<kvp_layer> layers_;
  CacheStack* stack_ = nullptr;
  std::vector<bool> fused_;

  // Of the current forward.
  kvp_call call_{};
  std::vector<int64_t> row_seen_, row_pad_;
  at::Tensor cos_, sin_, temperature_;
  std::map<std::array<int64_t, 4>, at::Tensor> masks_;

  at::Tensor frequencies_;
  AttentionWatch watch_;
  // Of recorded steps.
  std::unique_ptr<StepGraph> graph_;
  uint64_t binding_ = 0;    // at the stack
  int64_t last_batch_ = 0;  // of the last step, if it could have been recorded
  at::Tensor numbers_, logits_;
};

}  // namespace

std::unique_ptr<Runner> make_device_runner(std::shared_ptr<const DeviceModel> model, const StepShape& shape,
                                           CacheStack* stack, GraphMaker graphs) {
  return std::make_unique<DeviceRunner>(std::move(model), shape, stack, std::move(graphs));
}

}  // namespace kvplug::model
