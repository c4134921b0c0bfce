// SPDX-License-Identifier: Apache-2.0
#include "quantized_cache.h"

namespace kvplug::quantized {
namespace {

using sdk::Append;
using sdk::Block;
using sdk::check_only;
using sdk::fail;
using sdk::KvBlock;
using sdk::may_allocate;
using sdk::unsigned_of;

}  // namespace

void QuantizedCache::probe(const kvp_cache_create& create, kvp_cache_info& out) {
  const Form form(create);
  out.flags = KVP_CACHE_LOSSY | KVP_CACHE_ROW_CROP;
  out.max_rollback = -1;
  for (const LayerForm& layer : form.layers) out.token_block = std::max(out.token_block, layer.token_block);
  // Views round to the type of K and V, attention reads what was packed; integer kernels round q and the weights.
  out.tolerance = 1.0 / 64;
}

QuantizedCache::QuantizedCache(const kvp_cache_create& create)
    : form_(create),
      owner_(create.owner),
      engine_(Engine::make(form_.device_type, form_.device_id)),
      fused_(form_.layers.size()) {
  for (const LayerForm& layer : form_.layers) layers_.push_back(std::make_unique<Layer>(layer, form_, owner_, engine_));
}

QuantizedCache::QuantizedCache(const QuantizedCache& other, const kvp_call& call, uint64_t owner)
    : form_(other.form_),
      owner_(owner),
      engine_(Engine::make(form_.device_type, form_.device_id)),
      batch_(other.batch_),
      fused_(other.fused_.size()) {
  engine_->start(call);
  for (const auto& layer : other.layers_) layers_.push_back(std::make_unique<Layer>(*layer, owner, engine_));
  row_blocks_.resize(static_cast<size_t>(batch_));
  sink_blocks_.resize(static_cast<size_t>(batch_));
  attend_rows_.resize(static_cast<size_t>(batch_));
  positions_.resize(static_cast<size_t>(batch_));
  note_peak();
}

Layer& QuantizedCache::layer_at(int32_t layer) const {
  if (layer < 0 || static_cast<size_t>(layer) >= layers_.size()) {
    fail(KVP_INVALID_ARGUMENT, "layer ", layer, " was asked for; the cache has ", layers_.size(), " layers");
  }
  return *layers_[static_cast<size_t>(layer)];
}

bool QuantizedCache::empty() const noexcept {
  return std::all_of(layers_.begin(), layers_.end(), [](const auto& layer) { return layer->rows().longest() == 0; });
}

void QuantizedCache::set_batch(int64_t batch) {
  const auto n = static_cast<size_t>(batch);
  row_blocks_.resize(n);
  sink_blocks_.resize(n);
  attend_rows_.resize(n);
  positions_.resize(n);
  for (const auto& layer : layers_) layer->start(batch);
  batch_ = batch;
}

void QuantizedCache::lengths(int32_t layer, int64_t query_len, kvp_lengths& out) const {
  const Layer& at = layer_at(layer);
  if (query_len < 0 || query_len > sdk::PagedLayer::kMostTokens) fail(KVP_INVALID_ARGUMENT, "query_len is ", query_len);
  at.rows().fill(out);
  out.max = -1;
  out.kv_offset = at.first_slot();
  out.kv_len = out.seen + query_len - out.kv_offset;
}

// Rings, with the tokens of an append under way, and sinks.
void QuantizedCache::list_blocks(Layer& layer, const Append& a, const kvp_tensor* k, const kvp_tensor* v) noexcept {
  auto* const first = reinterpret_cast<KvBlock*>(lists().blocks.data());
  auto* next = first;
  for (int64_t b = 0; b < layer.rows().batch(); ++b) {
    row_blocks_[static_cast<size_t>(b)] = next;
    next += layer.exact().blocks(b, a, k, v, next);
    sink_blocks_[static_cast<size_t>(b)] = next;
    if (sdk::PagedLayer* sinks = layer.sinks()) next += sinks->blocks(b, {}, nullptr, nullptr, next);
  }
  tile_ = next;
  engine_->use(lists(), layer.rows().batch(), next - first);
}

// Packs and ends an append; taken back if a quantizer fails.
void QuantizedCache::finish(size_t index, const Append& a, const kvp_tensor& k, const kvp_tensor& v,
                            const kvp_call& call, int64_t batch_before) {
  Layer& layer = *layers_[index];
  try {
    const Scratch& place = places_[index];
    const Layer::Packed done = layer.pack(form_, a, row_blocks_.data(), call, at(place.staging), place);
    counts_.packed_tokens += done.tokens;
    counts_.requantized_tokens += done.again;
  } catch (...) {
    layer.cancel_append(a);
    layer.trim(form_);
    drop_call();
    views_ = Block();
    if (batch_ != batch_before) set_batch(batch_before);
    throw;
  }
  layer.end_append(form_, a, k, v, engine_->parallel());
}

void QuantizedCache::unpack(const Layer& layer, bool keys, PackedPage& page, int64_t from, int64_t tokens,
                            const kvp_call& call, kvp_tensor& to) const {
  const Side& side = keys ? layer.form().k : layer.form().v;
  kvp_qpart parts[KVP_MAX_PARTS];
  layer.parts_of(side, keys, page, from, tokens, parts);
  char text[256] = "";
  kvp_error err{sizeof err, 0, 0, text, sizeof text, 0};
  const kvp_status status = side.handle.iface->dequantize(side.handle.self, &call, parts, side.n_parts, &to, &err);
  if (status != KVP_OK) fail(status, "a quantizer failed to unpack: ", text);
}

void QuantizedCache::write_views(size_t index, int64_t kv_len, int64_t kv_offset, const kvp_call& call, kvp_tensor& k,
                                 kvp_tensor& v) {
  Layer& layer = *layers_[index];
  const LayerForm& f = layer.form();
  const sdk::PageLayout& p = f.layout;
  const int64_t batch = layer.rows().batch();
  std::byte* const k_data = views_.data();
  std::byte* const v_data = k_data == nullptr ? nullptr : k_data + batch * p.kv_heads * kv_len * p.key_dim * p.element;
  k = engine_->tensor(k_data, form_.dtype, {batch, p.kv_heads, kv_len, p.key_dim});
  v = engine_->tensor(v_data, form_.dtype, {batch, p.kv_heads, kv_len, p.value_dim});
  k.flags = v.flags = KVP_TENSOR_READ_ONLY;
  if (k_data == nullptr) return;
  engine_->fill(k_data, static_cast<size_t>(batch * kv_len * p.token_bytes()), 0);
  for (const bool keys : {true, false}) {
    const int64_t dim = keys ? p.key_dim : p.value_dim;
    for (int64_t b = 0; b < batch; ++b) {
      const sdk::Rows::Row row = layer.rows()[b];
      const Layer::Row& packed = layer.row(b);
      const int64_t shift = row.pad - kv_offset;
      const int64_t first = std::max(packed.begin, -shift), last = row.stored();
      // Positions [from, to) of the view.
      const auto part = [&](int64_t from, int64_t to) {
        kvp_tensor t = keys ? k : v;
        t.data = sdk::at(t, b, 0, from + shift);
        t.shape[0] = 1;
        t.shape[2] = to - from;
        return t;
      };
      const auto copy = [&](const KvBlock* blocks, int64_t first_block, int64_t from, int64_t to) {
        from = std::max(from, first);
        to = std::min(to, last);
        if (from < to) engine_->show(blocks, first_block, from, to, keys, part(from, to));
      };
      const int64_t exact_from = packed.packed == 0 ? layer.exact().begin(b) : layer.packed_end(b);
      copy(row_blocks_[static_cast<size_t>(b)], layer.exact().first_block(b), exact_from, last);
      if (layer.sinks() != nullptr) {
        copy(sink_blocks_[static_cast<size_t>(b)], 0, 0,
             std::min({form_.options.sinks, layer.sinks()->rows()[b].stored(), exact_from}));
      }
      for (int64_t i = packed.first; i < packed.end; ++i) {
        const int64_t page_begin = form_.options.sinks + i * f.page_tokens;
        const int64_t n = std::min(f.page_tokens, packed.packed - i * f.page_tokens);
        if (page_begin + n <= first) continue;
        kvp_tensor tile = engine_->tensor(at(keys ? places_[index].tile_k : places_[index].tile_v), sdk::kFloat32,
                                          {1, p.kv_heads, n, dim});
        unpack(layer, keys, *layer.page(b, i), 0, n, call, tile);
        if (keys) counts_.dequantized_tokens += unsigned_of(n);
        const int64_t from = std::max(page_begin, first);
        tile.data = sdk::at(tile, 0, 0, from - page_begin);
        tile.shape[2] = page_begin + n - from;
        engine_->convert(tile, part(from, page_begin + n), form_.options.hadamard);
      }
    }
  }
}

void QuantizedCache::update(const kvp_call& call, const kvp_update_args& args, kvp_tensor* out_k, kvp_tensor* out_v) {
  engine_->start(call);
  Layer& layer = layer_at(args.layer);
  const sdk::PageLayout& p = layer.form().layout;
  Append a{batch_, 0, args.pad, args.count};
  if (args.k != nullptr || args.v != nullptr) {
    sdk::check_tensor("k", args.k, form_.dtype, {-1, p.kv_heads, -1, p.key_dim}, form_.device_type);
    a.batch = args.k->shape[0];
    a.tokens = args.k->shape[2];
    sdk::check_tensor("v", args.v, form_.dtype, {a.batch, p.kv_heads, a.tokens, p.value_dim}, form_.device_type);
  }
  const bool appends = a.tokens > 0, shows = out_k != nullptr;
  if (!appends) {
    if (!shows) return;
    a.pad = a.count = nullptr;
  }
  const auto index = static_cast<size_t>(args.layer);
  const int64_t kv_offset = layer.first_slot(), kv_len = layer.rows().longest() + a.tokens - kv_offset;
  const int64_t view_bytes = shows ? a.batch * kv_len * p.token_bytes() : 0;
  if (!appends && empty()) {
    *out_k = engine_->tensor(nullptr, form_.dtype, {a.batch, p.kv_heads, kv_len, p.key_dim});
    *out_v = engine_->tensor(nullptr, form_.dtype, {a.batch, p.kv_heads, kv_len, p.value_dim});
    return;
  }
  const int64_t batch_before = batch_;
  prepare(layer, a, call, view_bytes);
  if (appends)
    counts_.bytes_copied_on_write += unsigned_of(layer.begin_append(a, *args.k, *args.v, engine_->parallel()));
  list_blocks(layer, a, appends ? args.k : nullptr, args.v);
  kvp_tensor k{}, v{};
  try {
    if (shows) write_views(index, kv_len, kv_offset, call, k, v);
  } catch (...) {
    if (appends) layer.cancel_append(a);
    layer.trim(form_);
    drop_call();
    views_ = Block();
    if (batch_ != batch_before) set_batch(batch_before);
    throw;
  }
  if (appends) finish(index, a, *args.k, *args.v, call, batch_before);
  drop_call();
  engine_->check();
  if (!shows) return;
  *out_k = k;
  *out_v = v;
  ++counts_.view_updates;
}

void QuantizedCache::reset(const kvp_call& call) {
  engine_->start(call);
  views_ = Block();
  for (const auto& layer : layers_) layer->reset();
  batch_ = 0;
}

void QuantizedCache::gather(const kvp_call& call, const int64_t* src_rows, int64_t n) {
  engine_->start(call);
  sdk::check_gather(src_rows, n, batch_);
  if (check_only(call)) return;
  const auto most = static_cast<size_t>(std::max(n, batch_));
  row_blocks_.resize(most);
  sink_blocks_.resize(most);
  attend_rows_.resize(most);
  positions_.resize(most);
  const bool allowed = may_allocate(call);
  for (const auto& layer : layers_) layer->prepare_gather(src_rows, n, allowed);
  if (!empty()) {
    int64_t longest = 0;
    for (const auto& layer : layers_) longest = std::max(longest, layer->rows().longest());
    ensure_scratch(n, allowed);
    ensure_lists(n, longest, 0, allowed);
  }
  views_ = Block();
  for (const auto& layer : layers_) layer->gather(form_, src_rows, n);
  batch_ = n;
  note_peak();
}

void QuantizedCache::crop(const kvp_call& call, const int64_t* n_remove, int64_t n) {
  engine_->start(call);
  sdk::check_crop(n_remove, n, batch_);
  std::vector<int64_t> seen(static_cast<size_t>(batch_));
  for (int64_t b = 0; b < batch_; ++b) {
    int64_t furthest = 0;
    for (const auto& layer : layers_) furthest = std::max(furthest, layer->rows()[b].seen);
    seen[static_cast<size_t>(b)] = std::max<int64_t>(0, furthest - n_remove[n == 1 ? 0 : b]);
  }
  for (int64_t b = 0; b < batch_; ++b) {
    const int64_t keeps = seen[static_cast<size_t>(b)];
    for (size_t i = 0; i < layers_.size(); ++i) {
      const Layer& at = *layers_[i];
      if (at.can_truncate(b, keeps)) continue;
      fail(KVP_INVALID_STATE, "layer ", i, ": row ", b, " cannot be cut to ", keeps, " tokens: its window of ",
           at.form().window, " would need tokens before position ", at.row(b).begin,
           ", which are gone; set_rollback before they arrive keeps them");
    }
  }
  if (check_only(call)) return;
  views_ = Block();
  const bool nothing = std::all_of(n_remove, n_remove + n, [](int64_t count) { return count == 0; });
  if (nothing) {
    for (const auto& layer : layers_) {
      layer->drop_record(form_);
      layer->trim(form_);
    }
    return;
  }
  std::vector<std::vector<Layer::Refill>> refills;
  try {
    for (const auto& layer : layers_) refills.push_back(layer->prepare_truncate(seen, may_allocate(call)));
    const auto cut = [](const auto& list) { return !list.empty(); };
    if (std::any_of(refills.begin(), refills.end(), cut)) ensure_scratch(batch_, may_allocate(call));
    note_peak();
  } catch (...) {
    for (const auto& layer : layers_) layer->trim(form_);
    throw;
  }
  // What a cut block leaves is unpacked before the block goes. A quantizer that fails here leaves rows half cut: lost.
  for (size_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = *layers_[i];
    const LayerForm& f = layer.form();
    const sdk::PageLayout& p = f.layout;
    for (const Layer::Refill& refill : refills[i]) {
      const int64_t index = refill.from / f.page_tokens;
      kvp_tensor whole[2], rest[2];
      for (const bool keys : {true, false}) {
        const int64_t dim = keys ? p.key_dim : p.value_dim;
        kvp_tensor& tile = whole[keys ? 0 : 1];
        tile = engine_->tensor(at(keys ? places_[i].tile_k : places_[i].tile_v), sdk::kFloat32,
                               {1, p.kv_heads, f.token_block, dim});
        try {
          unpack(layer, keys, *layer.page(refill.b, index), refill.from % f.page_tokens, f.token_block, call, tile);
        } catch (const sdk::Fault& fault) {
          fail(KVP_INTERNAL, "crop: ", fault.text());
        }
        std::byte* const room =
            at(places_[i].staging) + (keys ? 0 : p.kv_heads * f.token_block * p.key_dim * p.element);
        rest[keys ? 0 : 1] = engine_->tensor(room, form_.dtype, {1, p.kv_heads, refill.tokens, dim});
        tile.shape[2] = refill.tokens;
        engine_->convert(tile, rest[keys ? 0 : 1], form_.options.hadamard);
      }
      counts_.dequantized_tokens += unsigned_of(refill.tokens);
      layer.truncate(refill.b, refill.seen);
      layer.exact().refill(refill.b, refill.seen, rest[0], rest[1]);
    }
  }
  for (int64_t b = 0; b < batch_; ++b) {
    for (const auto& layer : layers_) layer->truncate(b, seen[static_cast<size_t>(b)]);
  }
  for (const auto& layer : layers_) layer->trim(form_);
  engine_->check();
}

void QuantizedCache::set_rollback(const kvp_call& call, int64_t max_tokens) {
  if (max_tokens < 0) fail(KVP_INVALID_ARGUMENT, "set_rollback to ", max_tokens, " tokens; expected 0 or more");
  if (check_only(call)) return;
  form_.rollback = std::min(max_tokens, sdk::PagedLayer::kMostTokens);
  for (const auto& layer : layers_) layer->set_rollback(form_);
}

size_t QuantizedCache::counters(kvp_counter* out, size_t room) const {
  int64_t pages = 0;
  for (const auto& layer : layers_) pages += layer->held_pages();
  const kvp_counter all[] = {{"fused_attend_calls", counts_.fused_attend_calls},
                             {"view_attend_calls", counts_.view_attend_calls},
                             {"view_updates", counts_.view_updates},
                             {"dequantized_tokens", counts_.dequantized_tokens},
                             {"requantized_tokens", counts_.requantized_tokens},
                             {"packed_tokens", counts_.packed_tokens},
                             {"bytes_copied_on_write", counts_.bytes_copied_on_write},
                             {"pages", unsigned_of(pages)}};
  if (out != nullptr) std::copy_n(all, std::min(room, std::size(all)), out);
  return std::size(all);
}

}  // namespace kvplug::quantized
