// SPDX-License-Identifier: Apache-2.0
// What a PagedCache takes and gives back: room for a call before anything is changed, and what is held.
#include <kvplug/sdk/paged_cache.h>

namespace kvplug::sdk {
namespace {

Block host_block(uint64_t owner, int32_t purpose, int64_t bytes) {
  return Block(host_memory(owner, purpose, unsigned_of(bytes)));
}

}  // namespace

int64_t PagedCache::held_bytes(int32_t tier) const noexcept {
  kvp_memory sum{};
  int64_t held = 0;
  if (tier == KVP_TIER_HOST) held += static_cast<int64_t>(list_.bytes() + long_list_.bytes());
  if (tier == KVP_TIER_DEVICE)
    held += static_cast<int64_t>(device_list_.bytes() + long_device_list_.bytes() + captured_.bytes());
  if (tier == plan_.tier()) held += static_cast<int64_t>(scratch_.bytes() + views_.bytes());
  for (const auto& layer : layers_) {
    layer->store().add_memory(0, sum);
    if (tier == KVP_TIER_HOST) held += layer->table_bytes();
  }
  add_memory(sum);
  for (const uint64_t bytes : sum.reserved[tier]) held += static_cast<int64_t>(bytes);
  return held;
}

Block PagedCache::working_block(int32_t purpose, int64_t bytes) const {
  return queue_ == nullptr ? host_block(owner_, purpose, bytes)
                           : Block(queue_->memory(owner_, purpose, unsigned_of(bytes)));
}

void PagedCache::ensure_scratch(int64_t batch, bool may_allocate) {
  if (batch <= scratch_batch_) return;
  if (!may_allocate) {
    fail(KVP_INVALID_STATE, "a prepared call must not allocate, but attend has no scratch for ", batch,
         " rows: reserve first");
  }
  const int64_t bytes = plan_.scratch_bytes(batch, worker_count(parallel_));
  scratch_batch_ = 0;
  scratch_ = Block();  // never both at once: plan's peak has room for one
  scratch_ = working_block(KVP_PURPOSE_SCRATCH, bytes);
  scratch_batch_ = batch;
}

void PagedCache::ensure_list(int64_t batch, int64_t tokens, bool may_allocate) {
  const int64_t bytes = batch * plan_.list_columns(tokens) * static_cast<int64_t>(sizeof(KvBlock));
  const int64_t on_device = queue_ == nullptr ? 0 : device_list_bytes(batch, bytes);
  if (bytes <= static_cast<int64_t>(list_.bytes()) && on_device <= static_cast<int64_t>(device_list_.bytes())) return;
  if (!may_allocate) {
    fail(KVP_INVALID_STATE, "a prepared call must not allocate, but the list of blocks has no room for ", batch,
         " rows of ", tokens, " tokens: reserve first");
  }
  list_ = Block();
  list_ = host_block(owner_, KVP_PURPOSE_OTHER, bytes);
  if (queue_ == nullptr) return;
  device_list_ = Block();
  device_list_ = working_block(KVP_PURPOSE_OTHER, on_device);
}

void PagedCache::reserve_layers(int64_t batch, int64_t tokens) {
  std::vector<int64_t> kept;
  kept.reserve(layers_.size());
  try {
    for (const auto& layer : layers_) kept.push_back(layer->reserve(batch, tokens));
  } catch (...) {
    for (size_t i = 0; i < kept.size(); ++i) layers_[i]->unreserve(kept[i]);
    throw;
  }
  note_peak();
}

void PagedCache::ensure_fixed(int64_t batch, bool may_allocate) {
  if (batch <= fixed_batch_) return;
  if (!may_allocate) {
    fail(KVP_INVALID_STATE, "a prepared call must not allocate, but memory is held for ", fixed_batch_, " rows and ",
         batch, " are asked for: reserve first");
  }
  const int64_t tokens = plan_.held_tokens(plan_.capacity);
  ensure_scratch(batch, true);
  ensure_list(batch, tokens, true);
  reserve_layers(batch, tokens);
  fixed_batch_ = batch;
  ++counts_.allocations;
}

void PagedCache::prepare(int32_t index, const Append& a, const kvp_call& call, int64_t view_bytes, bool attends) {
  PagedLayer& layer = layer_at(index);
  const int64_t before = batch_;
  change_batch(before, a.batch, empty(), [&](int64_t batch) { set_batch(batch); });
  const bool allowed = may_allocate(call);
  views_ = Block();
  // Summing over all layers is for the calls that took something.
  const auto held_here = [&] {
    return layer.store().held_pages() * layer.layout().data_bytes() + layer.table_bytes() +
           static_cast<int64_t>(scratch_.bytes() + list_.bytes() + long_list_.bytes() + views_.bytes() +
                                device_list_.bytes() + long_device_list_.bytes());
  };
  const int64_t held_before = held_here();
  try {
    layer.rows().check_append(a);
    check_room(layer, a);
    if (plan_.capacity >= 0 && a.tokens > 0) ensure_fixed(a.batch, allowed);
    if (attends || a.tokens > 0) ensure_scratch(a.batch, allowed);
    layer.prepare_append(a, allowed);
    int64_t longest = 0, entries = 0;
    for (int64_t b = 0; b < a.batch; ++b) {
      longest = std::max(longest, layer.rows()[b].stored() + a.stored(b));
      entries += layer.block_count(b, a);
    }
    ensure_list(a.batch, longest, allowed);
    const int64_t bytes = entries * static_cast<int64_t>(sizeof(KvBlock));
    const int64_t on_device = queue_ == nullptr ? 0 : device_list_bytes(a.batch, bytes);
    if (bytes > static_cast<int64_t>(list_.bytes()) || on_device > static_cast<int64_t>(device_list_.bytes())) {
      if (!allowed) fail(KVP_INVALID_STATE, "a prepared call must not allocate, but ", a.tokens, " tokens need a list");
      long_list_ = host_block(owner_, KVP_PURPOSE_SCRATCH, bytes);
      if (on_device > 0) long_device_list_ = working_block(KVP_PURPOSE_SCRATCH, on_device);
    }
    if (view_bytes > 0) {
      if (!allowed) {
        fail(KVP_INVALID_STATE, "a prepared call must not allocate, but views of K and V need ", view_bytes, " bytes");
      }
      views_ = working_block(KVP_PURPOSE_SCRATCH, view_bytes);
    }
    if (held_here() > held_before) note_peak();
    enter(index);
  } catch (...) {
    long_list_ = Block();
    long_device_list_ = Block();
    views_ = Block();
    layer.trim();
    if (batch_ != before) set_batch(before);
    throw;
  }
}

void PagedCache::reserve(const kvp_call& call, int64_t batch, int64_t tokens) {
  check_reserve(batch, tokens);
  plan_.check_plan(tokens);
  start(call);
  if (check_only(call)) return;
  if (!may_allocate(call)) fail(KVP_INVALID_STATE, "reserve must allocate, but the call forbids it");
  if (batch == 0 || tokens == 0) return;
  if (plan_.capacity >= 0) return ensure_fixed(batch, true);
  ensure_scratch(batch, true);
  ensure_list(batch, tokens, true);
  reserve_layers(batch, tokens);
}

void PagedCache::memory(int32_t layer, kvp_memory& out) const {
  int64_t tables = 0, stored = 0;
  const auto count = [&](const PagedLayer& at) {
    const int64_t tokens = at.stored_tokens() * at.layout().token_bytes();
    at.store().add_memory(tokens, out);
    tables += at.table_bytes();
    stored += tokens;
  };
  auto& reserved = out.reserved[KVP_TIER_HOST];
  auto& used = out.used[KVP_TIER_HOST];
  if (layer == -1) {
    for (const auto& at : layers_) count(*at);
    add_memory(out);
    tables += static_cast<int64_t>(list_.bytes());
    const int32_t tier = plan_.tier();
    out.used[tier][KVP_PURPOSE_SCRATCH] = scratch_.bytes() + views_.bytes();
    out.reserved[tier][KVP_PURPOSE_SCRATCH] = out.used[tier][KVP_PURPOSE_SCRATCH];
    out.used[KVP_TIER_DEVICE][KVP_PURPOSE_OTHER] += device_list_.bytes() + captured_.bytes();
    out.reserved[KVP_TIER_DEVICE][KVP_PURPOSE_OTHER] += device_list_.bytes() + captured_.bytes();
  } else {
    count(layer_at(layer));
  }
  reserved[KVP_PURPOSE_OTHER] += unsigned_of(tables);
  used[KVP_PURPOSE_OTHER] = reserved[KVP_PURPOSE_OTHER];
  out.unquantized = unsigned_of(stored);
  for (int32_t tier : kMemoryTiers) {
    // A copy was made with what its kind adds.
    out.peak[tier] = unsigned_of(std::max(peak_[tier], held_bytes(tier)));
    if (layer != -1) out.peak[tier] = out.reserved[tier][KVP_PURPOSE_KV] + out.reserved[tier][KVP_PURPOSE_OTHER];
  }
}

}  // namespace kvplug::sdk
