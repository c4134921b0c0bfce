// SPDX-License-Identifier: Apache-2.0
// What PagedCache does on a device alone: lists for its kernels, attention there, and steps recorded into a graph
// (kvp.capture/1).
#include <kvplug/sdk/paged_cache.h>

namespace kvplug::sdk {

// Of the call that attend_rows_ describes.
PagedCache::DeviceList PagedCache::upload_lists(const PagedLayer& layer) noexcept {
  const bool longer = long_device_list_.bytes() > 0;
  const Block& to = longer ? long_device_list_ : device_list_;
  const auto* first = reinterpret_cast<const KvBlock*>((longer ? long_list_ : list_).data());
  const int64_t batch = layer.rows().batch();
  int64_t longest = 0, entries = 0;
  const auto row_at = [&](int64_t b) {
    const AttendRow& row = attend_rows_[static_cast<size_t>(b)];
    longest = std::max(longest, row.kv_end - row.kv_begin);
    if (row.kv_end > row.kv_begin) {
      entries = std::max(entries, row.blocks - first + PageLayout::count(row.kv_end) - row.first_block);
    }
    return device_row(row, first);
  };
  const auto upload = [&](void* at, const void* from, size_t bytes) { queue_->run(&Device::upload, at, from, bytes); };
  const auto row_bytes = static_cast<size_t>(batch) * sizeof(DeviceRow);
  auto* const rows = reinterpret_cast<DeviceRow*>(to.data());
  auto* const blocks = reinterpret_cast<KvBlock*>(to.data() + row_bytes);
  upload_rows(rows, batch, row_at, upload);
  upload(blocks, first, static_cast<size_t>(entries) * sizeof(KvBlock));
  return {rows, blocks, longest};
}

kvp_status PagedCache::attend_on_device(const PagedLayer& layer, const AttendShape& shape,
                                        const AttendCall& work) noexcept {
  const DeviceList list = upload_lists(layer);
  queue_->run(&Device::attend, shape, work, list.rows, list.blocks, list.longest, static_cast<void*>(scratch_.data()));
  return KVP_OK;
}

void PagedCache::check_unbound(const char* what) const {
  if (captured_seen_ != nullptr) {
    fail(KVP_INVALID_STATE, what, " while steps are bound to a capture: unbind first");
  }
}

void PagedCache::capture_bind(const kvp_call& call, int64_t query_len, const kvp_tensor& row_seen) {
  check_unbound("bind");
  if (queue_ == nullptr || plan_.capacity < 0) {
    fail(KVP_UNSUPPORTED, "steps are captured on a device and with a fixed capacity only");
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (plan_.specs[i].kind == KVP_LAYER_FULL) continue;
    fail(KVP_UNSUPPORTED, "layer ", i,
         ": the pages of windows and of cross attention move; only full layers are captured");
  }
  if (batch_ == 0 || query_len < 1) fail(KVP_INVALID_STATE, "bind before the first tokens, or for no tokens");
  const kvp_dtype int32{KVP_DTYPE_INT, 32, 1};
  check_tensor("row_seen", &row_seen, int32, {batch_}, plan_.device_type);
  start(call);
  ensure_fixed(batch_, true);
  for (const auto& layer : layers_) {
    if (layer->pages_to_fill(plan_.capacity) > layer->store().free_pages()) {
      fail(KVP_INVALID_STATE, "rows share pages with others: gather or clone comes after the capture");
    }
  }
  const int64_t columns = PageLayout::count(plan_.capacity);
  const auto n_rows = static_cast<size_t>(batch_), n_columns = static_cast<size_t>(columns);
  std::vector<int64_t> pads(n_rows);
  std::vector<KvBlock> blocks(n_rows * n_columns);
  const size_t head = n_rows * (sizeof(DeviceRow) + sizeof(int64_t)), table = blocks.size() * sizeof(KvBlock);
  Block memory = working_block(KVP_PURPOSE_OTHER, static_cast<int64_t>(head + layers_.size() * table));
  for (size_t b = 0; b < n_rows; ++b) pads[b] = layers_[0]->rows()[static_cast<int64_t>(b)].pad;
  queue_->run(&Device::upload, static_cast<void*>(memory.data() + n_rows * sizeof(DeviceRow)),
              static_cast<const void*>(pads.data()), n_rows * sizeof(int64_t));
  for (size_t i = 0; i < layers_.size(); ++i) {
    layers_[i]->fill_table(plan_.capacity);
    for (size_t b = 0; b < n_rows; ++b) {
      layers_[i]->all_blocks(static_cast<int64_t>(b), blocks.data() + b * n_columns);
    }
    queue_->run(&Device::upload, static_cast<void*>(memory.data() + head + i * table),
                static_cast<const void*>(blocks.data()), table);
  }
  captured_ = std::move(memory);
  captured_seen_ = static_cast<const int32_t*>(row_seen.data);
  captured_columns_ = columns;
  captured_queries_ = query_len;
  note_peak();
  finish();
}

void PagedCache::capture_advance(int64_t n_tokens) {
  if (captured_seen_ == nullptr) fail(KVP_INVALID_STATE, "advance without bind");
  const Append a{batch_, n_tokens, nullptr, nullptr};
  for (const auto& layer : layers_) check_room(*layer, a);
  for (const auto& layer : layers_) layer->count_tokens(a);
}

// The pages that no token has reached go back to the free ones.
void PagedCache::capture_unbind() {
  if (captured_seen_ == nullptr) fail(KVP_INVALID_STATE, "unbind without bind");
  captured_seen_ = nullptr;
  captured_ = Block();
  for (const auto& layer : layers_) {
    for (int64_t b = 0; b < batch_; ++b) layer->truncate(b, layer->rows()[b].seen);
  }
}

// What is queued here is recorded: only what lies on the device may differ from one replay to the next.
void PagedCache::attend_captured(const kvp_attend_args& args, kvp_tensor& out, kvp_tensor* lse) {
  const auto i = static_cast<size_t>(args.layer);
  const Spec& spec = spec_at(args.layer);
  if (captured_seen_ == nullptr || args.k == nullptr || args.pad != nullptr || args.count != nullptr ||
      args.bias != nullptr || args.q->shape[2] != captured_queries_ || args.q->shape[0] != batch_ ||
      args.k->shape[2] != captured_queries_ || (args.flags & KVP_ATTEND_Q_OFFSET) != 0) {
    fail(KVP_INVALID_STATE, "a captured attend takes the bound number of tokens of every row, without bias or counts");
  }
  const auto n_rows = static_cast<size_t>(batch_);
  std::byte* const base = captured_.data();
  auto* const rows = reinterpret_cast<DeviceRow*>(base);
  const size_t head = n_rows * (sizeof(DeviceRow) + sizeof(int64_t));
  const auto* const blocks = reinterpret_cast<const KvBlock*>(
      base + head + i * n_rows * static_cast<size_t>(captured_columns_) * sizeof(KvBlock));
  const DeviceClock clock{captured_seen_, reinterpret_cast<const int64_t*>(base + n_rows * sizeof(DeviceRow)),
                          captured_columns_};
  AttendCall work{};
  work.q = args.q;
  work.out = &out;
  work.lse = lse;
  work.sinks = args.sinks;
  work.window = args.window;
  work.chunk = args.chunk;
  work.scale = args.scale;
  work.softcap = args.softcap;
  work.causal = (args.flags & KVP_ATTEND_CAUSAL) != 0;
  const PageLayout& p = spec.layout;
  const AttendShape shape{batch_, spec.q_heads, p.kv_heads, captured_queries_, p.key_dim, p.value_dim, plan_.dtype};
  queue_->run(&Device::clock_rows, clock, batch_, captured_queries_, rows);
  queue_->run(&Device::clock_append, static_cast<const DeviceRow*>(rows), blocks, *args.k, *args.v);
  queue_->run(&Device::attend, shape, work, static_cast<const DeviceRow*>(rows), blocks, plan_.capacity,
              static_cast<void*>(scratch_.data()));
  finish();
  ++counts_.fused_attend_calls;
}

}  // namespace kvplug::sdk
