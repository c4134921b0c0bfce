// SPDX-License-Identifier: Apache-2.0
// The plain cache that plugins are held against: float32, one list of slots a row, concatenate and index. It keeps what
// the contract says and nothing else, in the dullest way.
#pragma once

#include <algorithm>
#include <vector>

#include "values.h"

namespace kvplug::test {

class ReferenceCache {
 public:
  struct Slot {
    bool padding = false;
    std::vector<float> k, v;  // [kv_heads * dim]
  };
  struct Row {
    std::vector<Slot> slots;
    int64_t seen() const { return static_cast<int64_t>(slots.size()); }
    int64_t pad() const {
      return std::count_if(slots.begin(), slots.end(), [](const Slot& s) { return s.padding; });
    }
  };
  struct Layer {
    int64_t kv_heads, key_dim, value_dim;
    std::vector<Row> rows;
  };

  explicit ReferenceCache(std::vector<Layer> layers) : layers_(std::move(layers)) {}

  const Layer& layer(size_t i) const { return layers_[i]; }
  size_t n_layers() const { return layers_.size(); }
  int64_t batch() const { return static_cast<int64_t>(layers_[0].rows.size()); }
  bool empty() const {
    return std::all_of(layers_.begin(), layers_.end(), [](const Layer& l) { return longest(l) == 0; });
  }
  int64_t longest(size_t i) const { return longest(layers_[i]); }

  void append(size_t i, const Values& k, const Values& v, const int64_t* pad, const int64_t* count) {
    const int64_t batch = k.t.shape[0], tokens = k.t.shape[2];
    if (empty()) {
      for (Layer& l : layers_) l.rows.assign(static_cast<size_t>(batch), Row{});
    }
    Layer& l = layers_[i];
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t n = 0; n < (count == nullptr ? tokens : count[b]); ++n) {
        Slot slot;
        slot.padding = pad != nullptr && n < pad[b];
        for (int64_t h = 0; h < l.kv_heads; ++h) {
          for (int64_t d = 0; d < l.key_dim; ++d) slot.k.push_back(k.get(b, h, n, d));
          for (int64_t d = 0; d < l.value_dim; ++d) slot.v.push_back(v.get(b, h, n, d));
        }
        l.rows[static_cast<size_t>(b)].slots.push_back(std::move(slot));
      }
    }
  }

  // What slot s of a view shows; zero where nothing is to be seen.
  float k(size_t i, int64_t b, int64_t h, int64_t s, int64_t d) const {
    const Slot* slot = find(i, b, s);
    return slot == nullptr ? 0 : slot->k[static_cast<size_t>(h * layers_[i].key_dim + d)];
  }
  float v(size_t i, int64_t b, int64_t h, int64_t s, int64_t d) const {
    const Slot* slot = find(i, b, s);
    return slot == nullptr ? 0 : slot->v[static_cast<size_t>(h * layers_[i].value_dim + d)];
  }

  // Counted from the layer that is furthest.
  void crop(const std::vector<int64_t>& n_remove) {
    for (size_t b = 0; b < static_cast<size_t>(batch()); ++b) {
      int64_t furthest = 0;
      for (const Layer& l : layers_) furthest = std::max(furthest, l.rows[b].seen());
      const int64_t keep = std::max<int64_t>(0, furthest - n_remove[n_remove.size() == 1 ? 0 : b]);
      for (Layer& l : layers_) {
        std::vector<Slot>& slots = l.rows[b].slots;
        slots.resize(std::min(slots.size(), static_cast<size_t>(keep)));
      }
    }
  }

  void gather(const std::vector<int64_t>& src_rows) {
    for (Layer& l : layers_) {
      std::vector<Row> next;
      for (int64_t src : src_rows) next.push_back(src < 0 ? Row{} : l.rows[static_cast<size_t>(src)]);
      l.rows = std::move(next);
    }
  }

  void reset() {
    for (Layer& l : layers_) l.rows.clear();
  }

 private:
  static int64_t longest(const Layer& l) {
    int64_t most = 0;
    for (const Row& row : l.rows) most = std::max(most, row.seen());
    return most;
  }
  const Slot* find(size_t i, int64_t b, int64_t s) const {
    const Row& row = layers_[i].rows[static_cast<size_t>(b)];
    if (s >= row.seen() || row.slots[static_cast<size_t>(s)].padding) return nullptr;
    return &row.slots[static_cast<size_t>(s)];
  }

  std::vector<Layer> layers_;
};

}  // namespace kvplug::test
