// SPDX-License-Identifier: Apache-2.0
// attend: the segments of a quantized cache, one after the other for a tile of queries, merged by their log-sum-exp.
#include "quantized_cache.h"

namespace kvplug::quantized {
namespace {

using sdk::Append;
using sdk::fail;

// Queries q0 .. q0 + n - 1 of a tensor whose axis 2 they are.
kvp_tensor slice(const kvp_tensor& t, int64_t q0, int64_t n) noexcept {
  kvp_tensor out = t;
  out.data = static_cast<std::byte*>(t.data) + q0 * t.strides[2] * sdk::element_bytes(sdk::dtype_of(t));
  out.shape[2] = n;
  return out;
}

constexpr uint32_t kMinusInfinity = 0xff800000u;

}  // namespace

// What one attend works on. Positions are those of rows; queries of row b stand at q_position[b] and up.
struct QuantizedCache::Work {
  Layer& layer;
  size_t index;
  const Scratch& place;
  const kvp_call& call;
  const kvp_attend_args& args;
  const kvp_tensor* bias;
  int64_t window, chunk, kv_offset;
  std::vector<sdk::AttendRow> rows;  // of the exact segment, for all queries
  std::vector<int64_t> sink_end;     // sinks are positions 0 .. sink_end - 1
  bool sinks = false, packed = false, fused = false;
  kvp_tensor& out;
  kvp_tensor* lse;
};

void QuantizedCache::attend_probe(const kvp_attend_desc& desc) const {
  const Layer& layer = layer_at(desc.layer);
  if (!sdk::same_dtype(desc.q_dtype, form_.dtype)) {
    fail(KVP_UNSUPPORTED, "attend takes q in the type of K and V, ", sdk::name_of(form_.dtype), "; ",
         sdk::name_of(desc.q_dtype), " was asked for");
  }
  if (!sdk::same_dtype(desc.out_dtype, form_.dtype) && !sdk::same_dtype(desc.out_dtype, sdk::kFloat32)) {
    fail(KVP_UNSUPPORTED, "attend gives ", sdk::name_of(form_.dtype), " or float32; ", sdk::name_of(desc.out_dtype),
         " was asked for");
  }
  if (form_.options.fused != quantized::Fused::kRequired) return;
  uint64_t workspace = 0;
  std::string reason;
  if (form_.probe_fused(layer.form(), std::max<int64_t>(1, desc.max_batch), desc.softcap, desc.window, desc.chunk,
                        workspace, reason) != KVP_OK) {
    fail(KVP_UNSUPPORTED, "fused_attention = \"required\", layer ", desc.layer, ": ", reason);
  }
}

bool QuantizedCache::fused(const Layer& layer, size_t index, int64_t batch, float softcap, int64_t window,
                           int64_t chunk) {
  if (form_.options.fused == quantized::Fused::kOff) return false;
  Fused& last = fused_[index];
  if (!last.asked || last.softcap != softcap || last.window != window || last.chunk != chunk || last.batch != batch) {
    uint64_t workspace = 0;
    std::string reason;
    const kvp_status status = form_.probe_fused(layer.form(), batch, softcap, window, chunk, workspace, reason);
    const auto room = static_cast<uint64_t>(places_[index].bytes - places_[index].quant_workspace);
    last = {true, status == KVP_OK && workspace <= room, softcap, window, chunk, batch};
  }
  return last.serves;
}

void QuantizedCache::attend(const kvp_call& call, const kvp_attend_args& args, kvp_tensor& out, kvp_tensor* lse) {
  engine_->start(call);
  Layer& layer = layer_at(args.layer);
  const LayerForm& f = layer.form();
  const sdk::PageLayout& p = f.layout;
  const bool appends = args.k != nullptr || args.v != nullptr;
  const int32_t device = form_.device_type;

  sdk::check_tensor("q", args.q, form_.dtype, {-1, f.q_heads, -1, p.key_dim}, device);
  const int64_t batch = args.q->shape[0], queries = args.q->shape[2];
  Append a{batch, 0, nullptr, nullptr};
  if (appends) {
    sdk::check_tensor("k", args.k, form_.dtype, {batch, p.kv_heads, -1, p.key_dim}, device);
    a = {batch, args.k->shape[2], args.pad, args.count};
    sdk::check_tensor("v", args.v, form_.dtype, {batch, p.kv_heads, a.tokens, p.value_dim}, device);
  }
  const bool wide = !sdk::same_dtype(sdk::dtype_of(out), form_.dtype);
  sdk::check_tensor("out", &out, wide ? sdk::kFloat32 : form_.dtype, {batch, f.q_heads, queries, p.value_dim}, device);
  if (lse != nullptr) sdk::check_tensor("lse", lse, sdk::kFloat32, {batch, f.q_heads, queries}, device);
  if (args.sinks != nullptr) sdk::check_tensor("sinks", args.sinks, sdk::kFloat32, {f.q_heads}, device);
  const int64_t kv_offset = layer.first_slot(), kv_len = layer.rows().longest() + a.tokens - kv_offset;
  kvp_tensor bias{};
  if (args.bias != nullptr) {
    bias = sdk::broadcast("bias", *args.bias, sdk::kFloat32, {batch, f.q_heads, queries, kv_len}, device);
  }
  const auto narrowed = [&](const char* word, int64_t asked, int32_t kind) {
    const int64_t own = f.kind == kind ? f.window : 0;
    if (asked < 0 || (own > 0 && asked > own)) {
      fail(KVP_INVALID_ARGUMENT, word, " is ", asked, "; expected 0 (the layer's own, ", own, ") or a smaller one");
    }
    return asked == 0 ? own : asked;
  };
  const int64_t window = narrowed("window", args.window, KVP_LAYER_SLIDING);
  const int64_t chunk = narrowed("chunk", args.chunk, KVP_LAYER_CHUNKED);

  const bool offset = (args.flags & KVP_ATTEND_Q_OFFSET) != 0;
  const auto first_slot = [&](const sdk::Rows::Row& row) {  // of the first query, `row` before the call
    return offset ? args.q_offset : appends ? row.seen : row.seen - queries;
  };
  if (f.window > 0 && (offset || !appends)) {
    for (int64_t b = 0; b < std::min(batch, layer.rows().batch()); ++b) {
      const sdk::Rows::Row& row = layer.rows()[b];
      const int64_t needed = std::max<int64_t>(0, first_slot(row) - row.pad - (f.window - 1));
      if (args.bias != nullptr && row.stored() > 0 && needed + row.pad < kv_offset) {
        fail(KVP_INVALID_ARGUMENT, "row ", b, ": the first query sees slots from ", needed + row.pad,
             " on, but the columns of bias begin at slot ", kv_offset);
      }
      if (needed >= layer.row(b).begin || row.stored() == 0) continue;
      fail(KVP_INVALID_STATE, "row ", b, ": the first query needs tokens from position ", needed,
           " on; the window keeps those from ", layer.row(b).begin, " on: give q together with its k and v");
    }
  }

  const int64_t batch_before = batch_;
  prepare(layer, a, call, 0);
  if (appends)
    counts_.bytes_copied_on_write +=
        static_cast<uint64_t>(layer.begin_append(a, *args.k, *args.v, engine_->parallel()));
  list_blocks(layer, a, appends ? args.k : nullptr, args.v);

  const auto index = static_cast<size_t>(args.layer);
  Work work{layer,  index, places_[index],
            call,   args,  args.bias == nullptr ? nullptr : &bias,
            window, chunk, kv_offset,
            {},     {},    false,
            false,  false, out,
            lse};
  bool newest = true;  // no packed token is newer than a query
  for (int64_t b = 0; b < batch; ++b) {
    const sdk::Rows::Row row = layer.rows()[b];
    sdk::Rows::Row start = row;
    start.seen -= a.taken(b);
    const int64_t slot = first_slot(start);
    const Layer::Row& held = layer.row(b);
    const int64_t before = std::max<int64_t>(0, row.stored() - a.stored(b));
    sdk::AttendRow at{};
    at.blocks = row_blocks_[static_cast<size_t>(b)];
    at.first_block = layer.exact().first_block(b);
    const bool whole = held.packed == 0 && layer.exact().begin(b) <= held.begin;  // the ring has it all
    const int64_t sunk = std::min(form_.options.sinks, before);
    work.sink_end.push_back(whole ? 0 : sunk);
    at.kv_begin = std::max(held.begin, whole ? 0 : sunk + held.packed);
    at.kv_end = std::max(row.stored(), at.kv_begin);
    at.q_position = slot - row.pad;
    at.q_count = appends && args.count != nullptr ? std::clamp<int64_t>(row.seen - slot, 0, queries) : queries;
    at.bias_column = row.pad - kv_offset;
    work.rows.push_back(at);
    work.sinks = work.sinks || work.sink_end.back() > held.begin;
    work.packed = work.packed || held.first < held.end;
    newest = newest && (held.first == held.end || at.q_position >= layer.packed_end(b) - 1);
  }
  const bool causal = (args.flags & KVP_ATTEND_CAUSAL) != 0;
  try {
    if (!work.sinks && !work.packed) {
      sdk::AttendCall exact{args.q,     &out,
                            lse,        args.bias == nullptr ? nullptr : &bias,
                            args.sinks, work.rows.data(),
                            window,     chunk,
                            args.scale, args.softcap,
                            causal};
      const kvp_status status =
          engine_->attend({batch, f.q_heads, p.kv_heads, queries, p.key_dim, p.value_dim, form_.dtype}, exact,
                          at(work.place.attend), static_cast<size_t>(work.place.acc - work.place.attend));
      if (status != KVP_OK) fail(status, "the attention kernel refused the call (status ", status, ")");
    } else {
      work.fused =
          work.packed && args.bias == nullptr && newest && fused(layer, index, batch, args.softcap, window, chunk);
      if (work.packed && !work.fused && form_.options.fused == quantized::Fused::kRequired) {
        fail(KVP_UNSUPPORTED, "fused_attention = \"required\", but attention over packed tokens ",
             args.bias != nullptr ? "takes no bias"
             : !newest            ? "takes no query older than these"
                                  : "does not serve this call",
             ": fused_attention = \"auto\" unpacks them then");
      }
      const int64_t tiles = (queries + kTileQueries - 1) / kTileQueries;
      for (int64_t i = 0; i < tiles; ++i) {  // of about one size, so that none is left with a few queries
        const int64_t q0 = queries * i / tiles;
        attend_tile(work, q0, queries * (i + 1) / tiles - q0);
      }
    }
  } catch (...) {
    if (appends) layer.cancel_append(a);
    layer.trim(form_);
    drop_call();
    if (batch_ != batch_before) set_batch(batch_before);
    throw;
  }
  if (appends) finish(index, a, *args.k, *args.v, call, batch_before);
  drop_call();
  engine_->check();
  ++(work.packed && !work.fused ? counts_.view_attend_calls : counts_.fused_attend_calls);
}

void QuantizedCache::attend_tile(Work& work, int64_t q0, int64_t n) {
  const LayerForm& f = work.layer.form();
  const sdk::PageLayout& p = f.layout;
  const int64_t batch = work.args.q->shape[0];
  const kvp_tensor q = slice(*work.args.q, q0, n);
  const auto tensor = [&](int64_t place) {
    return engine_->tensor(at(place), sdk::kFloat32, {batch, f.q_heads, n, p.value_dim});
  };
  const auto lse_tensor = [&](int64_t place) {
    return engine_->tensor(at(place), sdk::kFloat32, {batch, f.q_heads, n});
  };
  kvp_tensor acc = tensor(work.place.acc), acc_lse = lse_tensor(work.place.acc_lse);
  kvp_tensor part = tensor(work.place.part), part_lse = lse_tensor(work.place.part_lse);
  const int64_t vectors = batch * f.q_heads * n;
  auto* const sum = static_cast<float*>(acc.data);
  auto* const sum_lse = static_cast<float*>(acc_lse.data);
  bool first = true;
  const auto add = [&] {
    engine_->merge(sum, sum_lse, static_cast<const float*>(part.data), static_cast<const float*>(part_lse.data),
                   vectors, p.value_dim);
  };
  kvp_tensor bias{};
  if (work.bias != nullptr) bias = slice(*work.bias, q0, n);
  const bool causal = (work.args.flags & KVP_ATTEND_CAUSAL) != 0;
  const auto exact = [&](bool sinks, kvp_tensor& out, kvp_tensor& lse) {
    for (int64_t b = 0; b < batch; ++b) {
      sdk::AttendRow row = work.rows[static_cast<size_t>(b)];
      row.q_position += q0;
      row.q_count = std::clamp<int64_t>(row.q_count - q0, 0, n);
      if (sinks) {
        row.blocks = sink_blocks_[static_cast<size_t>(b)];
        row.first_block = 0;
        row.kv_end = work.sink_end[static_cast<size_t>(b)];
        row.kv_begin = std::min(row.kv_end, work.layer.row(b).begin);
      }
      attend_rows_[static_cast<size_t>(b)] = row;
    }
    sdk::AttendCall call{&q,
                         &out,
                         &lse,
                         work.bias == nullptr ? nullptr : &bias,
                         sinks ? nullptr : work.args.sinks,
                         attend_rows_.data(),
                         work.window,
                         work.chunk,
                         work.args.scale,
                         work.args.softcap,
                         causal};
    const kvp_status status =
        engine_->attend({batch, f.q_heads, p.kv_heads, n, p.key_dim, p.value_dim, form_.dtype}, call,
                        at(work.place.attend), static_cast<size_t>(work.place.acc - work.place.attend));
    if (status != KVP_OK) fail(status, "the attention kernel refused the call (status ", status, ")");
  };
  if (work.sinks) {
    exact(true, acc, acc_lse);
    first = false;
  }
  if (work.packed) {
    kvp_tensor& out = first ? acc : part;
    kvp_tensor& lse = first ? acc_lse : part_lse;
    if (work.fused) {
      attend_fused(work, q0, q, out, lse);
    } else {
      attend_unpacked(work, q0, q, out, lse);
    }
    if (form_.options.hadamard) engine_->convert(out, out, true);
    if (!first) add();
  }
  exact(false, part, part_lse);
  add();
  // Padding sees nothing, whatever the packed segment made of it.
  const kvp_tensor out = slice(work.out, q0, n);
  kvp_tensor lse{};
  if (work.lse != nullptr) lse = slice(*work.lse, q0, n);
  engine_->finish(attend_rows_.data(), sum, sum_lse, out, work.lse == nullptr ? nullptr : &lse);
}

void QuantizedCache::attend_fused(Work& work, int64_t q0, const kvp_tensor& q, kvp_tensor& out, kvp_tensor& lse) {
  const LayerForm& f = work.layer.form();
  const sdk::PageLayout& p = f.layout;
  const int64_t batch = q.shape[0], n = q.shape[2];
  kvp_tensor turned = q;
  if (form_.options.hadamard) {
    turned = engine_->tensor(at(work.place.q), sdk::kFloat32, {batch, f.q_heads, n, p.key_dim});
    engine_->convert(q, turned, true);
  }
  auto* const pages = reinterpret_cast<kvp_qpage*>(page_list_.data());
  // An upload has read its host memory when it returns.
  const auto list = [&](bool on_device) {
    int64_t n_pages = 0;
    for (int64_t b = 0; b < batch; ++b) {
      const Layer::Row& row = work.layer.row(b);
      positions_[static_cast<size_t>(b)] = work.rows[static_cast<size_t>(b)].q_position + q0;
      for (int64_t i = row.first; i < row.end; ++i) {
        const PackedPage& page = *work.layer.page(b, i);
        pages[n_pages++] = {b, form_.options.sinks + i * f.page_tokens,
                            std::min(f.page_tokens, row.packed - i * f.page_tokens),
                            on_device ? page.device_parts() : page.parts};
      }
    }
    return n_pages;
  };
  kvp_qattend_args args{};
  args.struct_size = sizeof args;
  if (engine_->on_device()) {
    engine_->upload(device_page_list_.data(), pages, static_cast<size_t>(list(true)) * sizeof(kvp_qpage));
    args.device_pages = reinterpret_cast<const kvp_qpage*>(device_page_list_.data());
  }
  const int64_t n_pages = list(false);
  args.q = &turned;
  args.k_parts = f.k.parts;
  args.v_parts = f.v.parts;
  args.n_k_parts = f.k.n_parts;
  args.n_v_parts = f.v.n_parts;
  args.pages = pages;
  args.n_pages = n_pages;
  args.q_position = positions_.data();
  args.workspace = at(work.place.quant_workspace);
  args.window = work.window;
  args.chunk = work.chunk;
  args.scale = work.args.scale;
  args.softcap = work.args.softcap;
  const auto* ext = static_cast<const kvp_qattend_ext*>(f.k.handle.iface->get_extension(KVP_EXT_QUANT_ATTEND));
  char text[256] = "";
  kvp_error err{sizeof err, 0, 0, text, sizeof text, 0};
  const kvp_status status = ext->attend(f.k.handle.self, &f.v.handle, &work.call, &args, &out, &lse, &err);
  if (status != KVP_OK) fail(status, "attention over packed tokens failed: ", text);
}

// Page by page, unpacked into scratch at the place in its block of 64 that its row position has.
void QuantizedCache::attend_unpacked(Work& work, int64_t q0, const kvp_tensor& q, kvp_tensor& out, kvp_tensor& lse) {
  const LayerForm& f = work.layer.form();
  const sdk::PageLayout& p = f.layout;
  const int64_t batch = q.shape[0], n = q.shape[2];
  const int64_t room = f.page_tokens + sdk::kBlockTokens;
  const int64_t n_blocks = Form::tile_blocks(f);
  auto* const more = reinterpret_cast<float*>(at(work.place.more));
  auto* const more_lse = reinterpret_cast<float*>(at(work.place.more_lse));
  auto* const k_room = reinterpret_cast<float*>(at(work.place.tile_k));
  auto* const v_room = reinterpret_cast<float*>(at(work.place.tile_v));
  for (int64_t block = 0; block < n_blocks; ++block) {
    const int64_t from = block * sdk::kBlockTokens;
    tile_[block] = {k_room + from * p.key_dim, v_room + from * p.value_dim,
                    room * p.key_dim,          p.key_dim,
                    room * p.value_dim,        p.value_dim};
  }
  engine_->add(tile_, n_blocks);
  for (int64_t b = 0; b < batch; ++b) {
    const Layer::Row& held = work.layer.row(b);
    const kvp_tensor own = engine_->tensor(at(work.place.q), sdk::kFloat32, {1, f.q_heads, n, p.key_dim});
    auto* const sum = reinterpret_cast<float*>(sdk::at(out, b));
    auto* const sum_lse = reinterpret_cast<float*>(sdk::at(lse, b));
    engine_->fill(sum, static_cast<size_t>(f.q_heads * n * p.value_dim) * 4, 0);
    engine_->fill(sum_lse, static_cast<size_t>(f.q_heads * n) * 4, kMinusInfinity);
    if (held.first == held.end) continue;
    kvp_tensor of_row = q;
    of_row.data = sdk::at(q, b);
    of_row.shape[0] = 1;
    engine_->convert(of_row, own, form_.options.hadamard);
    sdk::AttendRow row = work.rows[static_cast<size_t>(b)];
    row.q_position += q0;
    row.q_count = std::clamp<int64_t>(row.q_count - q0, 0, n);
    kvp_tensor bias{};
    if (work.bias != nullptr) {
      bias = slice(*work.bias, q0, n);
      bias.data = sdk::at(bias, b);
      bias.shape[0] = 1;
    }
    for (int64_t i = held.first; i < held.end; ++i) {
      const int64_t begin = form_.options.sinks + i * f.page_tokens;
      const int64_t tokens = std::min(f.page_tokens, held.packed - i * f.page_tokens);
      if (work.window > 0 && begin + tokens <= row.q_position - work.window + 1) continue;
      const int64_t place = begin % sdk::kBlockTokens;
      kvp_tensor k = engine_->tensor(k_room + place * p.key_dim, sdk::kFloat32, {1, p.kv_heads, tokens, p.key_dim});
      kvp_tensor v = engine_->tensor(v_room + place * p.value_dim, sdk::kFloat32, {1, p.kv_heads, tokens, p.value_dim});
      k.strides[0] = k.strides[1] = room * p.key_dim;
      v.strides[0] = v.strides[1] = room * p.value_dim;
      unpack(work.layer, true, *work.layer.page(b, i), 0, tokens, work.call, k);
      unpack(work.layer, false, *work.layer.page(b, i), 0, tokens, work.call, v);
      counts_.dequantized_tokens += static_cast<uint64_t>(tokens);
      row.blocks = tile_;
      row.first_block = begin / sdk::kBlockTokens;
      row.kv_begin = std::max(begin, held.begin);
      row.kv_end = std::max(row.kv_begin, begin + tokens);
      kvp_tensor part = engine_->tensor(more, sdk::kFloat32, {1, f.q_heads, n, p.value_dim});
      kvp_tensor part_lse = engine_->tensor(more_lse, sdk::kFloat32, {1, f.q_heads, n});
      const sdk::AttendCall call{&own,
                                 &part,
                                 &part_lse,
                                 work.bias == nullptr ? nullptr : &bias,
                                 nullptr,
                                 &row,
                                 work.window,
                                 work.chunk,
                                 work.args.scale,
                                 work.args.softcap,
                                 (work.args.flags & KVP_ATTEND_CAUSAL) != 0};
      const kvp_status status =
          engine_->attend({1, f.q_heads, p.kv_heads, n, p.key_dim, p.value_dim, sdk::kFloat32}, call,
                          at(work.place.attend), static_cast<size_t>(work.place.acc - work.place.attend));
      if (status != KVP_OK) fail(status, "the attention kernel refused the call (status ", status, ")");
      engine_->merge(sum, sum_lse, more, more_lse, f.q_heads * n, p.value_dim);
    }
  }
}

}  // namespace kvplug::quantized
