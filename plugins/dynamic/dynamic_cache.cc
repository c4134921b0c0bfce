// SPDX-License-Identifier: Apache-2.0
#include "dynamic_cache.h"

#include <algorithm>

namespace kvplug::dynamic {
namespace {

using sdk::fail;

// Scratch stops growing with the queries of a call long before this many.
constexpr int64_t kManyQueries = 1 << 20;

bool may_allocate(const kvp_call& call) noexcept { return (call.flags & (KVP_CALL_PREPARED | KVP_CALL_CAPTURE)) == 0; }
bool check_only(const kvp_call& call) noexcept { return (call.flags & KVP_CALL_CHECK) != 0; }

const char* word_of(int32_t kind) noexcept {
  switch (kind) {
    case KVP_LAYER_NONE: return "empty";
    case KVP_LAYER_SLIDING: return "sliding";
    case KVP_LAYER_CHUNKED: return "chunked";
    case KVP_LAYER_CROSS: return "cross-attention";
    case KVP_LAYER_STATE: return "state";
    default: return "unknown";
  }
}

uint64_t unsigned_of(int64_t n) noexcept { return static_cast<uint64_t>(n); }

int64_t view_bytes_of(const sdk::PageLayout& layout, int64_t batch, int64_t kv_len) noexcept {
  return batch * kv_len * layout.token_bytes();
}

}  // namespace

std::vector<DynamicCache::Spec> DynamicCache::specs_of(const kvp_cache_create& create) {
  const sdk::Options options(create.options, create.n_options, {});
  if (create.device_type != KVP_DEVICE_CPU) {
    fail(KVP_UNSUPPORTED, "dynamic keeps K and V on the CPU; device type ", create.device_type, " was asked for");
  }
  if (!sdk::is_plain_float(create.dtype)) {
    fail(KVP_UNSUPPORTED, "dynamic keeps float32, float16 or bfloat16; ", sdk::name_of(create.dtype), " was asked for");
  }
  if (create.quantizer_key != nullptr || create.quantizer_value != nullptr) {
    fail(KVP_UNSUPPORTED, "dynamic keeps K and V as they are and takes no quantizer");
  }
  if (create.n_layers == 0) fail(KVP_INVALID_ARGUMENT, "a cache without layers was asked for");
  std::vector<Spec> specs;
  specs.reserve(create.n_layers);
  for (size_t i = 0; i < create.n_layers; ++i) {
    const kvp_layer layer = sdk::read_at(create.layers, create.layer_stride, i);
    const auto refuse = [&](kvp_status status, const auto&... why) {
      fail(status, "layer ", i, " (layer ", layer.model_layer, " of the model): ", why...);
    };
    if (layer.kind != KVP_LAYER_FULL) {
      refuse(KVP_UNSUPPORTED, word_of(layer.kind), " layers are not served by dynamic in this release");
    }
    if ((layer.flags & KVP_LAYER_SHARED) != 0) refuse(KVP_UNSUPPORTED, "it shares another layer's storage");
    if (layer.index_dim != 0) refuse(KVP_UNSUPPORTED, "indexer keys are not served by dynamic in this release");
    if (layer.kv_heads < 1 || layer.key_dim < 1 || layer.value_dim < 1 || layer.q_heads < 1 ||
        layer.q_heads % layer.kv_heads != 0) {
      refuse(KVP_INVALID_ARGUMENT, layer.q_heads, " query heads, ", layer.kv_heads, " K/V heads of dims ",
             layer.key_dim, " and ", layer.value_dim,
             "; expected positive numbers and query heads a multiple of K/V heads");
    }
    specs.push_back(
        {layer.q_heads, {layer.kv_heads, layer.key_dim, layer.value_dim, sdk::element_bytes(create.dtype)}});
  }
  return specs;
}

int64_t DynamicCache::scratch_bytes(const std::vector<Spec>& specs, kvp_dtype dtype, int64_t batch, int32_t workers) {
  size_t most = 0;
  for (const Spec& spec : specs) {
    const sdk::PageLayout& p = spec.layout;
    most = std::max(most, sdk::attend_scratch_bytes(
                              {batch, spec.q_heads, p.kv_heads, kManyQueries, p.key_dim, p.value_dim, dtype}, workers));
  }
  return static_cast<int64_t>(most);
}

void DynamicCache::probe(const kvp_cache_create& create, kvp_cache_info& out) {
  specs_of(create);
  out.flags = KVP_CACHE_ROW_CROP;
  out.max_rollback = -1;
  out.token_block = 1;
  // attend accumulates in float32: what is left is the rounding of the result to its type.
  out.tolerance = create.dtype.bits == 32 ? 1e-5 : create.dtype.code == KVP_DTYPE_BFLOAT ? 1.0 / 128 : 1.0 / 1024;
}

void DynamicCache::plan(const kvp_cache_create& create, int64_t batch, int64_t tokens, kvp_memory& out) {
  const std::vector<Spec> specs = specs_of(create);
  int64_t used = 0, pages = 0, tables = 0, table = 0, view = 0;
  for (const Spec& spec : specs) {
    used += batch * tokens * spec.layout.token_bytes();
    pages += batch * sdk::PageLayout::count(tokens) * spec.layout.page_bytes();
    table = PagedLayer::table_bytes(batch, tokens);
    tables += table;
    view = std::max(view, view_bytes_of(spec.layout, batch, tokens));
  }
  const bool stores = batch > 0 && tokens > 0;
  const int64_t scratch =
      stores ? scratch_bytes(specs, create.dtype, batch, sdk::worker_count(sdk::host_parallel())) : 0;
  auto& reserved = out.reserved[KVP_TIER_HOST];
  reserved[KVP_PURPOSE_KV] = unsigned_of(pages);
  reserved[KVP_PURPOSE_OTHER] = unsigned_of(tables);
  reserved[KVP_PURPOSE_SCRATCH] = unsigned_of(scratch);
  out.used[KVP_TIER_HOST][KVP_PURPOSE_KV] = unsigned_of(used);
  out.used[KVP_TIER_HOST][KVP_PURPOSE_OTHER] = unsigned_of(tables);
  out.used[KVP_TIER_HOST][KVP_PURPOSE_SCRATCH] = unsigned_of(scratch);
  // On the way a table is copied into a larger one, or views are shown: never both.
  out.peak[KVP_TIER_HOST] = unsigned_of(pages + tables + scratch + std::max(view, table));
  out.unquantized = unsigned_of(used);
}

const void* DynamicCache::extension(std::string_view id) noexcept {
  return id == KVP_EXT_ATTEND ? sdk::CachePlugin<DynamicCache>::attend_extension() : nullptr;
}

DynamicCache::DynamicCache(const kvp_cache_create& create)
    : specs_(specs_of(create)), dtype_(create.dtype), owner_(create.owner), parallel_(sdk::host_parallel()) {
  for (const Spec& spec : specs_) layers_.push_back(std::make_unique<PagedLayer>(spec.layout, owner_));
}

DynamicCache::DynamicCache(const DynamicCache& other, uint64_t owner)
    : specs_(other.specs_), dtype_(other.dtype_), owner_(owner), parallel_(other.parallel_), batch_(other.batch_) {
  for (const auto& layer : other.layers_) layers_.push_back(std::make_unique<PagedLayer>(*layer, owner));
  attend_rows_.resize(static_cast<size_t>(batch_));
  peak_ = held_bytes();
}

std::unique_ptr<DynamicCache> DynamicCache::clone(const kvp_call&, uint64_t owner) const {
  return std::unique_ptr<DynamicCache>(new DynamicCache(*this, owner));
}

PagedLayer& DynamicCache::layer_at(int32_t layer) const {
  if (layer < 0 || static_cast<size_t>(layer) >= layers_.size()) {
    fail(KVP_INVALID_ARGUMENT, "layer ", layer, " was asked for; the cache has ", layers_.size(), " layers");
  }
  return *layers_[static_cast<size_t>(layer)];
}

bool DynamicCache::empty() const noexcept {
  return std::all_of(layers_.begin(), layers_.end(), [](const auto& layer) { return layer->rows().longest() == 0; });
}

// Only on an empty cache. Going back to an earlier batch does not allocate.
void DynamicCache::set_batch(int64_t batch) {
  attend_rows_.resize(static_cast<size_t>(batch));
  for (const auto& layer : layers_) layer->start(batch);
  batch_ = batch;
}

int64_t DynamicCache::held_bytes() const noexcept {
  auto held = static_cast<int64_t>(scratch_.bytes() + views_.bytes());
  for (const auto& layer : layers_) held += layer->page_bytes() + layer->table_bytes();
  return held;
}

void DynamicCache::ensure_scratch(int64_t batch, bool may_allocate) {
  if (batch <= scratch_batch_) return;
  if (!may_allocate) {
    fail(KVP_INVALID_STATE, "a prepared call must not allocate, but attend has no scratch for ", batch,
         " rows: reserve first");
  }
  const int64_t bytes = scratch_bytes(specs_, dtype_, batch, sdk::worker_count(parallel_));
  scratch_batch_ = 0;
  scratch_ = sdk::Block();  // never both at once: plan's peak has room for one
  scratch_ = sdk::Block(sdk::host_memory(owner_, KVP_PURPOSE_SCRATCH, unsigned_of(bytes)));
  scratch_batch_ = batch;
}

void DynamicCache::lengths(int32_t layer, int64_t query_len, kvp_lengths& out) const {
  const PagedLayer& at = layer_at(layer);
  if (query_len < 0) fail(KVP_INVALID_ARGUMENT, "query_len is ", query_len);
  at.rows().fill(out);
  out.max = -1;
  out.kv_len = out.seen + query_len;
  out.kv_offset = 0;
}

void DynamicCache::prepare(PagedLayer& layer, const sdk::Append& a, const kvp_call& call, int64_t view_bytes,
                           bool attends) {
  const int64_t before = batch_;
  if (a.batch != before) {
    if (!empty()) fail(KVP_INVALID_ARGUMENT, "the batch is ", a.batch, "; the cache holds ", before, " rows");
    try {
      set_batch(a.batch);
    } catch (...) {
      set_batch(before);
      throw;
    }
  }
  // Summing over all layers is for the calls that took something.
  const auto held_here = [&] {
    return layer.page_bytes() + layer.table_bytes() + static_cast<int64_t>(scratch_.bytes() + views_.bytes());
  };
  int64_t held_before = 0;
  try {
    layer.rows().check_append(a);
    views_ = sdk::Block();
    held_before = held_here();
    if (attends || a.tokens > 0) ensure_scratch(a.batch, may_allocate(call));
    layer.prepare_append(a, may_allocate(call));
    if (view_bytes > 0) {
      if (!may_allocate(call)) {
        fail(KVP_INVALID_STATE, "a prepared call must not allocate, but views of K and V need ", view_bytes, " bytes");
      }
      views_ = sdk::Block(sdk::host_memory(owner_, KVP_PURPOSE_SCRATCH, unsigned_of(view_bytes)));
    }
  } catch (...) {
    layer.trim();
    if (batch_ != before) set_batch(before);
    throw;
  }
  if (held_here() > held_before) peak_ = std::max(peak_, held_bytes());
}

void DynamicCache::write_views(const PagedLayer& layer, int64_t batch, int64_t kv_len, kvp_tensor& k,
                               kvp_tensor& v) const noexcept {
  const sdk::PageLayout& p = layer.layout();
  std::byte* k_data = views_.data();
  std::byte* v_data = k_data == nullptr ? nullptr : k_data + batch * p.kv_heads * kv_len * p.key_dim * p.element;
  if (k_data != nullptr) layer.read(k_data, v_data, kv_len, parallel_);
  k = sdk::dense_tensor(k_data, dtype_, {batch, p.kv_heads, kv_len, p.key_dim});
  v = sdk::dense_tensor(v_data, dtype_, {batch, p.kv_heads, kv_len, p.value_dim});
  k.flags = v.flags = KVP_TENSOR_READ_ONLY;
}

void DynamicCache::update(const kvp_call& call, const kvp_update_args& args, kvp_tensor* out_k, kvp_tensor* out_v) {
  PagedLayer& layer = layer_at(args.layer);
  const sdk::PageLayout& p = layer.layout();
  sdk::Append a{batch_, 0, args.pad, args.count};
  if (args.k != nullptr || args.v != nullptr) {
    sdk::check_tensor("k", args.k, dtype_, {-1, p.kv_heads, -1, p.key_dim});
    a.batch = args.k->shape[0];
    a.tokens = args.k->shape[2];
    sdk::check_tensor("v", args.v, dtype_, {a.batch, p.kv_heads, a.tokens, p.value_dim});
  }
  const int64_t kv_len = layer.rows().longest() + a.tokens;
  const int64_t view_bytes = out_k == nullptr ? 0 : view_bytes_of(p, a.batch, kv_len);
  if (a.tokens == 0) {
    if (out_k == nullptr) return;
    a.pad = a.count = nullptr;
    if (!empty()) prepare(layer, a, call, view_bytes, false);
  } else {
    prepare(layer, a, call, view_bytes, false);
    counts_.bytes_copied_on_write += unsigned_of(layer.append(a, *args.k, *args.v, parallel_));
  }
  if (out_k == nullptr) return;
  write_views(layer, a.batch, kv_len, *out_k, *out_v);
  ++counts_.view_updates;
}

void DynamicCache::reset(const kvp_call&) noexcept {
  views_ = sdk::Block();
  for (const auto& layer : layers_) layer->reset();
  batch_ = 0;
}

void DynamicCache::gather(const kvp_call& call, const int64_t* src_rows, int64_t n) {
  sdk::check_gather(src_rows, n, batch_);
  if (check_only(call)) return;
  attend_rows_.resize(static_cast<size_t>(std::max(n, batch_)));
  for (const auto& layer : layers_) layer->prepare_gather(src_rows, n, may_allocate(call));
  if (!empty()) ensure_scratch(n, may_allocate(call));
  views_ = sdk::Block();
  for (const auto& layer : layers_) layer->gather(src_rows, n);
  batch_ = n;
  peak_ = std::max(peak_, held_bytes());
}

void DynamicCache::crop(const kvp_call& call, const int64_t* n_remove, int64_t n) {
  sdk::check_crop(n_remove, n, batch_);
  if (check_only(call)) return;
  views_ = sdk::Block();
  for (int64_t b = 0; b < batch_; ++b) {
    int64_t furthest = 0;
    for (const auto& layer : layers_) furthest = std::max(furthest, layer->rows()[b].seen);
    const int64_t keep = std::max<int64_t>(0, furthest - n_remove[n == 1 ? 0 : b]);
    for (const auto& layer : layers_) layer->truncate(b, keep);
  }
  for (const auto& layer : layers_) layer->trim();
}

// Nothing to prepare: all tokens are kept anyway.
void DynamicCache::set_rollback(const kvp_call&, int64_t max_tokens) {
  if (max_tokens < 0) fail(KVP_INVALID_ARGUMENT, "set_rollback to ", max_tokens, " tokens; expected 0 or more");
}

void DynamicCache::reserve(const kvp_call& call, int64_t batch, int64_t tokens) {
  if (batch < 0 || tokens < 0) {
    fail(KVP_INVALID_ARGUMENT, "reserve for batch ", batch, " and ", tokens, " tokens; expected 0 or more");
  }
  // Beyond any machine, and near where products of 64 bits overflow.
  constexpr int64_t kMostTokens = int64_t{1} << 40;
  if (batch > kMostTokens || tokens > kMostTokens || (batch > 0 && tokens > kMostTokens / batch)) {
    fail(KVP_OUT_OF_MEMORY, "reserve for batch ", batch, " and ", tokens, " tokens is more than any memory holds");
  }
  if (check_only(call)) return;
  if (!may_allocate(call)) fail(KVP_INVALID_STATE, "reserve must allocate, but the call forbids it");
  std::vector<int64_t> kept;
  kept.reserve(layers_.size());
  try {
    if (batch > 0 && tokens > 0) ensure_scratch(batch, true);
    for (const auto& layer : layers_) kept.push_back(layer->reserve(batch, tokens));
  } catch (...) {
    for (size_t i = 0; i < kept.size(); ++i) layers_[i]->unreserve(kept[i]);
    throw;
  }
  peak_ = std::max(peak_, held_bytes());
}

void DynamicCache::memory(int32_t layer, kvp_memory& out) const {
  int64_t pages = 0, tables = 0, stored = 0;
  const auto count = [&](const PagedLayer& at) {
    pages += at.page_bytes();
    tables += at.table_bytes();
    stored += at.stored_tokens() * at.layout().token_bytes();
  };
  if (layer == -1) {
    for (const auto& at : layers_) count(*at);
    const uint64_t scratch = scratch_.bytes() + views_.bytes();
    out.used[KVP_TIER_HOST][KVP_PURPOSE_SCRATCH] = out.reserved[KVP_TIER_HOST][KVP_PURPOSE_SCRATCH] = scratch;
    out.peak[KVP_TIER_HOST] = unsigned_of(peak_);
  } else {
    count(layer_at(layer));
    out.peak[KVP_TIER_HOST] = unsigned_of(pages + tables);
  }
  out.used[KVP_TIER_HOST][KVP_PURPOSE_KV] = unsigned_of(stored);
  out.reserved[KVP_TIER_HOST][KVP_PURPOSE_KV] = unsigned_of(pages);
  out.used[KVP_TIER_HOST][KVP_PURPOSE_OTHER] = out.reserved[KVP_TIER_HOST][KVP_PURPOSE_OTHER] = unsigned_of(tables);
  out.unquantized = unsigned_of(stored);
}

size_t DynamicCache::counters(kvp_counter* out, size_t room) const noexcept {
  int64_t pages = 0;
  for (const auto& layer : layers_) pages += layer->booked_pages();
  const kvp_counter all[] = {{"fused_attend_calls", counts_.fused_attend_calls},
                             {"view_updates", counts_.view_updates},
                             {"bytes_copied_on_write", counts_.bytes_copied_on_write},
                             {"pages", unsigned_of(pages)}};
  constexpr size_t kCount = sizeof all / sizeof all[0];
  std::copy_n(all, std::min(room, kCount), out);
  return kCount;
}

}  // namespace kvplug::dynamic
