// SPDX-License-Identifier: Apache-2.0
#include "model/exec/products.h"

#include <algorithm>
#include <bit>

namespace kvplug::model {
namespace {

// Lengths kept beside those of prepare(): a full tile, its remainder, the rows of the last position.
constexpr int64_t kSets = 3;

}  // namespace

void Products::prepare(int64_t rows) {
  if (model_.deterministic()) rows = kFixedRows;
  set_for(rows).keep = true;
  for (const auto& layer : model_.layers) {
    for (const Linear* linear : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) product(*linear, rows);
    if (layer.experts.empty()) continue;
    product(layer.router, rows);
    for (int64_t some = 1; some <= padded(rows); some = padded(some + 1)) {
      const int64_t bound = model_.deterministic() ? kFixedRows : some;
      set_for(bound).keep = true;
      product(layer.experts[0].gate_up, bound);
      product(layer.experts[0].down, bound);
    }
  }
  product(model_.lm_head, rows);
}

int64_t Products::padded(int64_t rows) {
  const auto unit = static_cast<int64_t>(std::max<uint64_t>(1, std::bit_floor(static_cast<uint64_t>(rows)) / 4));
  return (rows + unit - 1) / unit * unit;
}

void Products::run_padded(const Linear& linear, const void* x, void* y, int64_t rows) {
  if (!model_.deterministic()) {
    rows = padded(rows);
    set_for(rows).keep = true;
  }
  run(linear, x, y, rows);
}

Products::Set& Products::set_for(int64_t rows) {
  ++clock_;
  for (Set& set : sets_) {
    if (set.rows != rows) continue;
    set.used = clock_;
    return set;
  }
  if (std::count_if(sets_.begin(), sets_.end(), [](const Set& set) { return !set.keep; }) >= kSets) {
    sets_.erase(std::min_element(sets_.begin(), sets_.end(), [](const Set& a, const Set& b) {
      return a.keep != b.keep ? b.keep : a.used < b.used;
    }));
  }
  Set set{.rows = rows, .used = clock_, .keep = false, .by_kind = {}};
  set.by_kind.resize(model_.kinds.size());
  return sets_.emplace_back(std::move(set));
}

Product& Products::product(const Linear& linear, int64_t rows) {
  auto& product = set_for(rows).by_kind[static_cast<size_t>(linear.kind)];
  if (!product) product = model_.kind_at(linear).product(rows, scratchpad_);
  return *product;
}

void Products::run(const Linear& linear, const void* x, void* y, int64_t rows) {
  if (!model_.deterministic()) {
    product(linear, rows).run(x, linear.weight, linear.bias, y);
    return;
  }
  const auto& shape = model_.kind_at(linear).shape();
  for (int64_t first = 0; first < rows; first += kFixedRows) {
    product(linear, kFixedRows)
        .run(offset(x, first * shape.in, shape.type), linear.weight, linear.bias,
             offset(y, first * shape.out, shape.type));
  }
}

}  // namespace kvplug::model
