// SPDX-License-Identifier: Apache-2.0
#include "model/exec/device_model.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "core/error.h"
#include "model/describe/rope.h"
#include "model/exec/weights.h"

namespace kvplug::model {
namespace {

at::ScalarType scalar_of(Type type) {
  return type == Type::kFloat32 ? at::kFloat : type == Type::kBFloat16 ? at::kBFloat16 : at::kHalf;
}

}  // namespace

DeviceModel::DeviceModel(const Description& described, const LoadOptions& given, const at::Device& where,
                         const Progress& progress)
    : description(described), options(given), type(type_of(given.dtype)), device(where) {
  inverse_frequencies = model::inverse_frequencies(description.rope, description.head_dim);
  const Weights weights(description, given.mmap);
  const uint64_t total = model::weight_bytes(description, given.dtype);
  const auto load = [&](const std::string& name) {
    if (name.empty()) return at::Tensor();
    const TensorInfo& info = weights.info(name);
    weights.check(info);
    if (progress && !progress(std::min(bytes_, total), total)) {
      throw Error(Code::kCancelled, "loading the model was cancelled");
    }
    at::Tensor host = at::empty(info.shape, at::TensorOptions().dtype(scalar_of(type)));
    weights.read(info, 0, info.shape[0], type, host.data_ptr());
    weights.release(info, 0, info.shape[0]);
    bytes_ += host.nbytes();
    return host.to(device);
  };
  const auto linear = [&](const std::string& prefix, bool bias) {
    if (prefix.empty()) return DeviceLinear();
    return DeviceLinear{load(prefix + ".weight"), bias ? load(prefix + ".bias") : at::Tensor()};
  };
  embedding = load(description.embed_tokens);
  for (const LayerDescription& layer : description.layers) {
    const LayerNames& names = layer.names;
    DeviceLayer& to = layers.emplace_back();
    to.input_norm = load(names.input_norm);
    to.attention_out_norm = load(names.attention_out_norm);
    to.mlp_norm = load(names.mlp_norm);
    to.mlp_out_norm = load(names.mlp_out_norm);
    to.q_norm = load(names.q_norm);
    to.k_norm = load(names.k_norm);
    to.q = linear(names.q, description.qkv_bias);
    to.k = linear(names.k, description.qkv_bias);
    to.v = linear(names.v, description.qkv_bias);
    to.o = linear(names.o, description.o_bias);
    to.gate = linear(names.gate, description.mlp_bias);
    to.up = linear(names.up, description.mlp_bias);
    to.down = linear(names.down, description.mlp_bias);
    if (!layer.has_experts()) continue;
    to.router = load(names.router + ".weight");
    to.experts_gate_up = load(names.experts_gate_up);
    to.experts_down = load(names.experts_down);
  }
  final_norm = load(description.final_norm);
  lm_head = description.lm_head == description.embed_tokens ? embedding : load(description.lm_head);
  if (progress) progress(total, total);
}

}  // namespace kvplug::model
