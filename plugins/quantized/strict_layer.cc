// SPDX-License-Identifier: Apache-2.0
#include "strict_layer.h"

#include <kvplug/sdk/tensor.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace kvplug::quantized {
namespace {

using sdk::Append;
using sdk::Block;

constexpr int64_t kLeastRoom = 16;

Block workspace(uint64_t owner, uint64_t a, uint64_t b) {
  const uint64_t bytes = std::max(a, b);
  return bytes == 0 ? Block() : Block(sdk::host_memory(owner, KVP_PURPOSE_SCRATCH, bytes));
}

int64_t bytes_of(const kvp_tensor& t) {
  return t.shape[0] * t.shape[1] * t.shape[2] * t.shape[3] * sdk::element_bytes(sdk::dtype_of(t));
}

kvp_tensor first_tokens(kvp_tensor t, int64_t tokens) {
  t.shape[2] = tokens;
  return t;
}

// `count` tokens of one row of `from`, from token `first` on, to the slots of `to` from `slot` on.
void copy_tokens(const kvp_tensor& from, int64_t row, int64_t first, int64_t count, const kvp_tensor& to, int64_t b,
                 int64_t slot) {
  const auto bytes = static_cast<size_t>(to.shape[3] * sdk::element_bytes(sdk::dtype_of(to)));
  for (int64_t head = 0; head < to.shape[1]; ++head) {
    for (int64_t i = 0; i < count; ++i) {
      std::memcpy(sdk::at(to, b, head, slot + i), sdk::at(from, row, head, first + i), bytes);
    }
  }
}

void zero_tokens(const kvp_tensor& t, int64_t b, int64_t slot, int64_t count) {
  const auto bytes = static_cast<size_t>(t.shape[3] * sdk::element_bytes(sdk::dtype_of(t)));
  for (int64_t head = 0; head < t.shape[1]; ++head) {
    for (int64_t i = 0; i < count; ++i) std::memset(sdk::at(t, b, head, slot + i), 0, bytes);
  }
}

}  // namespace

StrictLayer::Packed::Packed(const StrictLayerForm& form, int64_t batch, int64_t tokens, uint64_t owner)
    : k(form.k.plan(batch, tokens), batch, tokens, owner),
      v(form.v.plan(batch, tokens), batch, tokens, owner),
      source(static_cast<size_t>(batch)) {
  std::iota(source.begin(), source.end(), int64_t{0});
}

StrictLayer::StrictLayer(const StrictLayer& other, uint64_t owner)
    : form_(other.form_), residual_length_(other.residual_length_), owner_(owner), rows_(other.rows_) {
  packed_.k = other.packed_.k.copy(owner);
  packed_.v = other.packed_.v.copy(owner);
  packed_.source = other.packed_.source;
  if (other.waiting_ == 0) return;
  residual_ = Block(sdk::host_memory(owner, KVP_PURPOSE_RESIDUAL, other.residual_.bytes()));
  std::memcpy(residual_.data(), other.residual_.data(), residual_.bytes());
  room_ = other.room_;
  waiting_ = other.waiting_;
}

void StrictLayer::start(int64_t batch) {
  rows_.start(batch);
  packed_.k = WholeTensor();
  packed_.v = WholeTensor();
  packed_.source.clear();
  residual_ = Block();
  room_ = waiting_ = 0;
}

int64_t StrictLayer::residual_room(int64_t tokens, int64_t residual_length) noexcept {
  if (tokens <= 0) return 0;
  int64_t room = kLeastRoom;
  while (room < tokens) room *= 2;
  return std::max(tokens, std::min(room, residual_length - 1));
}

kvp_tensor StrictLayer::residual(bool keys) const noexcept {
  const sdk::PageLayout& p = form_.layout;
  const int64_t values_at = keys ? 0 : rows_.batch() * p.kv_heads * room_ * p.key_dim * p.element;
  std::byte* const data = residual_.data() == nullptr ? nullptr : residual_.data() + values_at;
  return sdk::dense_tensor(data, form_.dtype, {rows_.batch(), p.kv_heads, room_, keys ? p.key_dim : p.value_dim});
}

int64_t StrictLayer::new_longest(const Append& a) const noexcept {
  int64_t most = 0;
  for (int64_t b = 0; b < a.batch; ++b) most = std::max(most, rows_[b].seen + a.taken(b));
  return most;
}

bool StrictLayer::packs(const Append& a) const noexcept {
  if (packed_.k.empty()) return new_longest(a) > 0;
  if (packed_.k.appends()) return false;
  if (rows_.longest() - packed_.tokens() + a.tokens >= residual_length_) return true;
  for (int64_t b = 0; b < a.batch; ++b) {
    if (a.taken(b) > 0 && rows_[b].seen < packed_.tokens()) return true;
  }
  return false;
}

void StrictLayer::check_length(const Append& a) const {
  if (!packs(a) && !packed_.k.appends()) return;
  const int64_t longest = new_longest(a);
  form_.k.plan(a.batch, longest);
  form_.v.plan(a.batch, longest);
}

int64_t StrictLayer::append(const Append& a, const kvp_tensor& k, const kvp_tensor& v, const kvp_call& call,
                            const Whole& whole) {
  const int64_t longest = new_longest(a), waits = longest - packed_.tokens();
  const bool shows = whole.k.data != nullptr, whole_again = packs(a), appends = packed_.k.appends();
  Counts counts = counts_;
  const auto add = [&](uint64_t& to, int64_t tokens) { to += static_cast<uint64_t>(a.batch * tokens); };
  int64_t beside = 0;
  Packed fresh;
  if (appends) {
    fresh = pack_new(a, k, v, call, longest, beside);
    add(counts.packed, a.tokens);
    if (shows) {
      beside += show_packed(call, fresh, whole);
      add(counts.dequantized, longest);
    }
  } else if (shows) {
    beside = show_stored(call, whole);
    add(counts.dequantized, packed_.tokens());
    for (int64_t b = 0; b < a.batch; ++b) {
      copy_tokens(k, b, 0, a.taken(b), whole.k, b, rows_[b].seen);
      copy_tokens(v, b, 0, a.taken(b), whole.v, b, rows_[b].seen);
    }
  }
  if (whole_again) {
    // What was unpacked beyond a row's end, or lies there since a gather, is no part of what is packed.
    for (int64_t b = 0; b < a.batch; ++b) {
      const int64_t end = rows_[b].seen + a.taken(b);
      zero_tokens(whole.k, b, end, longest - end);
      zero_tokens(whole.v, b, end, longest - end);
    }
    fresh = pack_whole(call, whole, longest, beside);
    add(counts.packed, longest);
    add(counts.requantized, std::min(packed_.tokens(), longest));
  } else if (!appends) {
    beside += ensure_residual(waits);
  }

  // Nothing fails from here on.
  if (whole_again || appends) {
    packed_ = std::move(fresh);
    waiting_ = 0;
  } else {
    const kvp_tensor to_k = residual(true), to_v = residual(false);
    for (int64_t b = 0; b < a.batch; ++b) {
      const int64_t slot = rows_[b].seen - packed_.tokens();
      zero_tokens(to_k, b, waiting_, waits - waiting_);
      zero_tokens(to_v, b, waiting_, waits - waiting_);
      copy_tokens(k, b, 0, a.taken(b), to_k, b, slot);
      copy_tokens(v, b, 0, a.taken(b), to_v, b, slot);
    }
    waiting_ = std::max<int64_t>(0, waits);
  }
  rows_.append(a);
  counts_ = counts;
  if (shows) blank(whole);
  return beside;
}

int64_t StrictLayer::show(const kvp_call& call, const Whole& whole) {
  const int64_t beside = show_stored(call, whole);
  counts_.dequantized += static_cast<uint64_t>(rows_.batch() * packed_.tokens());
  blank(whole);
  return beside;
}

StrictLayer::Packed StrictLayer::pack_whole(const kvp_call& call, const Whole& whole, int64_t tokens,
                                            int64_t& beside) const {
  Packed fresh(form_, rows_.batch(), tokens, owner_);
  const Block work = workspace(owner_, fresh.k.parts().workspace_bytes, fresh.v.parts().workspace_bytes);
  form_.k.pack(call, first_tokens(whole.k, tokens), 0, fresh.k.parts(), work.data());
  form_.v.pack(call, first_tokens(whole.v, tokens), 0, fresh.v.parts(), work.data());
  beside = std::max(beside, fresh.k.bytes() + fresh.v.bytes() + static_cast<int64_t>(work.bytes()));
  return fresh;
}

StrictLayer::Packed StrictLayer::pack_new(const Append& a, const kvp_tensor& k, const kvp_tensor& v,
                                          const kvp_call& call, int64_t tokens, int64_t& beside) const {
  Packed fresh(form_, a.batch, tokens, owner_);
  const Block work =
      workspace(owner_, form_.k.plan(1, a.tokens).workspace_bytes, form_.v.plan(1, a.tokens).workspace_bytes);
  beside = fresh.k.bytes() + fresh.v.bytes() + static_cast<int64_t>(work.bytes());
  for (const bool keys : {true, false}) {
    const WholeTensor& old = keys ? packed_.k : packed_.v;
    WholeTensor& to = keys ? fresh.k : fresh.v;
    const WholeQuantizer& quantizer = keys ? form_.k : form_.v;
    to.copy_shared(old);
    for (int64_t b = 0; b < a.batch; ++b) {
      if (packed_.source[static_cast<size_t>(b)] >= 0) to.copy_row(b, old, packed_.source[static_cast<size_t>(b)]);
      if (a.taken(b) == 0) continue;
      kvp_tensor in = first_tokens(keys ? k : v, a.taken(b));
      in.data = sdk::at(in, b);
      in.shape[0] = 1;
      quantizer.pack(call, in, KVP_Q_KEEP_SCALE, to.slice(b, rows_[b].seen, a.taken(b)), work.data());
    }
  }
  return fresh;
}

// What is packed, into the front of `whole`, which is blank behind it. Returns the bytes that it takes for a while.
int64_t StrictLayer::show_packed(const kvp_call& call, const Packed& packed, const Whole& whole) const {
  int64_t beside = 0;
  for (const bool keys : {true, false}) {
    const kvp_tensor& to = keys ? whole.k : whole.v;
    const WholeTensor& from = keys ? packed.k : packed.v;
    const WholeQuantizer& quantizer = keys ? form_.k : form_.v;
    const auto batch = static_cast<int64_t>(packed.source.size()), tokens = from.tokens();
    std::memset(to.data, 0, static_cast<size_t>(bytes_of(to)));
    if (from.empty()) continue;
    bool in_place = batch == from.batch() && tokens <= to.shape[2];
    for (int64_t b = 0; in_place && b < batch; ++b) in_place = packed.source[static_cast<size_t>(b)] == b;
    if (in_place) {
      quantizer.unpack(call, from.parts(), first_tokens(to, tokens));
      continue;
    }
    kvp_tensor rows = sdk::dense_tensor(nullptr, form_.dtype, {from.batch(), to.shape[1], tokens, to.shape[3]});
    const Block room(sdk::host_memory(owner_, KVP_PURPOSE_SCRATCH, static_cast<uint64_t>(bytes_of(rows))));
    rows.data = room.data();
    quantizer.unpack(call, from.parts(), rows);
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t row = packed.source[static_cast<size_t>(b)];
      if (row >= 0) copy_tokens(rows, row, 0, std::min(tokens, to.shape[2]), to, b, 0);
    }
    beside = std::max(beside, bytes_of(rows));
  }
  return beside;
}

int64_t StrictLayer::show_stored(const kvp_call& call, const Whole& whole) const {
  const int64_t beside = show_packed(call, packed_, whole);
  const kvp_tensor from_k = residual(true), from_v = residual(false);
  for (int64_t b = 0; b < rows_.batch(); ++b) {
    copy_tokens(from_k, b, 0, waiting_, whole.k, b, packed_.tokens());
    copy_tokens(from_v, b, 0, waiting_, whole.v, b, packed_.tokens());
  }
  return beside;
}

// Room for `tokens` that wait. Returns the bytes of a larger residual, 0 if there was room.
int64_t StrictLayer::ensure_residual(int64_t tokens) {
  if (tokens <= room_) return 0;
  const int64_t room = residual_room(tokens, residual_length_);
  const kvp_tensor old_k = residual(true), old_v = residual(false);
  const int64_t bytes = rows_.batch() * room * form_.layout.token_bytes();
  Block larger(sdk::host_memory(owner_, KVP_PURPOSE_RESIDUAL, static_cast<uint64_t>(bytes)));
  std::swap(larger, residual_);
  room_ = room;
  const kvp_tensor to_k = residual(true), to_v = residual(false);
  for (int64_t b = 0; b < rows_.batch(); ++b) {
    copy_tokens(old_k, b, 0, waiting_, to_k, b, 0);
    copy_tokens(old_v, b, 0, waiting_, to_v, b, 0);
  }
  return bytes;
}

void StrictLayer::blank(const Whole& whole) const noexcept {
  const int64_t slots = whole.k.shape[2];
  for (int64_t b = 0; b < rows_.batch(); ++b) {
    const sdk::Rows::Row row = rows_[b];
    for (const kvp_tensor& t : {whole.k, whole.v}) {
      zero_tokens(t, b, 0, std::min(row.pad, slots));
      zero_tokens(t, b, row.seen, slots - row.seen);
    }
  }
}

StrictLayer::Gathered StrictLayer::prepare_gather(const int64_t* src_rows, int64_t n) const {
  Gathered to;
  to.rows = rows_.gathered(src_rows, n);
  const auto batch = static_cast<int64_t>(packed_.source.size());
  for (int64_t i = 0; i < n; ++i) {
    const int64_t from = src_rows[i];
    to.source.push_back(from >= 0 && from < batch ? packed_.source[static_cast<size_t>(from)] : -1);
  }
  if (waiting_ == 0) return to;
  const int64_t bytes = n * room_ * form_.layout.token_bytes();
  to.residual = Block(sdk::host_memory(owner_, KVP_PURPOSE_RESIDUAL, static_cast<uint64_t>(bytes)));
  return to;
}

void StrictLayer::gather(Gathered&& to, const int64_t* src_rows) noexcept {
  const kvp_tensor old_k = residual(true), old_v = residual(false);
  rows_ = std::move(to.rows);
  packed_.source = std::move(to.source);
  std::swap(residual_, to.residual);  // the old one lives until the end
  waiting_ = std::clamp<int64_t>(rows_.longest() - packed_.tokens(), 0, waiting_);
  if (residual_.data() == nullptr) room_ = 0;
  const kvp_tensor to_k = residual(true), to_v = residual(false);
  for (int64_t b = 0; b < rows_.batch(); ++b) {
    zero_tokens(to_k, b, 0, waiting_);
    zero_tokens(to_v, b, 0, waiting_);
    if (src_rows[b] < 0) continue;
    copy_tokens(old_k, src_rows[b], 0, waiting_, to_k, b, 0);
    copy_tokens(old_v, src_rows[b], 0, waiting_, to_v, b, 0);
  }
  if (rows_.longest() == 0) start(rows_.batch());
}

void StrictLayer::add_memory(kvp_memory& out) const noexcept {
  packed_.k.add_memory(out);
  packed_.v.add_memory(out);
  const int64_t waiting = rows_.batch() * waiting_ * form_.layout.token_bytes();
  out.reserved[KVP_TIER_HOST][KVP_PURPOSE_RESIDUAL] += residual_.bytes();
  out.used[KVP_TIER_HOST][KVP_PURPOSE_RESIDUAL] += static_cast<uint64_t>(waiting);
  for (int64_t b = 0; b < rows_.batch(); ++b) {
    out.unquantized += static_cast<uint64_t>(rows_[b].stored() * form_.layout.token_bytes());
  }
}

}  // namespace kvplug::quantized
