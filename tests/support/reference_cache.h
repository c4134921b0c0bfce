// SPDX-License-Identifier: Apache-2.0
// The plain cache that plugins are held against: float32, one list of slots a row, concatenate and index. It keeps what
// the contract says and nothing else, in the dullest way.
//
// Nothing is ever deleted but by crop: what a window layer drops stays in the list, and `kept` says from which slot on
// it may still be read. What a call drops it drops at its end: until settle() one reads what the last call could see.
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
    int64_t kept = 0;      // first slot that is not dropped
    int64_t readable = 0;  // as kept, before the last append
    int64_t seen() const { return static_cast<int64_t>(slots.size()); }
    int64_t pad() const {
      return std::count_if(slots.begin(), slots.end(), [](const Slot& s) { return s.padding; });
    }
  };
  struct Layer {
    int64_t kv_heads, key_dim, value_dim;
    std::vector<Row> rows;
    int32_t kind = KVP_LAYER_FULL;
    int64_t window = 0;

    bool windowed() const { return kind == KVP_LAYER_SLIDING || kind == KVP_LAYER_CHUNKED; }
    bool cross() const { return kind == KVP_LAYER_CROSS; }
  };

  explicit ReferenceCache(std::vector<Layer> layers) : layers_(std::move(layers)) {}

  const Layer& layer(size_t i) const { return layers_[i]; }
  size_t n_layers() const { return layers_.size(); }
  int64_t batch() const { return static_cast<int64_t>(layers_[0].rows.size()); }
  bool empty() const {
    return std::all_of(layers_.begin(), layers_.end(), [](const Layer& l) { return longest(l) == 0; });
  }
  int64_t longest(size_t i) const { return longest(layers_[i]); }

  // The first column of the views of the next call: what the row with the oldest past still needs.
  int64_t kv_offset(size_t i) const {
    const Layer& l = layers_[i];
    if (!l.windowed() || l.rows.empty()) return 0;
    int64_t shortest = longest(l);
    for (const Row& row : l.rows) shortest = std::min(shortest, row.seen());
    return std::max<int64_t>(0, shortest - l.window + 1);
  }
  int64_t kv_len(size_t i, int64_t query_len) const { return longest(i) + query_len - kv_offset(i); }

  // Tokens that are stored: neither padding nor dropped.
  int64_t stored(size_t i) const {
    int64_t n = 0;
    for (const Row& row : layers_[i].rows) n += std::max<int64_t>(0, row.seen() - std::max(row.pad(), row.kept));
    return n;
  }

  void append(size_t i, const Values& k, const Values& v, const int64_t* pad, const int64_t* count) {
    const int64_t batch = k.t.shape[0], tokens = k.t.shape[2];
    if (empty()) {
      for (Layer& l : layers_) l.rows.assign(static_cast<size_t>(batch), Row{});
    }
    Layer& l = layers_[i];
    for (int64_t b = 0; b < batch; ++b) {
      Row& row = l.rows[static_cast<size_t>(b)];
      for (int64_t n = 0; n < (count == nullptr ? tokens : count[b]); ++n) {
        Slot slot;
        slot.padding = pad != nullptr && n < pad[b];
        for (int64_t h = 0; h < l.kv_heads; ++h) {
          for (int64_t d = 0; d < l.key_dim; ++d) slot.k.push_back(k.get(b, h, n, d));
          for (int64_t d = 0; d < l.value_dim; ++d) slot.v.push_back(v.get(b, h, n, d));
        }
        row.slots.push_back(std::move(slot));
      }
      row.readable = row.kept;
      if (count == nullptr || count[b] > 0) drop(l, row, rollback_);
    }
  }

  // The end of a call.
  void settle() {
    for (Layer& l : layers_) {
      for (Row& row : l.rows) row.readable = row.kept;
    }
  }

  int64_t rollback() const { return rollback_; }
  void set_rollback(int64_t n) {
    settle();
    rollback_ = n;
  }

  // What slot s of a view shows: NULL or zero where nothing is to be seen.
  const float* k(size_t i, int64_t b, int64_t h, int64_t s) const {
    const Slot* slot = find(i, b, s);
    return slot == nullptr ? nullptr : slot->k.data() + h * layers_[i].key_dim;
  }
  const float* v(size_t i, int64_t b, int64_t h, int64_t s) const {
    const Slot* slot = find(i, b, s);
    return slot == nullptr ? nullptr : slot->v.data() + h * layers_[i].value_dim;
  }
  float k(size_t i, int64_t b, int64_t h, int64_t s, int64_t d) const {
    const float* at = k(i, b, h, s);
    return at == nullptr ? 0 : at[d];
  }
  float v(size_t i, int64_t b, int64_t h, int64_t s, int64_t d) const {
    const float* at = v(i, b, h, s);
    return at == nullptr ? 0 : at[d];
  }

  // Whether crop is legal: what the next query of every row needs must still be kept.
  bool can_crop(const std::vector<int64_t>& n_remove) const {
    for (size_t b = 0; b < static_cast<size_t>(batch()); ++b) {
      const int64_t keep = kept_by_crop(b, n_remove);
      for (const Layer& l : layers_) {
        const Row& row = l.rows[b];
        if (!l.windowed() || keep >= row.seen()) continue;
        const int64_t needed = std::max(row.pad(), keep - l.window + 1);
        if (needed < keep && row.kept > needed) return false;
      }
    }
    return true;
  }

  // Counted from the layer that is furthest. A crop of nothing ends what was recorded so far.
  void crop(const std::vector<int64_t>& n_remove) {
    settle();
    const bool nothing = std::all_of(n_remove.begin(), n_remove.end(), [](int64_t n) { return n == 0; });
    for (size_t b = 0; b < static_cast<size_t>(batch()); ++b) {
      const int64_t keep = kept_by_crop(b, n_remove);
      for (Layer& l : layers_) {
        if (l.cross()) continue;
        Row& row = l.rows[b];
        row.slots.resize(std::min(row.slots.size(), static_cast<size_t>(keep)));
        row.kept = std::min(row.kept, row.seen());
        if (nothing) drop(l, row, 0);
        row.readable = row.kept;
      }
    }
  }

  void gather(const std::vector<int64_t>& src_rows) {
    settle();
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
  static void drop(const Layer& l, Row& row, int64_t rollback) {
    if (l.windowed()) row.kept = std::max(row.kept, row.seen() - (l.window - 1) - std::min(rollback, row.seen()));
  }
  int64_t kept_by_crop(size_t b, const std::vector<int64_t>& n_remove) const {
    int64_t furthest = 0;
    for (const Layer& l : layers_) furthest = std::max(furthest, l.cross() ? 0 : l.rows[b].seen());
    return std::max<int64_t>(0, furthest - n_remove[n_remove.size() == 1 ? 0 : b]);
  }
  const Slot* find(size_t i, int64_t b, int64_t s) const {
    const Row& row = layers_[i].rows[static_cast<size_t>(b)];
    if (s < row.readable || s >= row.seen() || row.slots[static_cast<size_t>(s)].padding) return nullptr;
    return &row.slots[static_cast<size_t>(s)];
  }

  std::vector<Layer> layers_;
  int64_t rollback_ = 0;
};

}  // namespace kvplug::test
