// SPDX-License-Identifier: Apache-2.0
#include "model/exec/experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/exec/parallel.h"

namespace kvplug::model {
namespace {

int64_t whole_blocks(int64_t rows) { return (rows + kFixedRows - 1) / kFixedRows * kFixedRows; }

}  // namespace

Experts::Experts(const PackedModel& model, Products& products, int64_t max_rows)
    : model_(model),
      products_(products),
      type_(model.type),
      kernels_(kernels(type_)),
      hidden_(model.description.hidden_size),
      count_(model.description.experts),
      per_token_(model.description.experts_per_token),
      width_(model.description.expert_size) {
  if (count_ == 0) return;
  const int64_t rows = whole_blocks(max_rows), members = whole_blocks(Products::padded(rows));
  const size_t element = size_of(type_);
  const auto bytes = [&](int64_t n, int64_t width, size_t size) {
    return Arena::round(static_cast<size_t>(n * width) * size);
  };
  const size_t pieces[] = {bytes(rows, count_, element),        bytes(members, hidden_, element),
                           bytes(members, 2 * width_, element), bytes(members, width_, element),
                           bytes(members, hidden_, element),    bytes(rows, hidden_, sizeof(float))};
  size_t total = 0;
  for (const size_t piece : pieces) total += piece;
  arena_ = Arena(total);
  scores_ = arena_.take(pieces[0]);
  input_ = arena_.take(pieces[1]);
  gate_up_ = arena_.take(pieces[2]);
  activated_ = arena_.take(pieces[3]);
  out_ = arena_.take(pieces[4]);
  sums_ = reinterpret_cast<float*>(arena_.take(pieces[5]));
  row_scores_.resize(static_cast<size_t>(count_));
  choices_.resize(static_cast<size_t>(rows * per_token_));
  members_.resize(choices_.size());
  first_.resize(static_cast<size_t>(count_) + 1);
}

void Experts::add(const PackedLayer& layer, const void* x, void* delta, int64_t rows) {
  products_.run(layer.router, x, scores_, rows);
  choose(rows);
  group(rows);
  std::memset(sums_, 0, static_cast<size_t>(rows * hidden_) * sizeof(float));
  for (size_t e = 0; e < layer.experts.size(); ++e) {
    const size_t begin = first_[e], end = first_[e + 1];
    if (begin < end) run(layer.experts[e], members_.data() + begin, static_cast<int64_t>(end - begin), x);
  }
  parallel_for(rows, row_grain(hidden_), [&](int64_t begin, int64_t end) {
    kernels_.add_sum(offset(delta, begin * hidden_, type_), sums_ + begin * hidden_, (end - begin) * hidden_);
  });
}

void Experts::choose(int64_t rows) {
  for (int64_t r = 0; r < rows; ++r) {
    kernels_.to_float(offset(scores_, r * count_, type_), row_scores_.data(), count_);
    Choice* const chosen = choices_.data() + r * per_token_;
    for (int64_t k = 0; k < per_token_; ++k) {
      int32_t best = -1;
      for (int32_t e = 0; e < count_; ++e) {
        const float score = row_scores_[static_cast<size_t>(e)];
        if (best >= 0 && !(score > row_scores_[static_cast<size_t>(best)])) continue;
        if (std::none_of(chosen, chosen + k, [e](const Choice& c) { return c.expert == e; })) best = e;
      }
      // In double, so that rounding alone decides the last bit.
      const auto score = static_cast<double>(row_scores_[static_cast<size_t>(best)]);
      chosen[k] = {best, static_cast<float>(1.0 / (1.0 + std::exp(-score)))};
    }
    for (int64_t k = 0; k < per_token_; ++k) {
      char rounded[sizeof(float)];
      kernels_.from_float(&chosen[k].score, rounded, 1);
      kernels_.to_float(rounded, &chosen[k].score, 1);
    }
  }
}

void Experts::group(int64_t rows) {
  std::fill(first_.begin(), first_.end(), 0);
  const auto chosen = static_cast<size_t>(rows * per_token_);
  for (size_t i = 0; i < chosen; ++i) ++first_[static_cast<size_t>(choices_[i].expert) + 1];
  for (size_t e = 1; e < first_.size(); ++e) first_[e] += first_[e - 1];
  for (size_t i = 0; i < chosen; ++i) {
    const auto row = static_cast<int32_t>(i / static_cast<size_t>(per_token_));
    members_[first_[static_cast<size_t>(choices_[i].expert)]++] = {row, choices_[i].score};
  }
  // Every entry has moved to where the next expert begins.
  std::copy_backward(first_.begin(), first_.end() - 1, first_.end());
  first_[0] = 0;
}

void Experts::run(const PackedExpert& expert, const Member* members, int64_t count, const void* x) {
  parallel_for(count, row_grain(hidden_), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      kernels_.scale(offset(x, members[i].row * hidden_, type_), members[i].score, offset(input_, i * hidden_, type_),
                     hidden_);
    }
  });
  products_.run_padded(expert.gate_up, input_, gate_up_, count);
  const auto activate = model_.description.hidden_act == "silu" ? kernels_.silu_mul : kernels_.gelu_mul;
  parallel_for(count, row_grain(2 * width_), [&](int64_t begin, int64_t end) {
    activate(offset(gate_up_, begin * 2 * width_, type_), offset(activated_, begin * width_, type_), end - begin,
             width_);
  });
  products_.run_padded(expert.down, activated_, out_, count);
  parallel_for(count, row_grain(hidden_), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      kernels_.accumulate(sums_ + members[i].row * hidden_, offset(out_, i * hidden_, type_), hidden_);
    }
  });
}

}  // namespace kvplug::model
