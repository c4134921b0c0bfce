// SPDX-License-Identifier: Apache-2.0
#include "model/exec/packed_model.h"

#include <algorithm>

#include "core/error.h"
#include "model/describe/rope.h"
#include "model/exec/kernels.h"
#include "model/exec/parallel.h"

namespace kvplug::model {
namespace {

// Elements that one thread reads and converts at a time.
constexpr int64_t kReadElements = 1 << 18;

std::vector<std::string> with_suffix(std::vector<std::string> prefixes, const char* suffix) {
  for (std::string& name : prefixes) name += suffix;
  return prefixes;
}

}  // namespace

PackedModel::PackedModel(const Description& described, const LoadOptions& given, const Progress& progress)
    : description(described), options(given), type(type_of(given.dtype)), weights_(description, given.mmap) {
  if (description.head_dim > kMaxHeadDim || description.head_dim % 2 != 0) {
    throw Error(Code::kModel, "head_dim " + std::to_string(description.head_dim) + " is not supported",
                "even numbers up to " + std::to_string(kMaxHeadDim) + " are", description.folder.string());
  }
  inverse_frequencies = model::inverse_frequencies(description.rope, description.head_dim);
  final_norm = weights_.vector(description.final_norm, type);
  embedding_ = std::make_unique<Embedding>(weights_, weights_.info(description.embed_tokens), type);

  std::vector<Plan> plans;
  const auto add = [&](Linear& linear, const std::vector<std::string>& prefixes, bool bias) {
    plans.push_back(plan(linear, with_suffix(prefixes, ".weight"),
                         bias ? with_suffix(prefixes, ".bias") : std::vector<std::string>()));
  };
  layers.resize(description.layers.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerNames& names = description.layers[i].names;
    PackedLayer& layer = layers[i];
    layer.input_norm = weights_.vector(names.input_norm, type);
    layer.post_attention_norm = weights_.vector(names.post_attention_norm, type);
    if (!names.q_norm.empty()) layer.q_norm = weights_.vector(names.q_norm, type);
    if (!names.k_norm.empty()) layer.k_norm = weights_.vector(names.k_norm, type);
    add(layer.qkv, {names.q, names.k, names.v}, description.qkv_bias);
    add(layer.o, {names.o}, description.o_bias);
    add(layer.gate_up, {names.gate, names.up}, description.mlp_bias);
    add(layer.down, {names.down}, description.mlp_bias);
  }
  plans.push_back(plan(lm_head, {description.lm_head}, {}));

  size_t bytes = 0, plain_bytes = 0;
  uint64_t total = 0, done = 0;
  for (const Plan& p : plans) {
    const LinearKind& kind = kind_at(*p.linear);
    bytes += Arena::round(kind.packed_bytes());
    if (!p.biases.empty()) bytes += Arena::round(static_cast<size_t>(kind.shape().out) * size_of(type));
    plain_bytes =
        std::max(plain_bytes,
                 static_cast<size_t>(std::min(kind.pack_rows(), kind.shape().out) * kind.shape().in) * size_of(type));
    for (const TensorInfo* tensor : p.weights) total += tensor->bytes;
  }
  packed_ = Arena(bytes, true);
  const Buffer plain(plain_bytes);
  for (const Plan& p : plans) {
    if (progress && !progress(done, total)) throw Error(Code::kCancelled, "loading the model was cancelled");
    pack(p, plain.data());
    for (const TensorInfo* tensor : p.weights) done += tensor->bytes;
  }
  weights_.expect_lookups(weights_.info(description.embed_tokens));
  if (progress) progress(done, total);
}

PackedModel::Plan PackedModel::plan(Linear& linear, const std::vector<std::string>& weights,
                                    const std::vector<std::string>& biases) {
  Plan plan{&linear, {}, {}};
  LinearShape shape{.in = 0, .out = 0, .bias = !biases.empty(), .type = type};
  for (const std::string& name : weights) {
    plan.weights.push_back(&weights_.info(name));
    shape.in = plan.weights.back()->shape.at(1);
    shape.out += plan.weights.back()->shape.at(0);
  }
  for (const std::string& name : biases) plan.biases.push_back(&weights_.info(name));
  linear.kind = kind_of(shape);
  return plan;
}

int PackedModel::kind_of(const LinearShape& shape) {
  const auto same = [&](const auto& kind) { return kind->shape() == shape; };
  const auto at = std::find_if(kinds.begin(), kinds.end(), same);
  const auto index = static_cast<int>(at - kinds.begin());
  if (at == kinds.end()) kinds.push_back(make_linear(shape, {.fixed_rows = deterministic() ? kFixedRows : 0}));
  return index;
}

void PackedModel::pack(const Plan& plan, char* plain) {
  const LinearKind& kind = kind_at(*plan.linear);
  const auto [in, out, bias, same_type] = kind.shape();
  char* weight = packed_.take(kind.packed_bytes());
  for (const TensorInfo* tensor : plan.weights) weights_.check(*tensor);
  for (int64_t first = 0; first < out; first += kind.pack_rows()) {
    const int64_t rows = std::min(kind.pack_rows(), out - first);
    // The parts of the stacked matrix that overlap these rows.
    int64_t top = 0;
    for (const TensorInfo* tensor : plan.weights) {
      const int64_t height = tensor->shape[0];
      const int64_t begin = std::max(first, top), end = std::min(first + rows, top + height);
      parallel_for(end - begin, std::max<int64_t>(1, kReadElements / in), [&](int64_t from, int64_t to) {
        weights_.read(*tensor, begin - top + from, to - from, type, offset(plain, (begin - first + from) * in, type));
      });
      if (begin < end) weights_.release(*tensor, begin - top, end - begin);
      top += height;
    }
    kind.pack(plain, first, rows, weight);
  }
  plan.linear->weight = weight;
  if (!bias) return;
  char* to = packed_.take(static_cast<size_t>(out) * size_of(type));
  plan.linear->bias = to;
  for (const TensorInfo* tensor : plan.biases) {
    weights_.read(*tensor, 0, tensor->shape[0], type, to);
    to = offset(to, tensor->shape[0], type);
  }
}

uint64_t PackedModel::weight_bytes() const {
  uint64_t bytes = packed_.size() + embedding_->bytes();
  for (const PackedLayer& layer : layers) {
    bytes +=
        4 * (layer.input_norm.size() + layer.post_attention_norm.size() + layer.q_norm.size() + layer.k_norm.size());
  }
  return bytes + 4 * final_norm.size();
}

}  // namespace kvplug::model
