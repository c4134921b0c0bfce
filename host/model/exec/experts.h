// SPDX-License-Identifier: Apache-2.0
// The routed experts of a layer. Each token goes to the experts with the highest router scores, its input scaled by the
// sigmoid of the score; tokens are grouped by expert, so that an expert's weights are read once for all of them.
#pragma once

#include <vector>

#include "model/exec/buffer.h"
#include "model/exec/kernels.h"
#include "model/exec/packed_model.h"
#include "model/exec/products.h"

namespace kvplug::model {

class Experts {
 public:
  // For calls of up to max_rows rows; the model outlives it. Takes all memory that add() needs, none for a model
  // without experts.
  Experts(const PackedModel& model, Products& products, int64_t max_rows);

  // delta += what the layer's experts make of x; both [rows, hidden]. Summed over experts in float32, in their order.
  void add(const PackedLayer& layer, const void* x, void* delta, int64_t rows);

  size_t scratch_bytes() const { return arena_.size(); }

 private:
  struct Choice {
    int32_t expert;
    float score;
  };
  struct Member {
    int32_t row;
    float score;
  };
  // scores_ -> choices_ of each row.
  void choose(int64_t rows);
  // choices_ -> members_, by expert and then by row; first_[e] is where expert e begins.
  void group(int64_t rows);
  // Adds what `expert` makes of its members to sums_.
  void run(const PackedExpert& expert, const Member* members, int64_t count, const void* x);

  const PackedModel& model_;
  Products& products_;
  const Type type_;
  const Kernels& kernels_;
  const int64_t hidden_, count_, per_token_, width_;
  Arena arena_;
  char* scores_ = nullptr;                                                              // [rows, experts]
  char *input_ = nullptr, *gate_up_ = nullptr, *activated_ = nullptr, *out_ = nullptr;  // a row a member
  float* sums_ = nullptr;                                                               // [rows, hidden]
  std::vector<float> row_scores_;                                                       // [experts]
  std::vector<Choice> choices_;                                                         // [rows, per token]
  std::vector<Member> members_;
  std::vector<size_t> first_;  // [experts + 1]
};

}  // namespace kvplug::model
