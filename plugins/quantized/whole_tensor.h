// SPDX-License-Identifier: Apache-2.0
// K or V of one layer packed whole, as hf_compat = "strict" has it: one quantizer call over all rows, heads and tokens.
// Packing again makes another WholeTensor; one that is kept is never written, so that a failure leaves the old one. The
// exception in kind are quantizers whose plan has a SHARED part (fp8): their scale is set by the first tokens and kept,
// later tokens are packed by it and none is packed again.
#pragma once

#include <kvplug/sdk/host.h>

#include "create.h"

namespace kvplug::quantized {

// Bytes of a plan's parts.
struct PartBytes {
  int64_t codes = 0, scales = 0;
  int64_t all() const noexcept { return codes + scales; }
};
PartBytes part_bytes(const kvp_qplan& plan) noexcept;
// Whether later tokens are packed beside those that are (a SHARED part).
bool appends(const kvp_qplan& plan) noexcept;

// What no tensor of up to so many tokens is beyond.
struct Bound {
  PartBytes bytes;
  int64_t workspace = 0;
  bool appends = false;
};

// A quantizer as strict mode calls it, for tensors [batch, heads, tokens, dim].
struct WholeQuantizer {
  kvp_qhandle handle{};
  int64_t heads = 0, dim = 0;

  // Throws what the quantizer answers, and INVALID_ARGUMENT for a plan that no whole tensor can be.
  kvp_qplan plan(int64_t batch, int64_t tokens) const;
  // Lengths that no groups fit are passed over. Throws what the quantizer answers if it packs no length.
  Bound bound(int64_t batch, int64_t tokens) const;
  // `in` into the parts. Workspace: as planned. Throws what the quantizer answers.
  void pack(const kvp_call& call, const kvp_tensor& in, uint32_t flags, const kvp_qplan& parts,
            std::byte* workspace) const;
  void unpack(const kvp_call& call, const kvp_qplan& parts, kvp_tensor out) const;
};

class WholeTensor {
 public:
  WholeTensor() = default;
  // Room for what is planned, all zero.
  WholeTensor(const kvp_qplan& plan, int64_t batch, int64_t tokens, uint64_t owner);
  WholeTensor copy(uint64_t owner) const;

  bool empty() const noexcept { return tokens_ == 0; }
  int64_t batch() const noexcept { return batch_; }
  int64_t tokens() const noexcept { return tokens_; }
  // The plan with its data.
  const kvp_qplan& parts() const noexcept { return plan_; }
  bool appends() const noexcept { return quantized::appends(plan_); }
  // The parts of row b's tokens from slot `first` on; appends() only.
  kvp_qplan slice(int64_t b, int64_t first, int64_t tokens) const noexcept;
  // Both appends() only: the shared parts of `from`; what its row holds, as far as there is room.
  void copy_shared(const WholeTensor& from) noexcept;
  void copy_row(int64_t b, const WholeTensor& from, int64_t row) noexcept;

  int64_t bytes() const noexcept { return static_cast<int64_t>(codes_.bytes() + scales_.bytes()); }
  void add_memory(kvp_memory& out) const noexcept;

 private:
  kvp_qplan plan_{};
  int64_t batch_ = 0, tokens_ = 0;
  sdk::Block codes_, scales_;
};

}  // namespace kvplug::quantized
