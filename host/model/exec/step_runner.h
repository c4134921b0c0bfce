// SPDX-License-Identifier: Apache-2.0
// One forward pass of a decoder as its description says. Token by token everything but attention is independent, so the
// products and the small operations run over tiles of rows that fit the caches; attention sees all rows of a step.
//
// Between two operations values are in the model's type, rounded where Transformers rounds them. After prepare, a
// decode step takes no memory of its own.
#pragma once

#include <memory>

#include "model/exec/attention.h"
#include "model/exec/experts.h"
#include "model/exec/kernels.h"
#include "model/exec/packed_model.h"
#include "model/exec/products.h"

namespace kvplug::model {

class StepRunner final : public Runner {
 public:
  StepRunner(std::shared_ptr<const PackedModel> model, const StepShape& shape, CacheStack* stack);

  void forward(const ForwardInput& input, CacheStack* stack, float* logits) override;
  void forward_all(const ForwardInput& input, CacheStack* stack, float* logits) override;
  void watch_attention(AttentionWatch watch) override { watch_ = std::move(watch); }
  uint64_t scratch_bytes() const override;

 private:
  enum class Logits { kLast, kAll };
  void step(const ForwardInput& input, CacheStack* stack, Logits which, float* logits);
  // Returns the rows of hidden_ that hold the final norm's output.
  int64_t layers(const ForwardInput& input, CacheStack* stack, Logits which);
  void embed(const ForwardInput& input);
  void rotary_tables(int64_t rows);
  // What queries of layers without rope are multiplied by.
  void temperatures(int64_t rows);
  // normed_ -> q, k, v of rows [first, first + rows), rotated.
  void project(size_t layer, int64_t first, int64_t rows);
  void rotate(size_t layer, char* qkv, int64_t first, int64_t rows);
  // normed_ -> delta_
  void mlp(const PackedLayer& weights, int64_t rows);
  // Attention's output to the next layer's q, k, v, or through the final norm.
  void rest_of_layer(size_t layer, int64_t first, int64_t rows);
  // Moves each row's last token that counts to the front.
  void keep_last(const ForwardInput& input);
  // delta_ in place, where the family has such a norm
  void norm_delta(const std::vector<float>& weight, int64_t rows);
  void add_norm(int64_t first, int64_t rows, const std::vector<float>& weight, void* to);
  void write_logits(int64_t rows, float* logits);

  const std::shared_ptr<const PackedModel> model_;
  const StepShape shape_;
  const Type type_;
  const Kernels& kernels_;
  const int64_t hidden_size_, q_width_, kv_width_, qkv_width_;
  const float eps_;
  // The family's choice among the kernels.
  decltype(Kernels::rms_norm) const rms_norm_;
  decltype(Kernels::add_rms_norm) const add_rms_norm_;
  decltype(Kernels::silu_mul) const activate_;
  int64_t tile_, logit_rows_;

  Products products_;
  Attention attention_;
  std::unique_ptr<Experts> experts_;
  AttentionWatch watch_;
  Arena arena_;
  char *hidden_, *qkv_, *attended_;                // a row a token of the step
  char *normed_, *delta_, *gate_up_, *activated_;  // a row a token of the tile
  char* logits_;                                   // [logit_rows_, vocab]
  int64_t *positions_, *slots_;
  float *cos_, *sin_;    // [tokens, head_dim / 2]
  float* temperatures_;  // [tokens]
  float embedding_scale_;
};

}  // namespace kvplug::model
