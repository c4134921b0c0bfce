// SPDX-License-Identifier: Apache-2.0
// What a quantized cache takes and gives back: room for a call before anything is changed, and what is held.
#include "quantized_cache.h"

namespace kvplug::quantized {
namespace {

using sdk::Append;
using sdk::Block;
using sdk::fail;
using sdk::may_allocate;
using sdk::unsigned_of;
constexpr auto kBlock = static_cast<int64_t>(sizeof(sdk::KvBlock));

}  // namespace

void QuantizedCache::add_own_bytes(int64_t (&held)[KVP_N_TIERS]) const noexcept {
  const auto add = [&](int32_t tier, const Block& block) { held[tier] += static_cast<int64_t>(block.bytes()); };
  for (const Block* each : {&lists_.blocks, &long_lists_.blocks, &page_list_}) add(KVP_TIER_HOST, *each);
  for (const Block* each : {&lists_.on_device, &long_lists_.on_device, &device_page_list_}) add(KVP_TIER_DEVICE, *each);
  for (const Block* each : {&scratch_, &views_}) add(engine_->tier(), *each);
}

void QuantizedCache::note_peak() noexcept {
  int64_t held[KVP_N_TIERS] = {};
  add_own_bytes(held);
  for (const auto& layer : layers_) layer->add_held_bytes(held);
  for (const int32_t tier : kTiers) peak_[tier] = std::max(peak_[tier], held[tier]);
}

void QuantizedCache::drop_call() noexcept {
  long_lists_ = Lists();
  tile_ = nullptr;
}

void QuantizedCache::ensure_scratch(int64_t batch, bool may_allocate) {
  if (batch <= scratch_batch_) return;
  if (!may_allocate) {
    fail(KVP_INVALID_STATE, "a prepared call must not allocate, but attend has no scratch for ", batch,
         " rows: reserve first");
  }
  std::vector<Scratch> places;
  for (const auto& layer : layers_) places.push_back(form_.scratch(layer->form(), batch, *engine_));
  int64_t bytes = 0;
  for (const Scratch& place : places) bytes = std::max(bytes, place.bytes);
  scratch_batch_ = 0;
  scratch_ = Block();
  scratch_ = block(KVP_PURPOSE_SCRATCH, bytes);
  places_ = std::move(places);
  scratch_batch_ = batch;
}

// held: pages that a row has beyond what the formula says: packed before a rollback was asked for.
void QuantizedCache::ensure_lists(int64_t batch, int64_t tokens, int64_t held, bool may_allocate) {
  const int64_t list = batch * (form_.list_columns(tokens) + form_.sink_columns(tokens)) + form_.most_tile_blocks();
  const int64_t columns = std::max(form_.page_columns(tokens), sdk::PagedLayer::columns(held));
  const int64_t pages = batch * columns * static_cast<int64_t>(sizeof(kvp_qpage));
  const bool on_device = engine_->on_device();
  const int64_t device_list = on_device ? Form::device_list_bytes(batch, list) : 0,
                device_pages = on_device ? pages : 0;
  const auto lacks = [](const Block& block, int64_t bytes) { return bytes > static_cast<int64_t>(block.bytes()); };
  const bool grows = lacks(lists_.blocks, list * kBlock) || lacks(page_list_, pages) ||
                     lacks(lists_.on_device, device_list) || lacks(device_page_list_, device_pages);
  if (!grows) return;
  if (!may_allocate) {
    fail(KVP_INVALID_STATE, "a prepared call must not allocate, but the lists of blocks have no room for ", batch,
         " rows of ", tokens, " tokens: reserve first");
  }
  const auto grow = [&](Block& to, int64_t bytes, const kvp_mem& mem) {
    if (!lacks(to, bytes)) return;
    to = Block();
    to = Block(mem);
  };
  const auto host = [&](int64_t bytes) { return sdk::host_memory(owner_, KVP_PURPOSE_OTHER, unsigned_of(bytes)); };
  grow(lists_.blocks, list * kBlock, host(list * kBlock));
  grow(page_list_, pages, host(pages));
  grow(lists_.on_device, device_list, engine_->memory(owner_, KVP_PURPOSE_OTHER, device_list));
  grow(device_page_list_, device_pages, engine_->memory(owner_, KVP_PURPOSE_OTHER, device_pages));
}

void QuantizedCache::prepare(Layer& layer, const Append& a, const kvp_call& call, int64_t view_bytes) {
  const int64_t before = batch_;
  sdk::change_batch(before, a.batch, empty(), [&](int64_t batch) { set_batch(batch); });
  const bool allowed = may_allocate(call);
  views_ = Block();
  const auto held_here = [&] {
    int64_t held[KVP_N_TIERS] = {};
    add_own_bytes(held);
    layer.add_held_bytes(held);
    return held[KVP_TIER_DEVICE] + held[KVP_TIER_HOST];
  };
  const int64_t held_before = held_here();
  try {
    layer.rows().check_append(a);
    ensure_scratch(a.batch, allowed);
    layer.prepare_append(form_, a, allowed);
    int64_t longest = 0, entries = 0, held = 0;
    for (int64_t b = 0; b < a.batch; ++b) {
      held = std::max(held, layer.pages_of(b));
      const int64_t stored = layer.rows()[b].stored() + a.stored(b);
      longest = std::max(longest, stored);
      entries += layer.exact().block_count(b, a) + form_.sink_columns(stored);
    }
    ensure_lists(a.batch, longest, held, allowed);
    entries += form_.most_tile_blocks();
    const int64_t on_device = engine_->on_device() ? Form::device_list_bytes(a.batch, entries) : 0;
    if (entries * kBlock > static_cast<int64_t>(lists_.blocks.bytes()) ||
        on_device > static_cast<int64_t>(lists_.on_device.bytes())) {
      if (!allowed) fail(KVP_INVALID_STATE, "a prepared call must not allocate, but ", a.tokens, " tokens need a list");
      long_lists_.blocks = Block(sdk::host_memory(owner_, KVP_PURPOSE_SCRATCH, unsigned_of(entries * kBlock)));
      if (on_device > 0) long_lists_.on_device = block(KVP_PURPOSE_SCRATCH, on_device);
    }
    if (view_bytes > 0) {
      if (!allowed) {
        fail(KVP_INVALID_STATE, "a prepared call must not allocate, but views of K and V need ", view_bytes, " bytes");
      }
      views_ = block(KVP_PURPOSE_SCRATCH, view_bytes);
    }
    if (held_here() > held_before) note_peak();
  } catch (...) {
    drop_call();
    views_ = Block();
    layer.trim(form_);
    if (batch_ != before) set_batch(before);
    throw;
  }
}

void QuantizedCache::reserve(const kvp_call& call, int64_t batch, int64_t tokens) {
  sdk::check_reserve(batch, tokens);
  if (sdk::check_only(call)) return;
  if (!may_allocate(call)) fail(KVP_INVALID_STATE, "reserve must allocate, but the call forbids it");
  if (batch == 0 || tokens == 0) return;
  engine_->start(call);
  ensure_scratch(batch, true);
  ensure_lists(batch, tokens, 0, true);
  try {
    for (const auto& layer : layers_) layer->reserve(form_, batch, tokens);
    engine_->check();
  } catch (...) {
    for (const auto& layer : layers_) layer->trim(form_);
    throw;
  }
  note_peak();
}

void QuantizedCache::memory(int32_t layer, kvp_memory& out) const {
  int64_t tables = 0, plain = 0;
  const auto count = [&](const Layer& at) {
    at.add_memory(out);
    tables += at.table_bytes();
    plain += at.readable_tokens() * at.form().layout.token_bytes();
  };
  const auto add = [&](int32_t tier, int32_t purpose, size_t bytes) {
    out.reserved[tier][purpose] += bytes;
    out.used[tier][purpose] += bytes;
  };
  if (layer == -1) {
    for (const auto& at : layers_) count(*at);
    add(KVP_TIER_HOST, KVP_PURPOSE_OTHER, lists_.blocks.bytes() + page_list_.bytes());
    add(KVP_TIER_DEVICE, KVP_PURPOSE_OTHER, lists_.on_device.bytes() + device_page_list_.bytes());
    add(engine_->tier(), KVP_PURPOSE_SCRATCH, scratch_.bytes() + views_.bytes());
  } else {
    count(layer_at(layer));
  }
  add(KVP_TIER_HOST, KVP_PURPOSE_OTHER, static_cast<size_t>(tables));
  out.unquantized = unsigned_of(plain);
  for (const int32_t tier : kTiers) {
    uint64_t held = 0;
    for (const uint64_t bytes : out.reserved[tier]) held += bytes;
    out.peak[tier] = layer == -1 ? std::max(unsigned_of(peak_[tier]), held) : held;
  }
}

}  // namespace kvplug::quantized
