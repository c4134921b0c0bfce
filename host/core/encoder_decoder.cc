// SPDX-License-Identifier: Apache-2.0
#include "core/encoder_decoder.h"

#include "core/cache_instance.h"
#include "core/error.h"
#include "core/kinds.h"

namespace kvplug {
namespace {

void check_kinds(const CacheStack& stack, bool cross) {
  for (size_t i = 0; i < stack.layers().size(); ++i) {
    const int32_t kind = stack.layers()[i].kind;
    if (kind == KVP_LAYER_NONE || (kind == KVP_LAYER_CROSS) == cross) continue;
    throw Error(Code::kInvalidArgument, std::string(cross ? "cross" : "self") + " side, layer " + std::to_string(i) +
                                            ": is of kind " + std::to_string(kind) +
                                            (cross ? ", expected CROSS" : ", expected another than CROSS"));
  }
}

}  // namespace

CacheChoice cross_choice(const CacheChoice& self) {
  CacheChoice choice;
  choice.kind = is_static(self.kind) ? "static" : "dynamic";
  return choice;
}

EncoderDecoderStack::EncoderDecoderStack(std::unique_ptr<CacheStack> self, std::unique_ptr<CacheStack> cross)
    : self_(std::move(self)), cross_(std::move(cross)) {
  check_kinds(*self_, false);
  check_kinds(*cross_, true);
}

bool EncoderDecoderStack::is_filled(int32_t layer) const {
  kvp_lengths lengths{};
  lengths.struct_size = sizeof lengths;
  cross_->lengths(layer, 0, lengths);
  return lengths.seen > 0;
}

template <class Op>
void EncoderDecoderStack::change_both(const kvp_call& call, Op op) {
  kvp_call check = call;
  check.flags |= KVP_CALL_CHECK;
  op(*self_, *cross_, check);
  if ((call.flags & KVP_CALL_CHECK) == 0) op(*self_, *cross_, call);
}

void EncoderDecoderStack::gather(const kvp_call& call, std::span<const int64_t> src_rows) {
  // A side without rows yet takes the batch from its first tokens.
  change_both(call, [&](CacheStack& self, CacheStack& cross, const kvp_call& how) {
    if (cross.batch() > 0) cross.gather(how, src_rows);
    if (self.batch() > 0) self.gather(how, src_rows);
  });
}

void EncoderDecoderStack::reserve(const kvp_call& call, int64_t batch, int64_t tokens, int64_t encoder_tokens) {
  change_both(call, [&](CacheStack& self, CacheStack& cross, const kvp_call& how) {
    cross.reserve(how, batch, encoder_tokens);
    self.reserve(how, batch, tokens);
  });
}

void EncoderDecoderStack::reset(const kvp_call& call) {
  self_->reset(call);
  cross_->reset(call);
}

std::unique_ptr<EncoderDecoderStack> EncoderDecoderStack::clone(const kvp_call& call) const {
  auto self = self_->clone(call);
  return std::make_unique<EncoderDecoderStack>(std::move(self), cross_->clone(call));
}

kvp_memory EncoderDecoderStack::memory() const {
  kvp_memory sum = self_->memory(-1);
  add_memory(sum, cross_->memory(-1));
  return sum;
}

}  // namespace kvplug
