// SPDX-License-Identifier: Apache-2.0
// The cache of an encoder-decoder model: two stacks side by side, each of its own kind. Self attention grows with the
// decoder's tokens; the cross side holds the encoder's output, filled once. Batch operations go to both, crop to the
// self side alone; both are asked before either changes. One thread at a time.
#pragma once

#include <memory>
#include <span>

#include "core/cache_stack.h"

namespace kvplug {

// The kind of the cross side where nobody names one, as in Transformers: static beside static kinds, of the encoder's
// length, else dynamic. Never offloaded: every step of every layer reads all of it.
CacheChoice cross_choice(const CacheChoice& self);

class EncoderDecoderStack {
 public:
  // Either side may hold tokens already. Throws kInvalidArgument unless every cross layer is of kind CROSS, and no self
  // layer is.
  EncoderDecoderStack(std::unique_ptr<CacheStack> self, std::unique_ptr<CacheStack> cross);

  CacheStack& self() const { return *self_; }
  CacheStack& cross() const { return *cross_; }
  // The cross side of this layer is filled: later steps attend to it without K and V.
  bool is_filled(int32_t layer) const;

  void crop(const kvp_call& call, std::span<const int64_t> n_remove) { self_->crop(call, n_remove); }
  void gather(const kvp_call& call, std::span<const int64_t> src_rows);
  void reset(const kvp_call& call);
  void reserve(const kvp_call& call, int64_t batch, int64_t tokens, int64_t encoder_tokens);
  std::unique_ptr<EncoderDecoderStack> clone(const kvp_call& call) const;
  kvp_memory memory() const;

 private:
  // Asks both sides, then changes both.
  template <class Op>
  void change_both(const kvp_call& call, Op op);

  std::unique_ptr<CacheStack> self_, cross_;
};

}  // namespace kvplug
