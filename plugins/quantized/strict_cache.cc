// SPDX-License-Identifier: Apache-2.0
#include "strict_cache.h"

#include <kvplug/sdk/paged_layer.h>

#include <algorithm>

namespace kvplug::quantized {
namespace {

using sdk::Append;
using sdk::Block;
using sdk::check_only;
using sdk::fail;

constexpr int64_t kMost = sdk::PagedLayer::kMostTokens;
constexpr char kNoAttend[] =
    "hf_compat = \"strict\" unpacks all tokens at each step, as Hugging Face does, and attends over that; \"fixed\", "
    "the default, attends over packed ones";
constexpr char kNoCrop[] =
    "hf_compat = \"strict\" takes no tokens back: what is packed was packed as one; \"fixed\", the default, does";

void must_allocate(const kvp_call& call) {
  if (sdk::may_allocate(call)) return;
  fail(KVP_INVALID_STATE, "a prepared call must not allocate; hf_compat = \"strict\" does at each step");
}

WholeQuantizer whole_quantizer(const kvp_qhandle* handle, kvp_dtype dtype, int64_t heads, int64_t dim) {
  WholeQuantizer out{sdk::read_struct(handle), heads, dim};
  const kvp_qspec spec = spec_of(out.handle);
  if ((spec.flags & KVP_Q_STRICT) == 0) {
    fail(KVP_UNSUPPORTED, "hf_compat = \"strict\" needs a quantizer that has it too, such as hqq, quanto or fp8; '",
         id_of(out.handle), "' has not: use hf_compat = \"fixed\", the default");
  }
  if (!sdk::same_dtype(spec.out_dtype, dtype)) {
    fail(KVP_INVALID_ARGUMENT, "quantizer '", id_of(out.handle), "' was made for ", sdk::name_of(spec.out_dtype),
         "; K and V are ", sdk::name_of(dtype));
  }
  return out;
}

}  // namespace

StrictForm::StrictForm(const kvp_cache_create& create) : options(read_options(create)) {
  for (const auto& [key, set] :
       {std::pair{"sink_tokens", options.sinks > 0}, std::pair{"quantized_kv_start", options.start > 0},
        std::pair{"rotation", options.hadamard}}) {
    if (!set) continue;
    fail(KVP_INVALID_ARGUMENT, "option '", key,
         "': Hugging Face has none, so hf_compat = \"strict\" takes none; remove ", key, " or hf_compat");
  }
  if (options.fused == Fused::kRequired) fail(KVP_UNSUPPORTED, "fused_attention = \"required\": ", kNoAttend);
  if (create.rollback > 0) fail(KVP_UNSUPPORTED, kNoCrop);
  for (size_t i = 0; i < create.n_layers; ++i) {
    const kvp_layer layer = read_layer(create, i);
    if (layer.kind != KVP_LAYER_FULL) {
      refuse_layer(
          KVP_UNSUPPORTED, i, layer, "hf_compat = \"strict\" serves full attention alone, as Hugging Face does; ",
          layer.kind == KVP_LAYER_SLIDING ? "sliding" : "chunked", " attention is served by \"fixed\", the default");
    }
    StrictLayerForm form;
    form.layout = {layer.kv_heads, layer.key_dim, layer.value_dim, sdk::element_bytes(create.dtype)};
    form.dtype = create.dtype;
    form.k = whole_quantizer(create.quantizer_key, create.dtype, layer.kv_heads, layer.key_dim);
    form.v = whole_quantizer(create.quantizer_value, create.dtype, layer.kv_heads, layer.value_dim);
    // What fits no length at all is refused here.
    if (form.k.bound(1, 1).appends != form.v.bound(1, 1).appends) {
      refuse_layer(KVP_UNSUPPORTED, i, layer, "one of the quantizers of keys and values appends, the other does not");
    }
    layers.push_back(form);
  }
}

void StrictForm::plan(int64_t batch, int64_t tokens, kvp_memory& out) const {
  if (batch == 0 || tokens == 0) return;
  auto& reserved = out.reserved[KVP_TIER_HOST];
  int64_t all = 0, residuals = 0, beside = 0;
  for (const StrictLayerForm& layer : layers) {
    const Bound k = layer.k.bound(batch, tokens), v = layer.v.bound(batch, tokens);
    const int64_t waiting = k.appends ? 0 : std::min(tokens, options.residual) - 1;
    const int64_t token = batch * layer.layout.token_bytes();
    const int64_t residual = token * StrictLayer::residual_room(waiting, options.residual);
    reserved[KVP_PURPOSE_PACKED] += static_cast<uint64_t>(k.bytes.codes + v.bytes.codes);
    reserved[KVP_PURPOSE_SCALES] += static_cast<uint64_t>(k.bytes.scales + v.bytes.scales);
    reserved[KVP_PURPOSE_RESIDUAL] += static_cast<uint64_t>(residual);
    out.unquantized += static_cast<uint64_t>(token * tokens);
    all += k.bytes.all() + v.bytes.all() + residual;
    residuals += residual;
    // A step of this layer: views, one of K and V in another order of rows, the new parts beside the old.
    const int64_t work = std::max(k.workspace, v.workspace);
    beside = std::max(beside, 2 * token * tokens + k.bytes.all() + v.bytes.all() + work + residual);
  }
  std::copy_n(reserved, KVP_N_PURPOSES, out.used[KVP_TIER_HOST]);
  out.peak[KVP_TIER_HOST] = static_cast<uint64_t>(all + std::max(beside, residuals));
}

void StrictCache::probe(const kvp_cache_create& create, kvp_cache_info& out) {
  const StrictForm form(create);
  out.flags = KVP_CACHE_LOSSY | KVP_CACHE_SCHEDULE | KVP_CACHE_NO_ATTEND;
  out.max_rollback = 0;
  out.token_block = 1;
}

StrictCache::StrictCache(const kvp_cache_create& create) : form_(create), owner_(create.owner) {
  for (const StrictLayerForm& layer : form_.layers) {
    layers_.push_back(std::make_unique<StrictLayer>(layer, form_.options.residual, owner_));
  }
}

StrictCache::StrictCache(const StrictCache& other, uint64_t owner)
    : form_(other.form_), owner_(owner), batch_(other.batch_) {
  for (const auto& layer : other.layers_) layers_.push_back(std::make_unique<StrictLayer>(*layer, owner));
  note_peak(0);
}

StrictLayer& StrictCache::layer_at(int32_t layer) const {
  if (layer < 0 || static_cast<size_t>(layer) >= layers_.size()) {
    fail(KVP_INVALID_ARGUMENT, "layer ", layer, " was asked for; the cache has ", layers_.size(), " layers");
  }
  return *layers_[static_cast<size_t>(layer)];
}

bool StrictCache::empty() const noexcept {
  return std::all_of(layers_.begin(), layers_.end(), [](const auto& layer) { return layer->rows().longest() == 0; });
}

void StrictCache::set_batch(int64_t batch) {
  for (const auto& layer : layers_) layer->start(batch);
  batch_ = batch;
}

int64_t StrictCache::held_bytes() const noexcept {
  auto held = static_cast<int64_t>(views_.bytes());
  for (const auto& layer : layers_) held += layer->held_bytes();
  return held;
}

void StrictCache::lengths(int32_t layer, int64_t query_len, kvp_lengths& out) const {
  const StrictLayer& at = layer_at(layer);
  if (query_len < 0 || query_len > kMost) fail(KVP_INVALID_ARGUMENT, "query_len is ", query_len);
  at.rows().fill(out);
  out.max = -1;
  out.kv_offset = 0;
  out.kv_len = out.seen + query_len;
}

Whole StrictCache::make_views(const StrictLayer& layer, int64_t batch, int64_t slots, bool needed) {
  const sdk::PageLayout& p = layer.form().layout;
  const int64_t bytes = batch * slots * p.token_bytes();
  views_ = Block();
  if (needed && bytes > 0) views_ = Block(sdk::host_memory(owner_, KVP_PURPOSE_SCRATCH, static_cast<uint64_t>(bytes)));
  std::byte* const k = views_.data();
  std::byte* const v = k == nullptr ? nullptr : k + batch * p.kv_heads * slots * p.key_dim * p.element;
  return {sdk::dense_tensor(k, layer.form().dtype, {batch, p.kv_heads, slots, p.key_dim}),
          sdk::dense_tensor(v, layer.form().dtype, {batch, p.kv_heads, slots, p.value_dim})};
}

void StrictCache::update(const kvp_call& call, const kvp_update_args& args, kvp_tensor* out_k, kvp_tensor* out_v) {
  StrictLayer& layer = layer_at(args.layer);
  const sdk::PageLayout& p = layer.form().layout;
  const kvp_dtype dtype = layer.form().dtype;
  Append a{batch_, 0, args.pad, args.count};
  if (args.k != nullptr || args.v != nullptr) {
    sdk::check_tensor("k", args.k, dtype, {-1, p.kv_heads, -1, p.key_dim});
    a.batch = args.k->shape[0];
    a.tokens = args.k->shape[2];
    sdk::check_tensor("v", args.v, dtype, {a.batch, p.kv_heads, a.tokens, p.value_dim});
  }
  const bool shows = out_k != nullptr;
  Whole whole;
  if (a.batch != batch_ && !empty()) {
    fail(KVP_INVALID_ARGUMENT, "the batch is ", a.batch, "; the cache holds ", batch_, " rows");
  }
  if (a.tokens == 0) {
    if (!shows) return;
    must_allocate(call);
    whole = make_views(layer, a.batch, layer.rows().longest(), true);
    try {
      note_peak(views_.data() == nullptr ? 0 : layer.show(call, whole));
    } catch (...) {
      views_ = Block();
      throw;
    }
  } else {
    must_allocate(call);
    const int64_t batch_before = batch_;
    if (a.batch != batch_) set_batch(a.batch);
    try {
      layer.rows().check_append(a);
      check_step(layer, a);
      whole = make_views(layer, a.batch, layer.rows().longest() + a.tokens, shows || layer.packs(a));
      const int64_t held = held_bytes(), beside = layer.append(a, *args.k, *args.v, call, whole);
      peak_ = std::max(peak_, held + beside);
    } catch (...) {
      views_ = Block();
      if (batch_ != batch_before) set_batch(batch_before);
      throw;
    }
    if (!shows) views_ = Block();
  }
  if (!shows) return;
  whole.k.flags = whole.v.flags = KVP_TENSOR_READ_ONLY;
  *out_k = whole.k;
  *out_v = whole.v;
  view_updates_ += a.tokens > 0 ? 1 : 0;
}

// Asked by the first layer of a step, when all are of one length.
void StrictCache::check_step(const StrictLayer& first, const Append& a) const {
  const int64_t longest = first.rows().longest();
  if (a.tokens > kMost - longest) fail(KVP_INVALID_ARGUMENT, a.tokens, " tokens are more than a cache can count");
  for (const auto& layer : layers_) {
    if (layer->rows().longest() != longest) return;
  }
  for (const auto& layer : layers_) layer->check_length(a);
}

void StrictCache::reset(const kvp_call&) {
  views_ = Block();
  set_batch(0);
}

void StrictCache::gather(const kvp_call& call, const int64_t* src_rows, int64_t n) {
  sdk::check_gather(src_rows, n, batch_);
  if (check_only(call)) return;
  must_allocate(call);
  std::vector<StrictLayer::Gathered> to;
  int64_t beside = 0;
  for (const auto& layer : layers_) {
    to.push_back(layer->prepare_gather(src_rows, n));
    beside += static_cast<int64_t>(to.back().residual.bytes());
  }
  views_ = Block();
  note_peak(beside);
  for (size_t i = 0; i < layers_.size(); ++i) layers_[i]->gather(std::move(to[i]), src_rows);
  batch_ = n;
}

void StrictCache::crop(const kvp_call& call, const int64_t* n_remove, int64_t n) {
  sdk::check_crop(n_remove, n, batch_);
  const bool nothing = std::all_of(n_remove, n_remove + n, [](int64_t count) { return count == 0; });
  for (int64_t b = 0; !nothing && b < batch_; ++b) {
    int64_t seen = 0;
    for (const auto& layer : layers_) seen = std::max(seen, layer->rows()[b].seen);
    if (n_remove[n == 1 ? 0 : b] < seen) fail(KVP_UNSUPPORTED, kNoCrop);
  }
  if (check_only(call)) return;
  views_ = Block();
  if (!nothing) set_batch(batch_);
}

void StrictCache::set_rollback(const kvp_call&, int64_t max_tokens) {
  if (max_tokens < 0) fail(KVP_INVALID_ARGUMENT, "set_rollback to ", max_tokens, " tokens; expected 0 or more");
  if (max_tokens > 0) fail(KVP_UNSUPPORTED, kNoCrop);
}

void StrictCache::reserve(const kvp_call&, int64_t batch, int64_t tokens) {
  if (batch < 0 || tokens < 0) {
    fail(KVP_INVALID_ARGUMENT, "reserve for batch ", batch, " and ", tokens, " tokens; expected 0 or more");
  }
  fail(KVP_UNSUPPORTED, "hf_compat = \"strict\" makes its packed tensors anew and takes no memory ahead");
}

void StrictCache::memory(int32_t layer, kvp_memory& out) const {
  if (layer != -1) return layer_at(layer).add_memory(out);
  for (const auto& at : layers_) at->add_memory(out);
  for (auto* bytes : {&out.used, &out.reserved}) (*bytes)[KVP_TIER_HOST][KVP_PURPOSE_SCRATCH] = views_.bytes();
  out.peak[KVP_TIER_HOST] = static_cast<uint64_t>(std::max(peak_, held_bytes()));
}

size_t StrictCache::counters(kvp_counter* out, size_t room) const {
  StrictLayer::Counts sum;
  for (const auto& layer : layers_) {
    sum.packed += layer->counts().packed;
    sum.requantized += layer->counts().requantized;
    sum.dequantized += layer->counts().dequantized;
  }
  const kvp_counter all[] = {{"fused_attend_calls", 0},
                             {"view_updates", view_updates_},
                             {"dequantized_tokens", sum.dequantized},
                             {"requantized_tokens", sum.requantized},
                             {"packed_tokens", sum.packed}};
  if (out != nullptr) std::copy_n(all, std::min(room, std::size(all)), out);
  return std::size(all);
}

void StrictCache::attend_probe(const kvp_attend_desc&) const { fail(KVP_UNSUPPORTED, kNoAttend); }

void StrictCache::attend(const kvp_call&, const kvp_attend_args&, kvp_tensor&, kvp_tensor*) {
  fail(KVP_UNSUPPORTED, kNoAttend);
}

}  // namespace kvplug::quantized
