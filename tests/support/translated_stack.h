// SPDX-License-Identifier: Apache-2.0
// A cache stack of plugins that are told of a device, for callers whose tensors lie in host memory: with plugins on the
// emulator both are the same memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/cache_stack.h"

namespace kvplug::testing {

class TranslatedStack final : public CacheStack {
 public:
  explicit TranslatedStack(std::unique_ptr<CacheStack> on_device) : to_(std::move(on_device)) {}

  int32_t layer_count() const override { return to_->layer_count(); }
  std::span<const kvp_layer> layers() const override { return to_->layers(); }
  int64_t batch() const override { return to_->batch(); }
  int64_t seen() const override { return to_->seen(); }
  const StackParams& params() const override { return to_->params(); }
  const std::vector<LayerPlacement>& placements() const override { return to_->placements(); }
  kvp_memory planned(std::span<const kvp_layer> layers, const StackParams& params, int64_t rows,
                     int64_t tokens) const override {
    return to_->planned(layers, params, rows, tokens);
  }
  std::string unprepared() const override { return to_->unprepared(); }
  void lengths(int32_t layer, int64_t query_len, kvp_lengths& out) override { to_->lengths(layer, query_len, out); }
  void update(const kvp_call& call, const kvp_update_args& args, kvp_tensor* view_k, kvp_tensor* view_v) override {
    const kvp_tensor k = there(*args.k), v = there(*args.v);
    kvp_update_args mine = args;
    mine.k = &k, mine.v = &v;
    to_->update(call, mine, view_k, view_v);
    for (kvp_tensor* view : {view_k, view_v}) {
      if (view != nullptr) view->device_type = KVP_DEVICE_CPU;
    }
  }
  bool can_attend(int32_t layer, const kvp_attend_desc& desc, std::string* reason) override {
    return to_->can_attend(layer, desc, reason);
  }
  void attend(const kvp_call& call, const kvp_attend_args& args, kvp_tensor& out, kvp_tensor* lse) override {
    const kvp_tensor q = there(*args.q), k = there(*args.k), v = there(*args.v);
    kvp_attend_args mine = args;
    mine.q = &q, mine.k = &k, mine.v = &v;
    kvp_tensor to = there(out);
    to_->attend(call, mine, to, lse);
  }
  void crop(const kvp_call& call, std::span<const int64_t> n_remove) override { to_->crop(call, n_remove); }
  void gather(const kvp_call& call, std::span<const int64_t> src_rows) override { to_->gather(call, src_rows); }
  void set_rollback(const kvp_call& call, int64_t max_tokens) override { to_->set_rollback(call, max_tokens); }
  void reserve(const kvp_call& call, int64_t rows, int64_t tokens) override { to_->reserve(call, rows, tokens); }
  void reset(const kvp_call& call) override { to_->reset(call); }
  std::unique_ptr<CacheStack> clone(const kvp_call& call) override {
    return std::make_unique<TranslatedStack>(to_->clone(call));
  }
  kvp_memory memory(int32_t layer) override { return to_->memory(layer); }
  nlohmann::json counters() override { return to_->counters(); }
  void begin_step(const kvp_call& call) override { to_->begin_step(call); }
  void end_step(const kvp_call& call) override { to_->end_step(call); }
  void abort_step(const kvp_call& call) noexcept override { to_->abort_step(call); }
  bool poisoned() const override { return to_->poisoned(); }
  std::string uncaptured() const override { return to_->uncaptured(); }
  uint64_t bind_capture(const kvp_call& call, int64_t query_len, const kvp_tensor& row_seen,
                        std::shared_ptr<const void> keep) override {
    return to_->bind_capture(call, query_len, there(row_seen), std::move(keep));
  }
  void advance_capture(int64_t n_tokens) override { to_->advance_capture(n_tokens); }
  uint64_t bound() const override { return to_->bound(); }
  void end_capture(const std::string& why) override { to_->end_capture(why); }

 private:
  kvp_tensor there(kvp_tensor t) const {
    t.device_type = to_->params().device_type;
    t.device_id = to_->params().device_id;
    return t;
  }
  const std::unique_ptr<CacheStack> to_;
};

}  // namespace kvplug::testing
