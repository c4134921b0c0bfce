// SPDX-License-Identifier: Apache-2.0
#include <kvplug/sdk/paged_cache.h>

#include <cstring>

namespace kvplug::sdk {
namespace {

constexpr int64_t kParallelBytes = 256 << 10;  // below, waking threads costs more than the copy

}  // namespace

PagedCache::PagedCache(Plan plan, Stores stores, uint64_t owner)
    : plan_(std::move(plan)), owner_(owner), parallel_(host_parallel()), queue_(stores[0]->queue()) {
  for (size_t i = 0; i < plan_.specs.size(); ++i) {
    layers_.push_back(std::make_unique<PagedLayer>(std::move(stores[i]), plan_.specs[i].window, owner_));
    layers_.back()->set_rollback(plan_.rollback);
  }
}

PagedCache::PagedCache(const PagedCache& other, Stores stores, uint64_t owner)
    : plan_(other.plan_), owner_(owner), parallel_(other.parallel_), batch_(other.batch_), queue_(stores[0]->queue()) {
  for (size_t i = 0; i < stores.size(); ++i) {
    layers_.push_back(std::make_unique<PagedLayer>(std::move(stores[i]), other.layer(i), owner));
  }
  attend_rows_.resize(static_cast<size_t>(batch_));
  row_blocks_.resize(static_cast<size_t>(batch_));
  if (plan_.capacity >= 0 && other.fixed_batch_ > 0) ensure_fixed(other.fixed_batch_, true);
  note_peak();
  finish();
}

PagedLayer& PagedCache::layer_at(int32_t layer) const {
  if (layer < 0 || static_cast<size_t>(layer) >= layers_.size()) {
    fail(KVP_INVALID_ARGUMENT, "layer ", layer, " was asked for; the cache has ", layers_.size(), " layers");
  }
  return *layers_[static_cast<size_t>(layer)];
}

bool PagedCache::empty() const noexcept {
  return std::all_of(layers_.begin(), layers_.end(), [](const auto& layer) { return layer->rows().longest() == 0; });
}

// Only on an empty cache. Going back to an earlier batch does not allocate.
void PagedCache::set_batch(int64_t batch) {
  attend_rows_.resize(static_cast<size_t>(batch));
  row_blocks_.resize(static_cast<size_t>(batch));
  for (const auto& layer : layers_) layer->start(batch);
  batch_ = batch;
}

void PagedCache::lengths(int32_t layer, int64_t query_len, kvp_lengths& out) const {
  const PagedLayer& at = layer_at(layer);
  if (query_len < 0 || query_len > PagedLayer::kMostTokens) fail(KVP_INVALID_ARGUMENT, "query_len is ", query_len);
  at.rows().fill(out);
  out.max = plan_.limited() ? plan_.capacity : -1;
  out.kv_offset = at.first_slot();
  const bool filled = is_cross(static_cast<size_t>(layer)) && out.seen > 0;
  out.kv_len = out.seen + (filled ? 0 : query_len) - out.kv_offset;
}

void PagedCache::check_room(const PagedLayer& layer, const Append& a) const {
  if (!plan_.limited()) return;
  for (int64_t b = 0; b < a.batch; ++b) {
    const int64_t seen = layer.rows()[b].seen, needed = seen + a.taken(b);
    if (needed > plan_.capacity) {
      fail(KVP_CAPACITY, "row ", b, " holds ", seen, " tokens and ", a.taken(b), " more need ", needed,
           "; the capacity is ", plan_.capacity);
    }
  }
}

void PagedCache::list_blocks(const PagedLayer& layer, const Append& a, const kvp_tensor* k,
                             const kvp_tensor* v) noexcept {
  auto* next = reinterpret_cast<KvBlock*>((long_list_.bytes() > 0 ? long_list_ : list_).data());
  for (int64_t b = 0; b < layer.rows().batch(); ++b) {
    row_blocks_[static_cast<size_t>(b)] = next;
    next += layer.blocks(b, a, k, v, next);
  }
}

// All rows by slot. Slots that are padding, that a row does not have, or that it no longer keeps become zero.
void PagedCache::write_views(const PagedLayer& layer, int64_t kv_len, int64_t kv_offset, kvp_tensor& k,
                             kvp_tensor& v) noexcept {
  const PageLayout& p = layer.layout();
  const int64_t batch = layer.rows().batch();
  std::byte* const k_data = views_.data();
  std::byte* const v_data = k_data == nullptr ? nullptr : k_data + batch * p.kv_heads * kv_len * p.key_dim * p.element;
  // One head of one row of K or V: [kv_len, dim].
  const auto show = [&](std::byte* to, int64_t b, int64_t head, int64_t dim, bool keys) {
    const Rows::Row row = layer.rows()[b];
    const auto token = static_cast<size_t>(dim * p.element);
    const int64_t shift = row.pad - kv_offset;  // column of position 0
    const int64_t first = std::max(layer.begin(b), -shift), last = row.stored();
    const auto fill = [&](int64_t from, int64_t until) {
      if (until > from)
        std::memset(to + static_cast<size_t>(from) * token, 0, static_cast<size_t>(until - from) * token);
    };
    if (first >= last) return fill(0, kv_len);
    fill(0, first + shift);
    for (int64_t position = first; position < last;) {
      const KvBlock& block = row_blocks_[static_cast<size_t>(b)][position / kBlockTokens - layer.first_block(b)];
      const int64_t place = position % kBlockTokens, n = std::min(kBlockTokens - place, last - position);
      const int64_t stride = keys ? block.k_token_stride : block.v_token_stride;
      const int64_t at = head * (keys ? block.k_head_stride : block.v_head_stride) + place * stride;
      const auto* from =
          reinterpret_cast<const std::byte*>(reinterpret_cast<int64_t>(keys ? block.k : block.v) + at * p.element);
      std::byte* target = to + static_cast<size_t>(position + shift) * token;
      if (stride == dim) {
        std::memcpy(target, from, static_cast<size_t>(n) * token);
      } else {
        for (int64_t i = 0; i < n; ++i)
          std::memcpy(target + static_cast<size_t>(i) * token, from + i * stride * p.element, token);
      }
      position += n;
    }
    fill(last + shift, kv_len);
  };
  if (queue_ != nullptr) {
    k = dense_tensor(k_data, plan_.dtype, {batch, p.kv_heads, kv_len, p.key_dim});
    v = dense_tensor(v_data, plan_.dtype, {batch, p.kv_heads, kv_len, p.value_dim});
    for (kvp_tensor* view : {&k, &v}) {
      view->flags = KVP_TENSOR_READ_ONLY;
      view->device_type = plan_.device_type;
      view->device_id = plan_.device_id;
    }
    if (k_data == nullptr) return;
    for (int64_t b = 0; b < batch; ++b) {
      AttendRow& row = attend_rows_[static_cast<size_t>(b)];
      row = {};
      row.blocks = row_blocks_[static_cast<size_t>(b)];
      row.first_block = layer.first_block(b);
      row.kv_begin = layer.begin(b);
      row.kv_end = layer.rows()[b].stored();
      row.bias_column = layer.rows()[b].pad - kv_offset;
    }
    const DeviceList list = upload_lists(layer);
    queue_->run(&Device::view, list.rows, list.blocks, true, kv_offset, k);
    queue_->run(&Device::view, list.rows, list.blocks, false, kv_offset, v);
    return;
  }
  if (k_data != nullptr) {
    const bool large = batch * kv_len * p.token_bytes() >= kParallelBytes;
    parallel_for(large ? parallel_ : nullptr, batch * p.kv_heads, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        show(k_data + i * kv_len * p.key_dim * p.element, i / p.kv_heads, i % p.kv_heads, p.key_dim, true);
        show(v_data + i * kv_len * p.value_dim * p.element, i / p.kv_heads, i % p.kv_heads, p.value_dim, false);
      }
    });
  }
  k = dense_tensor(k_data, plan_.dtype, {batch, p.kv_heads, kv_len, p.key_dim});
  v = dense_tensor(v_data, plan_.dtype, {batch, p.kv_heads, kv_len, p.value_dim});
  k.flags = v.flags = KVP_TENSOR_READ_ONLY;
}

void PagedCache::update(const kvp_call& call, const kvp_update_args& args, kvp_tensor* out_k, kvp_tensor* out_v) {
  check_unbound("update");
  start(call);
  PagedLayer& layer = layer_at(args.layer);
  const PageLayout& p = layer.layout();
  Append a{batch_, 0, args.pad, args.count};
  if (args.k != nullptr || args.v != nullptr) {
    check_tensor("k", args.k, plan_.dtype, {-1, p.kv_heads, -1, p.key_dim}, plan_.device_type);
    a.batch = args.k->shape[0];
    a.tokens = args.k->shape[2];
    check_tensor("v", args.v, plan_.dtype, {a.batch, p.kv_heads, a.tokens, p.value_dim}, plan_.device_type);
  }
  const bool appends = a.tokens > 0;
  if (appends) check_fill(args.layer);
  if (!appends) {
    if (out_k == nullptr) return;
    a.pad = a.count = nullptr;
  }
  const bool shows = out_k != nullptr;
  const int64_t kv_offset = layer.first_slot(), kv_len = layer.rows().longest() + a.tokens - kv_offset;
  const int64_t view_bytes = shows ? a.batch * kv_len * p.token_bytes() : 0;
  if (appends || !empty()) {
    prepare(args.layer, a, call, view_bytes, false);
    if (appends) counts_.bytes_copied_on_write += unsigned_of(layer.begin_append(a, *args.k, *args.v, parallel_));
    if (shows) list_blocks(layer, a, appends ? args.k : nullptr, args.v);
  }
  if (shows) {
    write_views(layer, kv_len, kv_offset, *out_k, *out_v);
    ++counts_.view_updates;
  }
  if (appends) layer.end_append(a, *args.k, *args.v, parallel_);
  if (appends || !empty()) leave(args.layer);
  long_list_ = Block();
  long_device_list_ = Block();
  finish();
}

void PagedCache::check_fill(int32_t layer) const {
  const int64_t seen = layers_[static_cast<size_t>(layer)]->rows().longest();
  if (is_cross(static_cast<size_t>(layer)) && seen > 0) {
    fail(KVP_INVALID_STATE, "layer ", layer, " is cross attention and holds ", seen,
         " tokens already; it is filled once, reset comes before another filling");
  }
}

void PagedCache::attend_probe(const kvp_attend_desc& desc) const {
  layer_at(desc.layer);
  if (!same_dtype(desc.q_dtype, plan_.dtype)) {
    fail(KVP_UNSUPPORTED, "attend takes q in the type of K and V, ", name_of(plan_.dtype), "; ", name_of(desc.q_dtype),
         " was asked for");
  }
  if (!same_dtype(desc.out_dtype, plan_.dtype) && !same_dtype(desc.out_dtype, kFloat32)) {
    fail(KVP_UNSUPPORTED, "attend gives ", name_of(plan_.dtype), " or float32; ", name_of(desc.out_dtype),
         " was asked for");
  }
}

void PagedCache::attend(const kvp_call& call, const kvp_attend_args& args, kvp_tensor& out, kvp_tensor* lse) {
  PagedLayer& layer = layer_at(args.layer);
  const Spec& spec = spec_at(args.layer);
  const PageLayout& p = spec.layout;
  const bool cross = spec.kind == KVP_LAYER_CROSS;
  const bool appends = args.k != nullptr || args.v != nullptr;

  const int32_t device = plan_.device_type;
  start(call);
  check_tensor("q", args.q, plan_.dtype, {-1, spec.q_heads, -1, p.key_dim}, device);
  const int64_t batch = args.q->shape[0];
  const int64_t queries = args.q->shape[2];
  Append a{batch, 0, nullptr, nullptr};
  if (appends) {
    check_tensor("k", args.k, plan_.dtype, {batch, p.kv_heads, -1, p.key_dim}, device);
    a = {batch, args.k->shape[2], args.pad, args.count};
    check_tensor("v", args.v, plan_.dtype, {batch, p.kv_heads, a.tokens, p.value_dim}, device);
    if (a.tokens > 0) check_fill(args.layer);
  }
  const bool wide = !same_dtype(dtype_of(out), plan_.dtype);
  check_tensor("out", &out, wide ? kFloat32 : plan_.dtype, {batch, spec.q_heads, queries, p.value_dim}, device);
  if (lse != nullptr) check_tensor("lse", lse, kFloat32, {batch, spec.q_heads, queries}, device);
  if (args.sinks != nullptr) check_tensor("sinks", args.sinks, kFloat32, {spec.q_heads}, device);
  if ((call.flags & KVP_CALL_CAPTURE) != 0 && queue_ != nullptr) return attend_captured(args, out, lse);
  check_unbound("attend");
  const int64_t kv_offset = layer.first_slot(), kv_len = layer.rows().longest() + a.tokens - kv_offset;
  kvp_tensor bias{};
  if (args.bias != nullptr)
    bias = broadcast("bias", *args.bias, kFloat32, {batch, spec.q_heads, queries, kv_len}, device);
  const auto narrowed = [&](const char* word, int64_t asked, int32_t kind) {
    const int64_t own = spec.kind == kind ? spec.window : 0;
    if (asked < 0 || (own > 0 && asked > own)) {
      fail(KVP_INVALID_ARGUMENT, word, " is ", asked, "; expected 0 (the layer's own, ", own, ") or a smaller one");
    }
    return asked == 0 ? own : asked;
  };
  const int64_t window = narrowed("window", args.window, KVP_LAYER_SLIDING);
  const int64_t chunk = narrowed("chunk", args.chunk, KVP_LAYER_CHUNKED);

  const bool offset = (args.flags & KVP_ATTEND_Q_OFFSET) != 0;
  const auto first_slot = [&](const Rows::Row& row, int64_t b) {  // of row b's first query, `row` before the call
    return offset ? args.q_offset : appends ? row.seen : row.seen + a.taken(b) - queries;
  };
  if (spec.window > 0 && (offset || !appends)) {
    for (int64_t b = 0; b < std::min(batch, layer.rows().batch()); ++b) {
      const Rows::Row& row = layer.rows()[b];
      const int64_t needed = std::max<int64_t>(0, first_slot(row, b) - row.pad - (spec.window - 1));
      if (args.bias != nullptr && row.stored() > 0 && needed + row.pad < kv_offset) {
        fail(KVP_INVALID_ARGUMENT, "row ", b, ": the first query sees slots from ", needed + row.pad,
             " on, but the columns of bias begin at slot ", kv_offset);
      }
      if (needed >= layer.begin(b) || row.stored() == 0) continue;
      fail(KVP_INVALID_STATE, "row ", b, ": the first query needs tokens from position ", needed,
           " on; the window keeps those from ", layer.begin(b), " on: give q together with its k and v");
    }
  }

  const int64_t batch_before = batch_;
  prepare(args.layer, a, call, 0, true);
  if (appends) counts_.bytes_copied_on_write += unsigned_of(layer.begin_append(a, *args.k, *args.v, parallel_));
  list_blocks(layer, a, appends ? args.k : nullptr, args.v);

  // With counts, what stands behind the row's last token is right padding, except where keys are not the queries' own.
  const bool ragged = appends && args.count != nullptr && !cross;
  for (int64_t b = 0; b < batch; ++b) {
    const Rows::Row row = layer.rows()[b];
    Rows::Row start = row;
    start.seen -= a.taken(b);
    const int64_t slot = first_slot(start, b);
    AttendRow& at = attend_rows_[static_cast<size_t>(b)];
    at = {};
    at.blocks = row_blocks_[static_cast<size_t>(b)];
    at.first_block = layer.first_block(b);
    at.kv_begin = layer.begin(b);
    at.kv_end = row.stored();
    at.q_position = cross ? 0 : slot - row.pad;
    at.q_count = ragged ? std::clamp<int64_t>(row.seen - slot, 0, queries) : queries;
    at.bias_column = row.pad - kv_offset;
  }
  AttendCall work{};
  work.q = args.q;
  work.out = &out;
  work.lse = lse;
  work.bias = args.bias == nullptr ? nullptr : &bias;
  work.sinks = args.sinks;
  work.rows = attend_rows_.data();
  work.window = window;
  work.chunk = chunk;
  work.scale = args.scale;
  work.softcap = args.softcap;
  work.causal = (args.flags & KVP_ATTEND_CAUSAL) != 0;
  const AttendShape shape{batch, spec.q_heads, p.kv_heads, queries, p.key_dim, p.value_dim, plan_.dtype};
  const kvp_status status = queue_ != nullptr ? attend_on_device(layer, shape, work)
                                              : sdk::attend(shape, work, parallel_, scratch_.data(), scratch_.bytes());
  if (status == KVP_OK && appends) layer.end_append(a, *args.k, *args.v, parallel_);
  if (status != KVP_OK) layer.cancel_append(a);
  leave(args.layer);
  long_list_ = Block();
  long_device_list_ = Block();
  finish();
  if (status != KVP_OK) {
    if (batch_ != batch_before) set_batch(batch_before);
    fail(status, "the attention kernel refused the call (status ", status, ")");
  }
  ++counts_.fused_attend_calls;
}

void PagedCache::reset(const kvp_call& call) {
  start(call);
  if (captured_seen_ != nullptr) capture_unbind();
  views_ = Block();
  for (const auto& layer : layers_) layer->reset();
  batch_ = 0;
  emptied();
}

void PagedCache::gather(const kvp_call& call, const int64_t* src_rows, int64_t n) {
  check_gather(src_rows, n, batch_);
  check_unbound("gather");
  start(call);
  if (check_only(call)) return;
  attend_rows_.resize(static_cast<size_t>(std::max(n, batch_)));
  row_blocks_.resize(attend_rows_.size());
  const bool allowed = may_allocate(call);
  if (plan_.capacity >= 0 && fixed_batch_ > 0) ensure_fixed(n, allowed);
  for (const auto& layer : layers_) layer->prepare_gather(src_rows, n, allowed);
  if (!empty()) {
    int64_t longest = 0;
    for (const auto& layer : layers_) longest = std::max(longest, layer->rows().longest());
    ensure_scratch(n, allowed);
    ensure_list(n, longest, allowed);
  }
  views_ = Block();
  for (const auto& layer : layers_) layer->gather(src_rows, n);
  batch_ = n;
  note_peak();
}

void PagedCache::crop(const kvp_call& call, const int64_t* n_remove, int64_t n) {
  check_crop(n_remove, n, batch_);
  check_unbound("crop");
  start(call);
  // Slots that row b keeps.
  const auto keeps = [&](int64_t b) {
    int64_t furthest = 0;
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (!is_cross(i)) furthest = std::max(furthest, layers_[i]->rows()[b].seen);
    }
    return std::max<int64_t>(0, furthest - n_remove[n == 1 ? 0 : b]);
  };
  for (int64_t b = 0; b < batch_; ++b) {
    for (size_t i = 0; i < layers_.size(); ++i) {
      const PagedLayer& at = *layers_[i];
      if (is_cross(i) || at.can_truncate(b, keeps(b))) continue;
      fail(KVP_INVALID_STATE, "layer ", i, ": row ", b, " cannot be cut to ", keeps(b), " tokens: its window of ",
           at.window(), " would need tokens before position ", at.begin(b),
           ", which are gone; set_rollback before they arrive keeps them");
    }
  }
  if (check_only(call)) return;
  views_ = Block();
  const bool nothing = std::all_of(n_remove, n_remove + n, [](int64_t count) { return count == 0; });
  for (size_t i = 0; i < layers_.size(); ++i) {
    if (is_cross(i)) continue;
    if (nothing) layers_[i]->drop_record();
  }
  for (int64_t b = 0; b < batch_; ++b) {
    const int64_t seen = keeps(b);
    for (size_t i = 0; i < layers_.size(); ++i) {
      if (!is_cross(i)) layers_[i]->truncate(b, seen);
    }
  }
  for (const auto& layer : layers_) layer->trim();
}

void PagedCache::set_rollback(const kvp_call& call, int64_t max_tokens) {
  if (max_tokens < 0) fail(KVP_INVALID_ARGUMENT, "set_rollback to ", max_tokens, " tokens; expected 0 or more");
  const int64_t before = std::exchange(plan_.rollback, std::min(max_tokens, PagedLayer::kMostTokens));
  int64_t longest = 0;
  for (const auto& layer : layers_) longest = std::max(longest, layer->rows().longest());
  const bool fits = !plan_.limited() || longest <= plan_.capacity;
  if (!fits || check_only(call)) plan_.rollback = before;
  if (!fits) {
    fail(KVP_CAPACITY, "set_rollback to ", max_tokens, " tokens needs a capacity above the ", plan_.capacity,
         " tokens there are: the windows have gone beyond them");
  }
  if (check_only(call)) return;
  for (const auto& layer : layers_) layer->set_rollback(plan_.rollback);
  if (fixed_batch_ == 0 || plan_.rollback <= before) return;
  const int64_t rows = std::exchange(fixed_batch_, 0);
  try {
    ensure_fixed(rows, may_allocate(call));
  } catch (...) {
    fixed_batch_ = rows;
    plan_.rollback = before;
    for (const auto& layer : layers_) layer->set_rollback(before);
    throw;
  }
}

size_t PagedCache::counters(kvp_counter* out, size_t room) const {
  int64_t pages = 0;
  for (const auto& layer : layers_) pages += layer->store().held_pages();
  std::vector<kvp_counter> all = {{"fused_attend_calls", counts_.fused_attend_calls},
                                  {"view_updates", counts_.view_updates},
                                  {"bytes_copied_on_write", counts_.bytes_copied_on_write},
                                  {"pages", unsigned_of(pages)}};
  if (plan_.capacity >= 0) all.push_back({"allocations", counts_.allocations});
  add_counters(all);
  if (out != nullptr) std::copy_n(all.begin(), std::min(room, all.size()), out);
  return all.size();
}

}  // namespace kvplug::sdk
