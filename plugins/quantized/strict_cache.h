// SPDX-License-Identifier: Apache-2.0
// The cache kind "quantized", hf_compat = "strict": Hugging Face's QuantizedCache, for comparing with it. What a token
// becomes follows from how the tokens arrived, and everything is packed again and again; attention is over update's
// views. It does what the reference's layers do, and clone; gather does all that they mean to. Crop and rollback are
// refused, as nothing could be taken back exactly; emptying works.
#pragma once

#include "strict_layer.h"

namespace kvplug::quantized {

struct StrictForm {
  explicit StrictForm(const kvp_cache_create& create);

  // An upper bound: when tokens are packed depends on how they arrive.
  void plan(int64_t batch, int64_t tokens, kvp_memory& out) const;

  Options options;
  std::vector<StrictLayerForm> layers;
};

class StrictCache final {
 public:
  static void probe(const kvp_cache_create& create, kvp_cache_info& out);

  explicit StrictCache(const kvp_cache_create& create);
  StrictCache(const StrictCache& other, uint64_t owner);

  void lengths(int32_t layer, int64_t query_len, kvp_lengths& out) const;
  void update(const kvp_call& call, const kvp_update_args& args, kvp_tensor* out_k, kvp_tensor* out_v);
  void reset(const kvp_call& call);
  void gather(const kvp_call& call, const int64_t* src_rows, int64_t n);
  void crop(const kvp_call& call, const int64_t* n_remove, int64_t n);
  void set_rollback(const kvp_call& call, int64_t max_tokens);
  void reserve(const kvp_call& call, int64_t batch, int64_t tokens);
  void memory(int32_t layer, kvp_memory& out) const;
  size_t counters(kvp_counter* out, size_t room) const;
  void attend_probe(const kvp_attend_desc& desc) const;
  void attend(const kvp_call& call, const kvp_attend_args& args, kvp_tensor& out, kvp_tensor* lse);

 private:
  StrictLayer& layer_at(int32_t layer) const;
  bool empty() const noexcept;
  void set_batch(int64_t batch);
  // What a step cannot become in any layer, told before one has its tokens.
  void check_step(const StrictLayer& first, const sdk::Append& a) const;
  int64_t held_bytes() const noexcept;
  void note_peak(int64_t beside) noexcept { peak_ = std::max(peak_, held_bytes() + beside); }
  // Views of `slots` slots, with memory if `needed`.
  Whole make_views(const StrictLayer& layer, int64_t batch, int64_t slots, bool needed);

  StrictForm form_;
  uint64_t owner_;
  int64_t batch_ = 0;
  std::vector<std::unique_ptr<StrictLayer>> layers_;
  sdk::Block views_;
  int64_t peak_ = 0;
  uint64_t view_updates_ = 0;
};

}  // namespace kvplug::quantized
