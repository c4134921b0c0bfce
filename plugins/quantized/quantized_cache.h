// SPDX-License-Identifier: Apache-2.0
// The cache kind "quantized", hf_compat = "fixed": which tokens of a row are packed follows from how many it has seen
// alone. Attention reads sinks, packed blocks and exact tokens as segments and merges them; what a call brings is
// attended to as it came and packed before the call returns.
#pragma once

#include "layer.h"

namespace kvplug::quantized {

class QuantizedCache final {
 public:
  static void probe(const kvp_cache_create& create, kvp_cache_info& out);
  static void plan(const kvp_cache_create& create, int64_t batch, int64_t tokens, kvp_memory& out) {
    Form(create).plan(batch, tokens, out);
  }

  explicit QuantizedCache(const kvp_cache_create& create);

  void lengths(int32_t layer, int64_t query_len, kvp_lengths& out) const;
  void update(const kvp_call& call, const kvp_update_args& args, kvp_tensor* out_k, kvp_tensor* out_v);
  void reset(const kvp_call& call);
  void gather(const kvp_call& call, const int64_t* src_rows, int64_t n);
  void crop(const kvp_call& call, const int64_t* n_remove, int64_t n);
  void set_rollback(const kvp_call& call, int64_t max_tokens);
  std::unique_ptr<QuantizedCache> clone(const kvp_call& call, uint64_t owner) const {
    return std::unique_ptr<QuantizedCache>(new QuantizedCache(*this, call, owner));
  }
  void reserve(const kvp_call& call, int64_t batch, int64_t tokens);
  void memory(int32_t layer, kvp_memory& out) const;
  size_t counters(kvp_counter* out, size_t room) const;
  void attend_probe(const kvp_attend_desc& desc) const;
  void attend(const kvp_call& call, const kvp_attend_args& args, kvp_tensor& out, kvp_tensor* lse);

 private:
  static constexpr int32_t kTiers[] = {KVP_TIER_DEVICE, KVP_TIER_HOST};
  struct Counts {
    uint64_t fused_attend_calls = 0, view_attend_calls = 0, view_updates = 0, dequantized_tokens = 0,
             requantized_tokens = 0, packed_tokens = 0, bytes_copied_on_write = 0;
  };
  // What quant-attend answered last for a layer.
  struct Fused {
    bool asked = false, serves = false;
    float softcap = 0;
    int64_t window = 0, chunk = 0, batch = 0;
  };
  struct Work;  // one attend under way

  QuantizedCache(const QuantizedCache& other, const kvp_call& call, uint64_t owner);
  Layer& layer_at(int32_t layer) const;
  bool empty() const noexcept;
  void set_batch(int64_t batch);
  void add_own_bytes(int64_t (&held)[KVP_N_TIERS]) const noexcept;  // without the layers'
  void note_peak() noexcept;
  void drop_call() noexcept;  // what one call alone needs
  void ensure_scratch(int64_t batch, bool may_allocate);
  void ensure_lists(int64_t batch, int64_t tokens, int64_t held, bool may_allocate);
  void prepare(Layer& layer, const sdk::Append& a, const kvp_call& call, int64_t view_bytes);
  void list_blocks(Layer& layer, const sdk::Append& a, const kvp_tensor* k, const kvp_tensor* v) noexcept;
  void finish(size_t index, const sdk::Append& a, const kvp_tensor& k, const kvp_tensor& v, const kvp_call& call,
              int64_t batch_before);
  // Blocks [from, from + tokens) of a page, whole ones, turned as they were packed; to [1, kv_heads, tokens, dim].
  void unpack(const Layer& layer, bool keys, PackedPage& page, int64_t from, int64_t tokens, const kvp_call& call,
              kvp_tensor& to) const;
  void write_views(size_t index, int64_t kv_len, int64_t kv_offset, const kvp_call& call, kvp_tensor& k, kvp_tensor& v);
  bool fused(const Layer& layer, size_t index, int64_t batch, float softcap, int64_t window, int64_t chunk);
  void attend_tile(Work& work, int64_t q0, int64_t n);
  void attend_fused(Work& work, int64_t q0, const kvp_tensor& q, kvp_tensor& out, kvp_tensor& lse);
  void attend_unpacked(Work& work, int64_t q0, const kvp_tensor& q, kvp_tensor& out, kvp_tensor& lse);
  std::byte* at(int64_t offset) const noexcept { return scratch_.data() + offset; }
  sdk::Block block(int32_t purpose, int64_t bytes) const { return sdk::Block(engine_->memory(owner_, purpose, bytes)); }
  const Lists& lists() const noexcept { return long_lists_.blocks.bytes() > 0 ? long_lists_ : lists_; }

  Form form_;
  uint64_t owner_;
  const std::shared_ptr<Engine> engine_;
  int64_t batch_ = 0;
  std::vector<std::unique_ptr<Layer>> layers_;
  sdk::Block scratch_;
  int64_t scratch_batch_ = 0;
  std::vector<Scratch> places_;              // of each layer, in scratch_
  Lists lists_, long_lists_;                 // rings and sinks, then the blocks of one page's unpacked tokens
  sdk::KvBlock* tile_ = nullptr;             // the latter
  sdk::Block page_list_, device_page_list_;  // kvp_qpage
  sdk::Block views_;
  std::vector<const sdk::KvBlock*> row_blocks_, sink_blocks_;
  std::vector<sdk::AttendRow> attend_rows_;
  std::vector<int64_t> positions_;
  std::vector<Fused> fused_;
  int64_t peak_[KVP_N_TIERS] = {};
  Counts counts_;
};

}  // namespace kvplug::quantized
