// SPDX-License-Identifier: Apache-2.0
#include "form.h"

#include <numeric>

namespace kvplug::quantized {
namespace {

using sdk::fail;
using sdk::unsigned_of;

constexpr int64_t kMost = sdk::PagedLayer::kMostTokens;
constexpr int64_t kManyQueries = 1 << 20;
constexpr int64_t kMostPartBytes = int64_t{1} << 30;

int64_t aligned(int64_t bytes) noexcept { return (bytes + 63) / 64 * 64; }

kvp_status plan_side(const Side& side, int64_t heads, int64_t tokens, kvp_qplan& plan, Answer& answer) {
  plan = {};
  plan.struct_size = sizeof plan;
  return side.handle.iface->plan(side.handle.self, 1, heads, tokens, side.dim, &plan, &answer.err);
}

// token_block of a side.
void ask_block(Side& side, int64_t heads) {
  kvp_qplan plan{};
  Answer answer;
  kvp_status status = plan_side(side, heads, 0, plan, answer);
  if (status != KVP_OK) status = plan_side(side, heads, 1024, plan, answer);
  if (status != KVP_OK) fail(status, "quantizer '", id_of(side.handle), "' refused to plan: ", answer.text);
  if (plan.token_block < 1 || plan.token_block > 65536) {
    fail(KVP_INVALID_ARGUMENT, "quantizer '", id_of(side.handle), "' says a token_block of ", plan.token_block,
         "; blocks that can be appended have 1 to 65536 tokens");
  }
  side.token_block = plan.token_block;
}

// Parts of a page, checked, and where they lie in it.
void ask_parts(Side& side, LayerForm& layer, int32_t device_type, int32_t device_id) {
  kvp_qplan plan{};
  Answer answer;
  const int64_t heads = layer.layout.kv_heads, blocks = layer.page_tokens / side.token_block;
  kvp_status status = plan_side(side, heads, layer.page_tokens, plan, answer);
  if (status != KVP_OK) fail(status, "quantizer '", id_of(side.handle), "' refused to plan: ", answer.text);
  if (plan.n_parts < 1 || plan.n_parts > KVP_MAX_PARTS) {
    fail(KVP_INVALID_ARGUMENT, "quantizer '", id_of(side.handle), "' says ", plan.n_parts, " parts; expected 1 to ",
         KVP_MAX_PARTS);
  }
  side.n_parts = plan.n_parts;
  for (uint32_t i = 0; i < plan.n_parts; ++i) {
    const kvp_qpart& said = plan.parts[i];
    const bool shared = (said.flags & KVP_QPART_SHARED) != 0;
    const int64_t n = said.t.ndim == 4 ? said.t.shape[3] : -1;
    const int64_t element = said.t.dtype_bits / 8 * std::max<int64_t>(1, said.t.dtype_lanes);
    const int64_t rows = shared ? 1 : blocks, tall = shared && said.t.ndim == 4 && said.t.shape[1] == 1 ? 1 : heads;
    if (said.t.ndim != 4 || said.t.shape[0] != 1 || said.t.shape[1] != tall || said.t.shape[2] != rows || n < 1 ||
        element < 1 || n > kMostPartBytes / element / (tall * rows)) {
      fail(KVP_INVALID_ARGUMENT, "quantizer '", id_of(side.handle), "': part ", i, " has shape ",
           sdk::shape_text(said.t.shape, said.t.ndim < 0 || said.t.ndim > KVP_MAX_DIMS ? 0 : said.t.ndim),
           " and elements of ", int64_t{said.t.dtype_bits}, " bits; expected [1, ", tall, ", ", rows,
           ", 1 or more] and whole bytes");
    }
    if (said.t.device_type != device_type) {
      fail(KVP_UNSUPPORTED, "quantizer '", id_of(side.handle), "' packs into memory of device type ",
           said.t.device_type, "; the cache is on one of type ", device_type);
    }
    if (shared && device_type != KVP_DEVICE_CPU) {
      fail(KVP_UNSUPPORTED, "quantizer '", id_of(side.handle), "': part ", i,
           " is shared by all blocks of a row, which quantized keeps on the CPU only");
    }
    side.parts[i] = said;
    side.parts[i].t =
        sdk::dense_tensor(nullptr, {said.t.dtype_code, said.t.dtype_bits, said.t.dtype_lanes}, {1, tall, rows, n});
    side.parts[i].t.device_type = device_type;
    side.parts[i].t.device_id = device_id;
    const bool scale = said.role == KVP_PART_SCALE || said.role == KVP_PART_ZERO || said.role == KVP_PART_CODEBOOK;
    PageShape& page = layer.page;
    int64_t& end = scale ? page.scale_bytes : page.code_bytes;
    page.is_scale[page.n_parts] = scale;
    page.offset[page.n_parts++] = end;
    end += aligned(tall * rows * n * element);
    if (shared) layer.shared_bytes += aligned(tall * n * element);
  }
}

void ask_workspace(Side& side, const LayerForm& layer) {
  kvp_qplan plan{};
  Answer answer;
  const kvp_status status = plan_side(side, layer.layout.kv_heads, layer.run_tokens, plan, answer);
  if (status != KVP_OK) fail(status, "quantizer '", id_of(side.handle), "' refused to plan: ", answer.text);
  side.workspace = plan.workspace_bytes;
}

}  // namespace

Form::Form(const kvp_cache_create& create)
    : options(read_options(create)),
      dtype(create.dtype),
      rollback(std::clamp<int64_t>(create.rollback, 0, kMost)),
      device_type(create.device_type),
      device_id(create.device_id) {
  for (size_t i = 0; i < create.n_layers; ++i) {
    const kvp_layer layer = read_layer(create, i);
    const bool windowed = layer.kind != KVP_LAYER_FULL;
    if (options.hadamard && std::max(layer.key_dim, layer.value_dim) > kMostTurned) {
      refuse_layer(KVP_UNSUPPORTED, i, layer, "rotation = \"hadamard\" serves head dimensions up to ", kMostTurned);
    }
    LayerForm form;
    form.kind = layer.kind;
    form.q_heads = layer.q_heads;
    form.window = windowed ? layer.window : 0;
    form.layout = {layer.kv_heads, layer.key_dim, layer.value_dim, sdk::element_bytes(create.dtype)};
    form.k.handle = sdk::read_struct(create.quantizer_key);
    form.v.handle = sdk::read_struct(create.quantizer_value);
    form.k.dim = layer.key_dim;
    form.v.dim = layer.value_dim;
    ask_block(form.k, layer.kv_heads);
    ask_block(form.v, layer.kv_heads);
    form.token_block = std::lcm(form.k.token_block, form.v.token_block);
    form.page_tokens = std::max<int64_t>(1, kPageTokens / form.token_block) * form.token_block;
    ask_parts(form.k, form, device_type, device_id);
    ask_parts(form.v, form, device_type, device_id);
    form.run_tokens = form.shared_bytes > 0 || device_type != KVP_DEVICE_CPU
                          ? form.page_tokens
                          : std::max<int64_t>(1, kRunTokens / form.token_block) * form.token_block;
    ask_workspace(form.k, form);
    ask_workspace(form.v, form);
    uint64_t workspace = 0;
    std::string reason;
    if (options.fused == Fused::kRequired) {
      const kvp_status status = probe_fused(form, 1, 0, form.kind == KVP_LAYER_SLIDING ? form.window : 0,
                                            form.kind == KVP_LAYER_CHUNKED ? form.window : 0, workspace, reason);
      if (status != KVP_OK) refuse_layer(KVP_UNSUPPORTED, i, layer, "fused_attention = \"required\": ", reason);
    }
    layers.push_back(form);
  }
}

int64_t Form::packed(const LayerForm& layer, int64_t tokens) const noexcept {
  if (tokens <= options.start) return 0;
  return std::max<int64_t>(0, tokens - options.sinks - residual()) / layer.token_block * layer.token_block;
}

int64_t Form::ring_base(const LayerForm& layer) const noexcept {
  return std::min(kMost, std::max(options.residual + layer.token_block - 1, options.start));
}

int64_t Form::ring_rollback(const LayerForm& layer) const noexcept {
  return std::min(kMost, std::max<int64_t>(0, residual() + layer.token_block - 1 - ring_base(layer)));
}

void Form::page_range(const LayerForm& layer, int64_t begin, int64_t packed, int64_t& first,
                      int64_t& end) const noexcept {
  end = (packed + layer.page_tokens - 1) / layer.page_tokens;
  first = std::max<int64_t>(0, begin - options.sinks) / layer.page_tokens;
  if (options.sinks + packed <= begin) first = end;
}

// A window holds one page more while a new one is filled and the oldest not let go of yet.
int64_t Form::most_pages(const LayerForm& layer, int64_t tokens) const noexcept {
  const int64_t all = (packed(layer, tokens) + layer.page_tokens - 1) / layer.page_tokens;
  if (layer.window == 0) return all;
  const int64_t length = std::max<int64_t>(0, layer.kept(rollback) - residual());
  return std::min(all, length == 0 ? 0 : (length + layer.page_tokens - 2) / layer.page_tokens + 2);
}

int64_t Form::list_columns(int64_t tokens) const noexcept {
  int64_t most = 0;
  for (const LayerForm& layer : layers) {
    most = std::max(most, std::min(sdk::PageLayout::count(tokens), sdk::PageLayout::span(ring(layer)) + 1));
  }
  return sdk::PagedLayer::columns(most);
}

int64_t Form::page_columns(int64_t tokens) const noexcept {
  int64_t most = 0;
  for (const LayerForm& layer : layers) most = std::max(most, most_pages(layer, tokens));
  return sdk::PagedLayer::columns(most);
}

kvp_status Form::probe_fused(const LayerForm& layer, int64_t batch, float softcap, int64_t window, int64_t chunk,
                             uint64_t& workspace, std::string& reason) const {
  const kvp_quantizer_iface& iface = *layer.k.handle.iface;
  const bool has = KVP_HAS_FIELD(&iface, get_extension) && iface.get_extension != nullptr;
  const auto* ext = has ? static_cast<const kvp_qattend_ext*>(iface.get_extension(KVP_EXT_QUANT_ATTEND)) : nullptr;
  if (ext == nullptr) {
    reason = "quantizer '" + std::string(id_of(layer.k.handle)) + "' does not attend over packed tokens (" +
             KVP_EXT_QUANT_ATTEND + ")";
    return KVP_UNSUPPORTED;
  }
  kvp_qattend_desc desc{};
  desc.struct_size = sizeof desc;
  desc.q_heads = static_cast<int32_t>(layer.q_heads);
  desc.kv_heads = static_cast<int32_t>(layer.layout.kv_heads);
  desc.key_dim = static_cast<int32_t>(layer.layout.key_dim);
  desc.value_dim = static_cast<int32_t>(layer.layout.value_dim);
  desc.max_batch = batch;
  desc.max_query = kTileQueries;
  desc.window = window;
  desc.chunk = chunk;
  desc.q_dtype = options.hadamard ? sdk::kFloat32 : dtype;
  desc.softcap = softcap;
  desc.device_type = device_type;
  desc.device_id = device_id;
  Answer answer;
  const kvp_status status = ext->probe(layer.k.handle.self, &layer.v.handle, &desc, &workspace, &answer.err);
  if (status != KVP_OK) reason = answer.text;
  return status;
}

Scratch Form::scratch(const LayerForm& layer, int64_t batch, const Engine& engine) const {
  const sdk::PageLayout& p = layer.layout;
  Scratch s{};
  const auto take = [&](int64_t bytes) {
    const int64_t at = s.bytes;
    s.bytes += aligned(bytes);
    return at;
  };
  const auto attend = [&](kvp_dtype type, int64_t rows) {
    return engine.attend_scratch({rows, layer.q_heads, p.kv_heads, kManyQueries, p.key_dim, p.value_dim, type});
  };
  s.attend = take(std::max(attend(dtype, batch), attend(sdk::kFloat32, 1)));
  const int64_t vectors = batch * layer.q_heads * kTileQueries;
  s.acc = take(vectors * p.value_dim * 4);
  s.acc_lse = take(vectors * 4);
  s.part = take(vectors * p.value_dim * 4);
  s.part_lse = take(vectors * 4);
  s.more = take(layer.q_heads * kTileQueries * p.value_dim * 4);
  s.more_lse = take(layer.q_heads * kTileQueries * 4);
  s.q = take(vectors * p.key_dim * 4);
  s.tile_k = take(p.kv_heads * (layer.page_tokens + sdk::kBlockTokens) * p.key_dim * 4);
  s.tile_v = take(p.kv_heads * (layer.page_tokens + sdk::kBlockTokens) * p.value_dim * 4);
  const int64_t room = std::max(layer.run_tokens, layer.token_block);
  s.staging_bytes = aligned(p.kv_heads * room * (p.key_dim + p.value_dim) * p.element);
  s.workspace = static_cast<int64_t>((std::max(layer.k.workspace, layer.v.workspace) + 63) / 64 * 64);
  s.staging = take((s.staging_bytes + s.workspace) * engine.workers());
  uint64_t fused = 0;
  std::string reason;
  const int64_t window = layer.kind == KVP_LAYER_SLIDING ? layer.window : 0;
  const int64_t chunk = layer.kind == KVP_LAYER_CHUNKED ? layer.window : 0;
  const bool serves =
      options.fused != Fused::kOff && probe_fused(layer, batch, 0, window, chunk, fused, reason) == KVP_OK;
  s.quant_workspace = take(serves ? static_cast<int64_t>(fused) : 0);
  return s;
}

int64_t Form::scratch_bytes(int64_t batch, const Engine& engine) const {
  int64_t most = 0;
  for (const LayerForm& layer : layers) most = std::max(most, scratch(layer, batch, engine).bytes);
  return most;
}

int64_t Form::most_tile_blocks() const noexcept {
  int64_t most = 0;
  for (const LayerForm& layer : layers) most = std::max(most, tile_blocks(layer));
  return most;
}

void Form::plan(int64_t batch, int64_t tokens, kvp_memory& out) const {
  if (batch == 0 || tokens == 0) return;
  const std::shared_ptr<Engine> engine = Engine::make(device_type, device_id);
  const bool on_device = engine->on_device();
  auto& reserved = out.reserved[engine->tier()];
  auto& used = out.used[engine->tier()];
  auto& books = out.reserved[KVP_TIER_HOST][KVP_PURPOSE_OTHER];
  int64_t view = 0, table = 0, transient = 0, transient_heads = 0;
  for (const LayerForm& layer : layers) {
    const sdk::PageLayout& p = layer.layout;
    const int64_t page = on_device ? p.data_bytes() : sdk::HeapPages::page_bytes(p), ring_tokens = ring(layer);
    const int64_t sunk = std::min(tokens, options.sinks);
    const int64_t exact = batch * (sdk::PagedLayer::most_pages(tokens, ring_tokens) + sdk::PageLayout::count(sunk));
    reserved[KVP_PURPOSE_RESIDUAL] += unsigned_of(exact * page);
    used[KVP_PURPOSE_RESIDUAL] += unsigned_of(batch * p.token_bytes() * (std::min(tokens, ring_tokens) + sunk));
    const int64_t pages = batch * most_pages(layer, tokens);
    reserved[KVP_PURPOSE_PACKED] += unsigned_of(pages * layer.page.code_memory(on_device));
    reserved[KVP_PURPOSE_SCALES] += unsigned_of(pages * layer.page.scale_bytes);
    if (on_device) books += unsigned_of(exact * sdk::DevicePages::kHead + pages * PageShape::kHead);
    int64_t first = 0, end = 0;
    const int64_t count = packed(layer, tokens);
    page_range(layer, std::max<int64_t>(0, tokens - layer.kept(rollback)), count, first, end);
    const int64_t blocks = first == end ? 0 : batch * (count - first * layer.page_tokens) / layer.token_block;
    const int64_t in_page = layer.page_tokens / layer.token_block;
    used[KVP_PURPOSE_PACKED] += unsigned_of(blocks * layer.page.code_bytes / in_page);
    used[KVP_PURPOSE_SCALES] += unsigned_of(blocks * layer.page.scale_bytes / in_page);
    const int64_t tables = sdk::PagedLayer::table_bytes(batch, tokens, ring_tokens) +
                           batch * 8 *
                               (sdk::PagedLayer::columns(most_pages(layer, tokens)) +
                                sdk::PagedLayer::columns(sdk::PageLayout::count(sunk)));
    books += unsigned_of(tables);
    table = std::max(table, tables);
    if (layer.window > 0) {
      transient = std::max(transient, pages * (layer.page.code_memory(on_device) + layer.page.scale_bytes));
      transient_heads = std::max(transient_heads, pages * PageShape::kHead);
    }
    view = std::max(view, batch * tokens * p.token_bytes());
    out.unquantized += unsigned_of(batch * std::min(tokens, layer.kept(rollback)) * p.token_bytes());
  }
  constexpr auto kEntry = static_cast<int64_t>(sizeof(sdk::KvBlock));
  const int64_t list = batch * (list_columns(tokens) + sink_columns(tokens)) + most_tile_blocks();
  const int64_t pages = batch * page_columns(tokens) * static_cast<int64_t>(sizeof(kvp_qpage));
  books += unsigned_of(list * kEntry + pages);
  if (on_device) reserved[KVP_PURPOSE_OTHER] += unsigned_of(device_list_bytes(batch, list) + pages);
  reserved[KVP_PURPOSE_SCRATCH] += unsigned_of(scratch_bytes(batch, *engine));
  out.used[KVP_TIER_HOST][KVP_PURPOSE_OTHER] = books;
  used[KVP_PURPOSE_OTHER] = reserved[KVP_PURPOSE_OTHER];
  used[KVP_PURPOSE_SCRATCH] = reserved[KVP_PURPOSE_SCRATCH];
  // On the way: views and the list of blocks of a prompt given at once, a table copied into a larger one, a window's
  // new pages before its old ones go.
  const int64_t long_list = batch * (sdk::PageLayout::count(tokens) + sink_columns(tokens)) + most_tile_blocks();
  for (const int32_t tier : {KVP_TIER_DEVICE, KVP_TIER_HOST}) {
    if (tier == KVP_TIER_DEVICE && !on_device) continue;
    for (const uint64_t bytes : out.reserved[tier]) out.peak[tier] += bytes;
    const int64_t views = (tier == engine->tier() ? view : 0) +
                          (tier == KVP_TIER_DEVICE ? device_list_bytes(batch, long_list) : long_list * kEntry);
    out.peak[tier] += unsigned_of(std::max(views, tier == KVP_TIER_HOST ? table : 0) +
                                  (tier == engine->tier() ? transient : transient_heads));
  }
}

}  // namespace kvplug::quantized
