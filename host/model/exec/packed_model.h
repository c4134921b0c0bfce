// SPDX-License-Identifier: Apache-2.0
// A model ready to compute: all weights in the form their kernels read, in one piece of memory. q/k/v are one product,
// gate/up another. Immutable once loaded; shared by all sessions.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/exec/buffer.h"
#include "model/exec/linear.h"
#include "model/exec/type.h"
#include "model/exec/weights.h"
#include "model/executor.h"

namespace kvplug::model {

// Rows of one block under run.deterministic: every product has exactly that many, so that its kernel, and with it the
// order of every sum, is the same whatever else is in the batch or the prompt.
inline constexpr int64_t kFixedRows = 8;

struct Linear {
  int kind = 0;  // index in PackedModel::kinds
  const char* weight = nullptr;
  const char* bias = nullptr;  // [out], NULL = none
};

struct PackedExpert {
  Linear gate_up, down;
};

// Norm weights are what is multiplied by, in float32, and empty where the family has none.
struct PackedLayer {
  std::vector<float> input_norm, attention_out_norm, mlp_norm, mlp_out_norm;
  std::vector<float> q_norm, k_norm;
  Linear qkv, o, gate_up, down;
  Linear router;  // with experts
  std::vector<PackedExpert> experts;
};

class PackedModel {
 public:
  // Reads, converts and packs tensor by tensor; the checkpoint's pages are given back as it goes.
  PackedModel(const Description& description, const LoadOptions& options, const Progress& progress);

  const Description description;
  const LoadOptions options;
  const Type type;

  std::vector<std::unique_ptr<LinearKind>> kinds;
  std::vector<PackedLayer> layers;
  std::vector<float> final_norm, inverse_frequencies;
  Linear lm_head;

  const LinearKind& kind_at(const Linear& linear) const { return *kinds[static_cast<size_t>(linear.kind)]; }
  // Width of gate and up, or of an expert's.
  int64_t width_of(const Linear& down) const { return kind_at(down).shape().in; }
  const Embedding& embedding() const { return *embedding_; }
  bool deterministic() const { return options.deterministic; }
  uint64_t weight_bytes() const;

 private:
  // One product to be packed: the tensors whose rows it stacks, or one matrix of a stack of transposed ones.
  struct Plan {
    Linear* linear;
    std::vector<const TensorInfo*> weights, biases;
    int64_t matrix = -1;
  };
  std::vector<float> norm(const std::string& name) const;
  std::vector<Plan> plans_of(size_t layer);
  Plan plan(Linear& linear, const std::vector<std::string>& weights, const std::vector<std::string>& biases);
  Plan plan_matrix(Linear& linear, const std::string& stack, int64_t matrix);
  static uint64_t bytes_of(const Plan& plan);
  int kind_of(const LinearShape& shape);
  void pack(const Plan& plan, char* plain);
  // Rows [first, first + rows) of the product's matrix, plain.
  void read(const Plan& plan, int64_t first, int64_t rows, char* plain) const;

  Weights weights_;
  std::unique_ptr<Embedding> embedding_;
  Arena packed_;
};

}  // namespace kvplug::model
