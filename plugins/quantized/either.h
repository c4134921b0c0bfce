// SPDX-License-Identifier: Apache-2.0
// The kind "quantized" as the host sees it: one of the two modes that option hf_compat names.
#pragma once

#include "quantized_cache.h"
#include "strict_cache.h"

namespace kvplug::quantized {

class Either final {
 public:
  static void probe(const kvp_cache_create& create, kvp_cache_info& out) {
    return strict(create) ? StrictCache::probe(create, out) : QuantizedCache::probe(create, out);
  }
  static void plan(const kvp_cache_create& create, int64_t batch, int64_t tokens, kvp_memory& out) {
    return strict(create) ? StrictForm(create).plan(batch, tokens, out)
                          : QuantizedCache::plan(create, batch, tokens, out);
  }
  static const void* extension(std::string_view id) noexcept {
    return id == KVP_EXT_ATTEND ? sdk::CachePlugin<Either>::attend_extension() : nullptr;
  }

  explicit Either(const kvp_cache_create& create) {
    if (strict(create)) {
      strict_ = std::make_unique<StrictCache>(create);
    } else {
      fixed_ = std::make_unique<QuantizedCache>(create);
    }
  }

  void lengths(int32_t layer, int64_t query_len, kvp_lengths& out) const {
    on([&](auto& cache) { cache.lengths(layer, query_len, out); });
  }
  void update(const kvp_call& call, const kvp_update_args& args, kvp_tensor* out_k, kvp_tensor* out_v) {
    on([&](auto& cache) { cache.update(call, args, out_k, out_v); });
  }
  void reset(const kvp_call& call) {
    on([&](auto& cache) { cache.reset(call); });
  }
  void gather(const kvp_call& call, const int64_t* src_rows, int64_t n) {
    on([&](auto& cache) { cache.gather(call, src_rows, n); });
  }
  void crop(const kvp_call& call, const int64_t* n_remove, int64_t n) {
    on([&](auto& cache) { cache.crop(call, n_remove, n); });
  }
  void set_rollback(const kvp_call& call, int64_t max_tokens) {
    on([&](auto& cache) { cache.set_rollback(call, max_tokens); });
  }
  std::unique_ptr<Either> clone(const kvp_call& call, uint64_t owner) const {
    auto copy = std::unique_ptr<Either>(new Either);
    if (strict_) copy->strict_ = std::make_unique<StrictCache>(*strict_, owner);
    if (fixed_) copy->fixed_ = fixed_->clone(call, owner);
    return copy;
  }
  void reserve(const kvp_call& call, int64_t batch, int64_t tokens) {
    on([&](auto& cache) { cache.reserve(call, batch, tokens); });
  }
  void memory(int32_t layer, kvp_memory& out) const {
    on([&](auto& cache) { cache.memory(layer, out); });
  }
  size_t counters(kvp_counter* out, size_t room) const {
    return strict_ ? strict_->counters(out, room) : fixed_->counters(out, room);
  }
  void attend_probe(const kvp_attend_desc& desc) const {
    on([&](auto& cache) { cache.attend_probe(desc); });
  }
  void attend(const kvp_call& call, const kvp_attend_args& args, kvp_tensor& out, kvp_tensor* lse) {
    on([&](auto& cache) { cache.attend(call, args, out, lse); });
  }

 private:
  Either() = default;
  static bool strict(const kvp_cache_create& create) { return read_options(create).strict; }
  template <class Body>
  void on(const Body& body) const {
    if (strict_) {
      body(*strict_);
    } else {
      body(*fixed_);
    }
  }

  std::unique_ptr<StrictCache> strict_;
  std::unique_ptr<QuantizedCache> fixed_;
};

}  // namespace kvplug::quantized
