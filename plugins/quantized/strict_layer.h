// SPDX-License-Identifier: Apache-2.0
// One layer of a cache with hf_compat = "strict", on Hugging Face's schedule. Slots lie in two places:
//   packed    slots 0 .. P - 1 of all rows, K and V one WholeTensor each
//   residual  the slots after them, in the type of K and V
// The first tokens are packed whole. What comes later waits in the residual, until it and the new tokens are
// residual_length or more: then everything is unpacked, joined and packed again. What a call shows is what was there
// before it packed. With a quantizer that appends (fp8) there is no residual: new tokens are packed by the scale of the
// first ones and shown as they were packed. Padding is packed with the rest, as in Hugging Face, but shown as zeros.
//
// The reference's rows all have one length. Here, rows may be shorter: their slots after the end are blank (zero when
// they are packed). A row that goes on inside the packed slots makes the layer pack again.
//
// gather leaves the packed tensors as they are and remembers which of their rows each row is; the next packing has them
// in order. Every change takes its memory first, and a failure leaves the layer as it was.
#pragma once

#include <kvplug/sdk/pages.h>
#include <kvplug/sdk/rows.h>

#include "whole_tensor.h"

namespace kvplug::quantized {

struct StrictLayerForm {
  sdk::PageLayout layout;
  kvp_dtype dtype{};
  WholeQuantizer k, v;
};

// Dense [batch, kv_heads, tokens, dim] tensors of all that a layer holds.
struct Whole {
  kvp_tensor k{}, v{};
};

class StrictLayer {
 public:
  struct Counts {
    uint64_t packed = 0, requantized = 0, dequantized = 0;  // tokens
  };
  // What the rows become, made first and then taken over.
  struct Gathered {
    sdk::Rows rows;
    std::vector<int64_t> source;
    sdk::Block residual;
  };

  StrictLayer(const StrictLayerForm& form, int64_t residual_length, uint64_t owner)
      : form_(form), residual_length_(residual_length), owner_(owner) {}
  StrictLayer(const StrictLayer& other, uint64_t owner);
  StrictLayer& operator=(const StrictLayer&) = delete;

  const StrictLayerForm& form() const noexcept { return form_; }
  const sdk::Rows& rows() const noexcept { return rows_; }
  // `batch` empty rows, and no memory held. Allocates only beyond the largest batch so far.
  void start(int64_t batch);

  // Whether an append needs all there is side by side, shown or not.
  bool packs(const sdk::Append& a) const noexcept;
  // Throws what a quantizer answers if it cannot pack the tokens that an append would have it pack.
  void check_length(const sdk::Append& a) const;
  // Appends. `whole`: rows().longest() + a.tokens slots, without data where not packs(a) and nobody looks; shows them
  // all afterwards. Returns the most bytes that were held beside the layer and `whole`. Throws what the quantizers
  // answer.
  int64_t append(const sdk::Append& a, const kvp_tensor& k, const kvp_tensor& v, const kvp_call& call,
                 const Whole& whole);
  // Shows what there is, rows().longest() slots. Returns bytes as append() does.
  int64_t show(const kvp_call& call, const Whole& whole);

  Gathered prepare_gather(const int64_t* src_rows, int64_t n) const;
  void gather(Gathered&& to, const int64_t* src_rows) noexcept;

  void add_memory(kvp_memory& out) const noexcept;
  int64_t held_bytes() const noexcept {
    return packed_.k.bytes() + packed_.v.bytes() + static_cast<int64_t>(residual_.bytes());
  }
  const Counts& counts() const noexcept { return counts_; }

  // Tokens that the residual has room for while `tokens` of them wait.
  static int64_t residual_room(int64_t tokens, int64_t residual_length) noexcept;

 private:
  struct Packed {
    WholeTensor k, v;
    std::vector<int64_t> source;  // row of the tensors that each row is; -1: none

    Packed() = default;
    Packed(const StrictLayerForm& form, int64_t batch, int64_t tokens, uint64_t owner);
    int64_t tokens() const noexcept { return k.tokens(); }
  };

  int64_t new_longest(const sdk::Append& a) const noexcept;
  kvp_tensor residual(bool keys) const noexcept;  // [batch, kv_heads, room_, dim]
  Packed pack_whole(const kvp_call& call, const Whole& whole, int64_t tokens, int64_t& beside) const;
  Packed pack_new(const sdk::Append& a, const kvp_tensor& k, const kvp_tensor& v, const kvp_call& call, int64_t tokens,
                  int64_t& beside) const;
  int64_t show_packed(const kvp_call& call, const Packed& packed, const Whole& whole) const;
  int64_t show_stored(const kvp_call& call, const Whole& whole) const;
  int64_t ensure_residual(int64_t tokens);
  // Padding and the slots that rows do not have: zero.
  void blank(const Whole& whole) const noexcept;

  const StrictLayerForm form_;
  const int64_t residual_length_;
  const uint64_t owner_;
  sdk::Rows rows_;
  Packed packed_;
  sdk::Block residual_;             // K [batch, kv_heads, room_, key_dim], then V
  int64_t room_ = 0, waiting_ = 0;  // tokens
  Counts counts_;
};

}  // namespace kvplug::quantized
