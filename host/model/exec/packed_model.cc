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
  final_norm = norm(description.final_norm);
  embedding_ = std::make_unique<Embedding>(weights_, weights_.info(description.embed_tokens), type);

  layers.resize(description.layers.size());
  std::vector<Plan> plans;
  for (size_t i = 0; i < layers.size(); ++i) {
    for (Plan& one : plans_of(i)) plans.push_back(std::move(one));
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
    total += bytes_of(p);
  }
  packed_ = Arena(bytes, true);
  const Buffer plain(plain_bytes);
  for (const Plan& p : plans) {
    if (progress && !progress(done, total)) throw Error(Code::kCancelled, "loading the model was cancelled");
    pack(p, plain.data());
    done += bytes_of(p);
  }
  weights_.expect_lookups(weights_.info(description.embed_tokens));
  if (progress) progress(done, total);
}

std::vector<float> PackedModel::norm(const std::string& name) const {
  if (name.empty()) return {};
  std::vector<float> out = weights_.vector(name, type);
  if (description.norm_adds_one) {
    for (float& weight : out) weight += 1.0f;
  }
  return out;
}

std::vector<PackedModel::Plan> PackedModel::plans_of(size_t index) {
  const LayerDescription& described = description.layers[index];
  const LayerNames& names = described.names;
  PackedLayer& layer = layers[index];
  layer.input_norm = norm(names.input_norm);
  layer.attention_out_norm = norm(names.attention_out_norm);
  layer.mlp_norm = norm(names.mlp_norm);
  layer.mlp_out_norm = norm(names.mlp_out_norm);
  layer.q_norm = norm(names.q_norm);
  layer.k_norm = norm(names.k_norm);
  std::vector<Plan> plans;
  const auto add = [&](Linear& linear, const std::vector<std::string>& prefixes, bool bias) {
    plans.push_back(plan(linear, with_suffix(prefixes, ".weight"),
                         bias ? with_suffix(prefixes, ".bias") : std::vector<std::string>()));
  };
  add(layer.qkv, {names.q, names.k, names.v}, description.qkv_bias);
  add(layer.o, {names.o}, description.o_bias);
  add(layer.gate_up, {names.gate, names.up}, description.mlp_bias);
  add(layer.down, {names.down}, description.mlp_bias);
  if (!described.has_experts()) return plans;
  add(layer.router, {names.router}, false);
  layer.experts.resize(static_cast<size_t>(description.experts));
  for (size_t i = 0; i < layer.experts.size(); ++i) {
    plans.push_back(plan_matrix(layer.experts[i].gate_up, names.experts_gate_up, static_cast<int64_t>(i)));
    plans.push_back(plan_matrix(layer.experts[i].down, names.experts_down, static_cast<int64_t>(i)));
  }
  return plans;
}

PackedModel::Plan PackedModel::plan(Linear& linear, const std::vector<std::string>& weights,
                                    const std::vector<std::string>& biases) {
  Plan plan{.linear = &linear, .weights = {}, .biases = {}};
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

PackedModel::Plan PackedModel::plan_matrix(Linear& linear, const std::string& stack, int64_t matrix) {
  const TensorInfo& tensor = weights_.info(stack);
  linear.kind = kind_of({.in = tensor.shape.at(1), .out = tensor.shape.at(2), .bias = false, .type = type});
  return {.linear = &linear, .weights = {&tensor}, .biases = {}, .matrix = matrix};
}

uint64_t PackedModel::bytes_of(const Plan& plan) {
  uint64_t bytes = 0;
  for (const TensorInfo* tensor : plan.weights) bytes += tensor->bytes;
  return plan.matrix < 0 ? bytes : bytes / static_cast<uint64_t>(plan.weights[0]->shape[0]);
}

int PackedModel::kind_of(const LinearShape& shape) {
  const auto same = [&](const auto& kind) { return kind->shape() == shape; };
  const auto at = std::find_if(kinds.begin(), kinds.end(), same);
  const auto index = static_cast<int>(at - kinds.begin());
  if (at == kinds.end()) kinds.push_back(make_linear(shape, {.fixed_rows = deterministic() ? kFixedRows : 0}));
  return index;
}

void PackedModel::read(const Plan& plan, int64_t first, int64_t rows, char* plain) const {
  const int64_t in = kind_at(*plan.linear).shape().in;
  const int64_t grain = std::max<int64_t>(1, kReadElements / in);
  if (plan.matrix >= 0) {
    constexpr int64_t kInputs = 64;  // whole cache lines of a row
    parallel_for(in, kInputs, [&](int64_t from, int64_t to) {
      weights_.read_transposed(*plan.weights[0], plan.matrix, from, to, first, rows, type, plain);
    });
    return;
  }
  // The parts of the stacked matrix that overlap these rows.
  int64_t top = 0;
  for (const TensorInfo* tensor : plan.weights) {
    const int64_t height = tensor->shape[0];
    const int64_t begin = std::max(first, top), end = std::min(first + rows, top + height);
    parallel_for(end - begin, grain, [&](int64_t from, int64_t to) {
      weights_.read(*tensor, begin - top + from, to - from, type, offset(plain, (begin - first + from) * in, type));
    });
    if (begin < end) weights_.release(*tensor, begin - top, end - begin);
    top += height;
  }
}

void PackedModel::pack(const Plan& plan, char* plain) {
  const LinearKind& kind = kind_at(*plan.linear);
  const int64_t out = kind.shape().out;
  char* weight = packed_.take(kind.packed_bytes());
  for (const TensorInfo* tensor : plan.weights) weights_.check(*tensor);
  for (int64_t first = 0; first < out; first += kind.pack_rows()) {
    const int64_t rows = std::min(kind.pack_rows(), out - first);
    read(plan, first, rows, plain);
    kind.pack(plain, first, rows, weight);
  }
  if (plan.matrix >= 0) weights_.release(*plan.weights[0], plan.matrix, 1);
  plan.linear->weight = weight;
  if (!kind.shape().bias) return;
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
    for (const auto* norm : {&layer.input_norm, &layer.attention_out_norm, &layer.mlp_norm, &layer.mlp_out_norm,
                             &layer.q_norm, &layer.k_norm}) {
      bytes += 4 * norm->size();
    }
  }
  return bytes + 4 * final_norm.size();
}

}  // namespace kvplug::model
