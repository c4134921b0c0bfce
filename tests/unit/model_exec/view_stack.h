// SPDX-License-Identifier: Apache-2.0
// The plainest cache stack for tests of the executor: float storage that is copied at every update, views only, no
// plugin. Can be told to fail at a layer.
#pragma once

#include <cstring>
#include <map>
#include <stdexcept>
#include <vector>

#include "core/cache_stack.h"
#include "core/error.h"

namespace kvplug::testing {

class ViewStack final : public CacheStack {
 public:
  explicit ViewStack(std::vector<kvp_layer> layers) : layers_(std::move(layers)), stored_(layers_.size()) {}

  int fail_at_layer = -1;
  int begun = 0, ended = 0, aborted = 0;

  int32_t layer_count() const override { return static_cast<int32_t>(layers_.size()); }
  std::span<const kvp_layer> layers() const override { return layers_; }
  int64_t batch() const override { return stored_[0].batch; }
  int64_t seen() const override { return stored_[0].tokens; }
  const StackParams& params() const override { return params_; }
  const std::vector<LayerPlacement>& placements() const override { return placements_; }
  kvp_memory planned(std::span<const kvp_layer>, const StackParams&, int64_t, int64_t) const override { return {}; }
  std::string unprepared() const override { return "it gives views"; }

  void lengths(int32_t layer, int64_t query_len, kvp_lengths& out) override {
    const Layer& at = stored_[static_cast<size_t>(layer)];
    out.seen = at.tokens;
    out.max = -1;
    out.kv_len = at.tokens + query_len;
    out.kv_offset = 0;
    for (size_t b = 0; out.row_seen != nullptr && b < out.n_rows; ++b) {
      out.row_seen[b] = b < at.row_seen.size() ? at.row_seen[b] : 0;
      out.row_pad[b] = b < at.row_pad.size() ? at.row_pad[b] : 0;
    }
  }

  void update(const kvp_call&, const kvp_update_args& args, kvp_tensor* view_k, kvp_tensor* view_v) override {
    if (args.layer == fail_at_layer) throw Error(Code::kOutOfMemory, "told to fail");
    Layer& at = stored_[static_cast<size_t>(args.layer)];
    const int64_t batch = args.k->shape[0], fresh = args.k->shape[2];
    at.batch = batch;
    at.row_seen.resize(static_cast<size_t>(batch));
    at.row_pad.resize(static_cast<size_t>(batch));
    for (int which = 0; which < 2; ++which) {
      const kvp_tensor& from = which == 0 ? *args.k : *args.v;
      const int64_t heads = from.shape[1], dim = from.shape[3], total = at.tokens + fresh, size = from.dtype_bits / 8;
      std::vector<char> grown(static_cast<size_t>(batch * heads * total * dim * size));
      for (int64_t b = 0; b < batch; ++b) {
        for (int64_t h = 0; h < heads; ++h) {
          char* to = grown.data() + (b * heads + h) * total * dim * size;
          const auto bytes = static_cast<size_t>(at.tokens * dim * size);
          if (bytes > 0) std::memcpy(to, at.data[which].data() + (b * heads + h) * at.tokens * dim * size, bytes);
          // Rows are ragged: new tokens go behind the row's own, not behind the longest.
          for (int64_t i = 0; i < fresh; ++i) {
            std::memcpy(to + (at.row_seen[static_cast<size_t>(b)] + i) * dim * size,
                        static_cast<const char*>(from.data) +
                            (b * from.strides[0] + h * from.strides[1] + i * from.strides[2]) * size,
                        static_cast<size_t>(dim * size));
          }
        }
      }
      at.data[which] = std::move(grown);
      kvp_tensor& view = which == 0 ? *view_k : *view_v;
      view = from;
      view.data = at.data[which].data();
      view.shape[2] = total;
      view.strides[0] = heads * total * dim, view.strides[1] = total * dim, view.strides[2] = dim;
    }
    for (size_t b = 0; b < static_cast<size_t>(batch); ++b) {
      at.row_seen[b] += args.count != nullptr ? args.count[b] : fresh;
      if (args.pad != nullptr) at.row_pad[b] += args.pad[b];
    }
    at.tokens += fresh;
  }

  bool can_attend(int32_t, const kvp_attend_desc&, std::string*) override { return false; }
  void attend(const kvp_call&, const kvp_attend_args&, kvp_tensor&, kvp_tensor*) override {
    throw std::logic_error("attend");
  }
  void crop(const kvp_call&, std::span<const int64_t>) override { throw std::logic_error("crop"); }
  void gather(const kvp_call&, std::span<const int64_t>) override { throw std::logic_error("gather"); }
  void set_rollback(const kvp_call&, int64_t) override {}
  void reserve(const kvp_call&, int64_t, int64_t) override {}
  void reset(const kvp_call&) override { stored_.assign(layers_.size(), {}); }
  std::unique_ptr<CacheStack> clone(const kvp_call&) override { throw std::logic_error("clone"); }
  kvp_memory memory(int32_t) override { return {}; }
  nlohmann::json counters() override { return {}; }
  void begin_step(const kvp_call&) override {
    ++begun;
    before_ = stored_;
  }
  void end_step(const kvp_call&) override { ++ended; }
  void abort_step(const kvp_call&) noexcept override {
    ++aborted;
    stored_ = before_;
  }
  bool poisoned() const override { return false; }

 private:
  struct Layer {
    int64_t batch = 0, tokens = 0;
    std::vector<int64_t> row_seen, row_pad;
    std::vector<char> data[2];
  };
  std::vector<kvp_layer> layers_;
  std::vector<Layer> stored_, before_;
  StackParams params_;
  std::vector<LayerPlacement> placements_;
};

}  // namespace kvplug::testing
