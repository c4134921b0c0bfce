// SPDX-License-Identifier: Apache-2.0
// "kvp.attend/1" of the dynamic cache: append, then the SDK's kernel over the rows' page lists as they lie.
#include <algorithm>

#include "dynamic_cache.h"

namespace kvplug::dynamic {

using sdk::fail;

void DynamicCache::attend_probe(const kvp_attend_desc& desc) const {
  layer_at(desc.layer);
  if (!sdk::same_dtype(desc.q_dtype, dtype_)) {
    fail(KVP_UNSUPPORTED, "attend takes q in the type of K and V, ", sdk::name_of(dtype_), "; ",
         sdk::name_of(desc.q_dtype), " was asked for");
  }
  if (!sdk::same_dtype(desc.out_dtype, dtype_) && !sdk::same_dtype(desc.out_dtype, sdk::kFloat32)) {
    fail(KVP_UNSUPPORTED, "attend gives ", sdk::name_of(dtype_), " or float32; ", sdk::name_of(desc.out_dtype),
         " was asked for");
  }
}

void DynamicCache::attend(const kvp_call& call, const kvp_attend_args& args, kvp_tensor& out, kvp_tensor* lse) {
  PagedLayer& layer = layer_at(args.layer);
  const sdk::PageLayout& p = layer.layout();
  const int64_t q_heads = specs_[static_cast<size_t>(args.layer)].q_heads;
  const bool appends = args.k != nullptr || args.v != nullptr;

  sdk::check_tensor("q", args.q, dtype_, {-1, q_heads, -1, p.key_dim});
  const int64_t batch = args.q->shape[0];
  const int64_t queries = args.q->shape[2];
  sdk::Append a{batch, 0, nullptr, nullptr};
  if (appends) {
    sdk::check_tensor("k", args.k, dtype_, {batch, p.kv_heads, -1, p.key_dim});
    a = {batch, args.k->shape[2], args.pad, args.count};
    sdk::check_tensor("v", args.v, dtype_, {batch, p.kv_heads, a.tokens, p.value_dim});
  }
  const bool wide = !sdk::same_dtype(sdk::dtype_of(out), dtype_);
  sdk::check_tensor("out", &out, wide ? sdk::kFloat32 : dtype_, {batch, q_heads, queries, p.value_dim});
  if (lse != nullptr) sdk::check_tensor("lse", lse, sdk::kFloat32, {batch, q_heads, queries});
  if (args.sinks != nullptr) sdk::check_tensor("sinks", args.sinks, sdk::kFloat32, {q_heads});
  const int64_t kv_len = layer.rows().longest() + a.tokens;
  kvp_tensor bias{};
  if (args.bias != nullptr) bias = sdk::broadcast("bias", *args.bias, sdk::kFloat32, {batch, q_heads, queries, kv_len});
  if (args.window < 0 || args.chunk < 0) {
    fail(KVP_INVALID_ARGUMENT, "window ", args.window, ", chunk ", args.chunk, "; expected 0 (none) or more");
  }

  const int64_t batch_before = batch_;
  prepare(layer, a, call, 0, true);
  if (appends) counts_.bytes_copied_on_write += static_cast<uint64_t>(layer.append(a, *args.k, *args.v, parallel_));

  const bool offset = (args.flags & KVP_ATTEND_Q_OFFSET) != 0;
  for (int64_t b = 0; b < batch; ++b) {
    const sdk::Rows::Row row = layer.rows()[b];
    const int64_t slot = offset ? args.q_offset : appends ? row.seen - a.taken(b) : row.seen - queries;
    // With counts, what stands behind the row's last token is right padding.
    const bool ragged = appends && args.count != nullptr;
    attend_rows_[static_cast<size_t>(b)] = {layer.blocks(b),
                                            0,
                                            0,
                                            row.stored(),
                                            slot - row.pad,
                                            ragged ? std::clamp<int64_t>(row.seen - slot, 0, queries) : queries,
                                            row.pad};
  }
  sdk::AttendCall work{};
  work.q = args.q;
  work.out = &out;
  work.lse = lse;
  work.bias = args.bias == nullptr ? nullptr : &bias;
  work.sinks = args.sinks;
  work.rows = attend_rows_.data();
  work.window = args.window;
  work.chunk = args.chunk;
  work.scale = args.scale;
  work.softcap = args.softcap;
  work.causal = (args.flags & KVP_ATTEND_CAUSAL) != 0;
  const kvp_status status = sdk::attend({batch, q_heads, p.kv_heads, queries, p.key_dim, p.value_dim, dtype_}, work,
                                        parallel_, scratch_.data(), scratch_.bytes());
  if (status != KVP_OK) {
    for (int64_t b = 0; b < batch; ++b) layer.truncate(b, layer.rows()[b].seen - a.taken(b));
    layer.trim();
    if (batch_ != batch_before) set_batch(batch_before);
    fail(status, "the attention kernel refused the call (status ", status, ")");
  }
  ++counts_.fused_attend_calls;
}

}  // namespace kvplug::dynamic
