// SPDX-License-Identifier: Apache-2.0
// What a paged cache is asked for and what it will hold: checks of the layers, and the figures of plan().
#include <kvplug/sdk/paged_cache.h>

namespace kvplug::sdk {
namespace {

// Scratch stops growing with the queries of a call long before this many.
constexpr int64_t kManyQueries = 1 << 20;

const char* word_of(int32_t kind) noexcept {
  switch (kind) {
    case KVP_LAYER_NONE: return "empty";
    case KVP_LAYER_STATE: return "state";
    default: return "unknown";
  }
}

}  // namespace

PagedCache::Plan::Plan(const kvp_cache_create& create, const char* kind, bool fixed, bool devices)
    : dtype(create.dtype), device_type(create.device_type), device_id(create.device_id) {
  if (on_device() && (!devices || create.device_type != KVP_DEVICE_CUDA)) {
    fail(KVP_UNSUPPORTED, kind, " attends on the CPU", devices ? " or with CUDA" : "", "; device type ",
         create.device_type, " was asked for");
  }
  if (on_device() && cuda_device() == nullptr) {
    fail(KVP_UNSUPPORTED, kind,
         " was built without its CUDA kernels: build kvplug with KVPLUG_WITH_CUDA=ON, or compute ", "on the CPU");
  }
  if (!is_plain_float(create.dtype)) {
    fail(KVP_UNSUPPORTED, kind, " keeps float32, float16 or bfloat16; ", name_of(create.dtype), " was asked for");
  }
  if (create.quantizer_key != nullptr || create.quantizer_value != nullptr) {
    fail(KVP_UNSUPPORTED, kind, " keeps K and V as they are and takes no quantizer");
  }
  if (create.n_layers == 0) fail(KVP_INVALID_ARGUMENT, "a cache without layers was asked for");
  if (fixed) {
    if (create.tokens < 1 || create.tokens > PagedLayer::kMostTokens) {
      fail(KVP_INVALID_ARGUMENT, kind, " needs its capacity, at least 1 token a row; ", create.tokens,
           " was given (max_cache_len, or the tokens of the cache's parameters)");
    }
    capacity = create.tokens;
  }
  rollback = std::clamp<int64_t>(create.rollback, 0, PagedLayer::kMostTokens);
  specs.reserve(create.n_layers);
  for (size_t i = 0; i < create.n_layers; ++i) {
    const kvp_layer layer = read_at(create.layers, create.layer_stride, i);
    const auto refuse = [&](kvp_status status, const auto&... why) {
      fail(status, "layer ", i, " (layer ", layer.model_layer, " of the model): ", why...);
    };
    const bool windowed = layer.kind == KVP_LAYER_SLIDING || layer.kind == KVP_LAYER_CHUNKED;
    if (layer.kind != KVP_LAYER_FULL && layer.kind != KVP_LAYER_CROSS && !windowed) {
      refuse(KVP_UNSUPPORTED, kind, " does not serve ", word_of(layer.kind), " layers");
    }
    if ((layer.flags & KVP_LAYER_SHARED) != 0) refuse(KVP_UNSUPPORTED, "it shares another layer's storage");
    if (layer.index_dim != 0) refuse(KVP_UNSUPPORTED, kind, " does not keep indexer keys");
    if (windowed && (layer.window < 1 || layer.window > PagedLayer::kMostTokens)) {
      refuse(KVP_INVALID_ARGUMENT, "a window of ", layer.window, " tokens; expected 1 or more");
    }
    if (layer.kv_heads < 1 || layer.key_dim < 1 || layer.value_dim < 1 || layer.q_heads < 1 ||
        layer.q_heads % layer.kv_heads != 0) {
      refuse(KVP_INVALID_ARGUMENT, layer.q_heads, " query heads, ", layer.kv_heads, " K/V heads of dims ",
             layer.key_dim, " and ", layer.value_dim,
             "; expected positive numbers and query heads a multiple of K/V heads");
    }
    specs.push_back({layer.kind,
                     layer.q_heads,
                     windowed ? layer.window : 0,
                     {layer.kv_heads, layer.key_dim, layer.value_dim, element_bytes(create.dtype)}});
  }
}

bool PagedCache::Plan::limited() const noexcept {
  if (capacity < 0) return false;
  return std::any_of(specs.begin(), specs.end(),
                     [&](const Spec& spec) { return spec.window == 0 || spec.window + rollback > capacity; });
}

int64_t PagedCache::Plan::held_tokens(int64_t tokens) const noexcept {
  if (capacity < 0) return tokens;
  return limited() ? capacity : PagedLayer::kMostTokens;
}

int64_t PagedCache::Plan::pages(const Spec& spec, int64_t tokens) const noexcept {
  return PagedLayer::most_pages(held_tokens(tokens), kept(spec));
}

// A decode step of a window shows one page more than the window may touch: its own token's.
int64_t PagedCache::Plan::list_columns(int64_t tokens) const noexcept {
  int64_t most = 0;
  for (const Spec& spec : specs) {
    const int64_t all = PageLayout::count(held_tokens(tokens));
    most = std::max(most, spec.window == 0 ? all : std::min(all, PageLayout::span(kept(spec)) + 1));
  }
  return PagedLayer::columns(most);
}

int64_t PagedCache::Plan::scratch_bytes(int64_t batch, int32_t workers) const noexcept {
  size_t most = 0;
  for (const Spec& spec : specs) {
    const PageLayout& p = spec.layout;
    const AttendShape shape{batch, spec.q_heads, p.kv_heads, kManyQueries, p.key_dim, p.value_dim, dtype};
    most =
        std::max(most, on_device() ? cuda_device()->attend_scratch_bytes(shape) : attend_scratch_bytes(shape, workers));
  }
  return static_cast<int64_t>(most);
}

void PagedCache::Plan::check_plan(int64_t tokens) const {
  if (limited() && tokens > capacity) {
    fail(KVP_CAPACITY, tokens, " tokens a row do not fit into the capacity of ", capacity);
  }
}

void PagedCache::Plan::add_books(int64_t batch, int64_t tokens, kvp_memory& out) const {
  if (batch == 0 || tokens == 0) return;
  int64_t tables = 0, table = 0, view = 0, used = 0;
  for (const Spec& spec : specs) {
    table = std::max(table, PagedLayer::table_bytes(batch, held_tokens(tokens), kept(spec)));
    tables += PagedLayer::table_bytes(batch, held_tokens(tokens), kept(spec));
    view = std::max(view, batch * tokens * spec.layout.token_bytes());
    used += batch * std::min(tokens, kept(spec)) * spec.layout.token_bytes();
  }
  constexpr auto kEntry = static_cast<int64_t>(sizeof(KvBlock));
  const int64_t list = batch * list_columns(tokens) * kEntry;
  const int64_t long_list = std::max<int64_t>(0, batch * PageLayout::count(tokens) * kEntry - list);
  const int64_t scratch = scratch_bytes(batch, worker_count(host_parallel()));
  const auto hold = [&](int32_t tier, int32_t purpose, int64_t bytes) {
    out.reserved[tier][purpose] += unsigned_of(bytes);
    out.used[tier][purpose] = out.reserved[tier][purpose];
  };
  hold(KVP_TIER_HOST, KVP_PURPOSE_OTHER, tables + list);
  hold(tier(), KVP_PURPOSE_SCRATCH, scratch);
  out.unquantized = unsigned_of(used);
  if (on_device()) {
    const int64_t device_list = device_list_bytes(batch, list);
    hold(KVP_TIER_DEVICE, KVP_PURPOSE_OTHER, device_list);
    const int64_t longer = long_list > 0 ? device_list_bytes(batch, long_list + list) : 0;
    out.peak[KVP_TIER_DEVICE] += unsigned_of(device_list + scratch + view + longer);
    out.peak[KVP_TIER_HOST] += unsigned_of(tables + list + std::max(long_list > 0 ? long_list + list : 0, table));
    return;
  }
  // On the way a table is copied into a larger one, or views are shown: never both.
  const int64_t on_top = std::max(view + (long_list > 0 ? long_list + list : 0), table);
  out.peak[KVP_TIER_HOST] += unsigned_of(tables + list + scratch + on_top);
}

void PagedCache::plan_in_host(const Plan& plan, int64_t batch, int64_t tokens, kvp_memory& out) {
  plan.check_plan(tokens);
  if (batch == 0 || tokens == 0) return;
  plan.add_books(batch, tokens, out);
  int64_t pages = 0;
  if (plan.on_device()) {
    int64_t heads = 0;
    for (const Spec& spec : plan.specs) {
      pages += batch * plan.pages(spec, tokens) * spec.layout.data_bytes();
      heads += batch * plan.pages(spec, tokens) * DevicePages::kHead;
    }
    out.reserved[KVP_TIER_DEVICE][KVP_PURPOSE_KV] += unsigned_of(pages);
    out.used[KVP_TIER_DEVICE][KVP_PURPOSE_KV] += out.unquantized;
    out.peak[KVP_TIER_DEVICE] += unsigned_of(pages);
    out.reserved[KVP_TIER_HOST][KVP_PURPOSE_OTHER] += unsigned_of(heads);
    out.used[KVP_TIER_HOST][KVP_PURPOSE_OTHER] += unsigned_of(heads);
    out.peak[KVP_TIER_HOST] += unsigned_of(heads);
    return;
  }
  for (const Spec& spec : plan.specs) pages += batch * plan.pages(spec, tokens) * HeapPages::page_bytes(spec.layout);
  out.reserved[KVP_TIER_HOST][KVP_PURPOSE_KV] += unsigned_of(pages);
  out.used[KVP_TIER_HOST][KVP_PURPOSE_KV] += out.unquantized;
  out.peak[KVP_TIER_HOST] += unsigned_of(pages);
}

std::shared_ptr<DeviceQueue> PagedCache::Plan::make_queue(void* stream) const {
  return std::make_shared<DeviceQueue>(*cuda_device(), device_type, device_id, stream);
}

void PagedCache::probe_of(const Plan& plan, kvp_cache_info& out) {
  out.flags = KVP_CACHE_ROW_CROP;
  if (plan.capacity >= 0) out.flags |= KVP_CACHE_STABLE_ADDRESS;
  out.max_rollback = -1;
  out.token_block = 1;
  // attend accumulates in float32: what is left is the rounding of the result to its type.
  out.tolerance = plan.dtype.bits == 32 ? 1e-5 : plan.dtype.code == KVP_DTYPE_BFLOAT ? 1.0 / 128 : 1.0 / 1024;
}

}  // namespace kvplug::sdk
