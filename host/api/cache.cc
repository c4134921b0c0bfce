// SPDX-License-Identifier: Apache-2.0
#include <kvplug/kvplug.h>

#include "api/effective.h"
#include "core/kinds.h"
#include "generate/session.h"
#include "report/plan.h"

using namespace kvplug;
using namespace kvplug::api;

namespace {

// The caller's array may be of a shorter or longer kvp_layer: copied field by field count, the rest is zero.
std::vector<kvp_layer> copy_layers(const kvp_layer* layers, size_t n, size_t stride) {
  if (n == 0 || !layers) throw Error(Code::kInvalidArgument, "a cache needs at least one layer");
  if (stride < sizeof(size_t))
    throw Error(Code::kInvalidArgument, "stride " + std::to_string(stride) + " is smaller than a layer");
  std::vector<kvp_layer> out(n);
  const auto* bytes = reinterpret_cast<const unsigned char*>(layers);
  for (size_t i = 0; i < n; ++i) {
    const auto* from = reinterpret_cast<const kvp_layer*>(bytes + i * stride);
    if (from->struct_size > stride)
      throw Error(Code::kInvalidArgument, "layer " + std::to_string(i) + ": struct_size is larger than the stride");
    std::memcpy(&out[i], from, std::min(from->struct_size, sizeof(kvp_layer)));
    out[i].struct_size = sizeof(kvp_layer);
  }
  return out;
}

constexpr int64_t kMostTokens = int64_t{1} << 40;  // beyond any cache; sums of it stay within 64 bits

struct Request {
  std::vector<kvp_layer> layers;
  CacheChoice choice;
  StackParams params;
};

Request read_request(HostState& host, const kvp_layer* layers, size_t n, size_t stride, const kvplug_config* choice,
                     const kvplug_cache_params* params) {
  need(params, "params");
  if (!KVP_HAS_FIELD(params, dtype_bits)) {
    throw Error(Code::kInvalidArgument,
                "kvplug_cache_params: struct_size " + std::to_string(params->struct_size) + " is too small");
  }
  Request out;
  out.layers = copy_layers(layers, n, stride);
  std::optional<int64_t> capacity;
  if (choice) {
    const config::Run run = make_effective(host, choice->config, ModelNeed::kNone).run;
    out.choice = generate::cache_choice(run);
    capacity = run.generation.max_cache_len;
  }
  out.params.batch = params->batch;
  out.params.tokens = params->tokens >= 0 ? params->tokens : capacity.value_or(-1);
  if (out.params.tokens < 0 && is_static(out.choice.kind)) {
    throw Error(Code::kInvalidArgument,
                "\"" + out.choice.kind +
                    "\" needs its capacity, and neither the tokens of kvplug_cache_params nor generation.max_cache_len "
                    "gives one",
                "set one of them to the tokens of the longest row");
  }
  out.params.device_type = params->device_type;
  out.params.device_id = params->device_id;
  out.params.dtype = {params->dtype_code, params->dtype_bits, 1};
  return out;
}

nlohmann::json placements_json(const std::vector<LayerPlacement>& placements) {
  nlohmann::json out = nlohmann::json::array();
  for (const LayerPlacement& p : placements) {
    out.push_back(
        {{"layer", p.layer}, {"kind", p.kind}, {"plugin", p.plugin}, {"attend", p.attend}, {"reason", p.reason}});
    if (p.quantizer_key.empty()) continue;
    out.back()["quantizer_key"] = p.quantizer_key;
    out.back()["quantizer_value"] = p.quantizer_value;
  }
  return out;
}

// What no plugin should have to meet: a tensor that claims elements and has no data, or sizes that cannot be.
void check_tensor(const kvp_tensor* tensor, const char* name) {
  if (!tensor) return;
  if (tensor->ndim != 4) {
    throw Error(Code::kInvalidArgument,
                std::string(name) + " has " + std::to_string(tensor->ndim) + " dimensions, expected 4");
  }
  int64_t elements = 1;
  for (int i = 0; i < 4; ++i) {
    if (tensor->shape[i] < 0 || __builtin_mul_overflow(elements, tensor->shape[i], &elements)) {
      throw Error(Code::kInvalidArgument, std::string(name) + ": size " + std::to_string(tensor->shape[i]) +
                                              " of dimension " + std::to_string(i) + " cannot be");
    }
  }
  if (!tensor->data && elements != 0) throw Error(Code::kInvalidArgument, std::string(name) + ".data is NULL");
}

// Runs f(stack) on a cache that is nobody else's now.
template <class F>
kvplug_status on_stack(kvplug_cache* cache, kvp_error* err, F&& f) {
  return border(err, [&] {
    CacheState& state = *need(cache, "cache").state;
    if (state.lent) throw Error(Code::kBusy, "the cache belongs to a session until that is released");
    const Turn turn(state.busy);
    f(*state.stack);
  });
}

}  // namespace

extern "C" {

kvplug_status kvplug_cache_plan(kvplug_host* host, const kvp_layer* layers, size_t n, size_t stride,
                                const kvplug_config* choice, const kvplug_cache_params* params, kvp_memory* total,
                                kvplug_buf** json, kvp_error* err) {
  return border(err, [&] {
    HostState& state = *need(host, "host").state;
    const Request request = read_request(state, layers, n, stride, choice, params);
    if (request.params.batch < 1 || request.params.tokens < 0) {
      throw Error(Code::kInvalidArgument, "a plan needs batch and tokens");
    }
    const StackPlan plan = CacheStack::plan(state.registry, request.layers, request.choice, request.params,
                                            request.params.batch, request.params.tokens);
    if (json) {
      give(json, nlohmann::json{{"schema_version", 1}, {"rows", report::cache_rows(plan, &LayerPlacement::layer)}});
    }
    if (total) {
      const size_t size = std::min(total->struct_size, sizeof(kvp_memory));
      kvp_memory sum = plan.total;
      sum.struct_size = total->struct_size;
      std::memcpy(total, &sum, size);
    }
  });
}

kvplug_status kvplug_cache_create(kvplug_host* host, const kvp_layer* layers, size_t n, size_t stride,
                                  const kvplug_config* choice, const kvplug_cache_params* params, kvplug_cache** out,
                                  kvp_error* err) {
  return border(err, [&] {
    need(out, "out");
    const auto state = need(host, "host").state;
    const Request request = read_request(*state, layers, n, stride, choice, params);
    auto cache = std::make_unique<kvplug_cache>();
    cache->state = std::make_shared<CacheState>();
    cache->state->host = state;
    cache->state->stack = CacheStack::create(state->registry, request.layers, request.choice, request.params);
    *out = cache.release();
  });
}

kvplug_cache* kvplug_cache_retain(kvplug_cache* cache) { return retain(cache); }
void kvplug_cache_release(kvplug_cache* cache) { release(cache); }

kvplug_status kvplug_cache_explain(kvplug_cache* cache, kvplug_buf** json, kvp_error* err) {
  return on_stack(cache, err, [&](CacheStack& stack) {
    need(json, "json");
    give(json, nlohmann::json{{"schema_version", 1}, {"layers", placements_json(stack.placements())}});
  });
}

kvplug_status kvplug_cache_lengths(kvplug_cache* cache, int32_t layer, int64_t query_len, kvp_lengths* out,
                                   kvp_error* err) {
  return on_stack(cache, err, [&](CacheStack& stack) {
    need(out, "out");
    if (query_len < 0 || query_len > kMostTokens) {
      throw Error(Code::kInvalidArgument, "query_len " + std::to_string(query_len) + ": expected 0 to 2^40");
    }
    stack.lengths(layer, query_len, *out);
  });
}

kvplug_status kvplug_cache_update(kvplug_cache* cache, const kvp_call* call, const kvp_update_args* args,
                                  kvp_tensor* view_k, kvp_tensor* view_v, kvp_error* err) {
  return on_stack(cache, err, [&](CacheStack& stack) {
    check_tensor(need(args, "args").k, "k");
    check_tensor(args->v, "v");
    stack.update(need(call, "call"), *args, view_k, view_v);
  });
}

kvplug_status kvplug_cache_attend(kvplug_cache* cache, const kvp_call* call, const kvp_attend_args* args,
                                  kvp_tensor* out, kvp_tensor* lse, kvp_error* err) {
  return on_stack(cache, err, [&](CacheStack& stack) {
    check_tensor(need(args, "args").q, "q");
    check_tensor(args->k, "k");
    check_tensor(args->v, "v");
    check_tensor(&need(out, "out"), "out");
    stack.attend(need(call, "call"), *args, *out, lse);
  });
}

kvplug_status kvplug_cache_crop(kvplug_cache* cache, const kvp_call* call, const int64_t* n_remove, size_t n,
                                kvp_error* err) {
  return on_stack(cache, err,
                  [&](CacheStack& stack) { stack.crop(need(call, "call"), {&need(n_remove, "n_remove"), n}); });
}

kvplug_status kvplug_cache_gather(kvplug_cache* cache, const kvp_call* call, const int64_t* src_rows, size_t n,
                                  kvp_error* err) {
  return on_stack(cache, err,
                  [&](CacheStack& stack) { stack.gather(need(call, "call"), {&need(src_rows, "src_rows"), n}); });
}

kvplug_status kvplug_cache_set_rollback(kvplug_cache* cache, int64_t max_tokens, kvp_error* err) {
  return on_stack(cache, err, [&](CacheStack& stack) {
    kvp_call call{};
    call.struct_size = sizeof call;
    call.device_type = stack.params().device_type;
    call.device_id = stack.params().device_id;
    stack.set_rollback(call, max_tokens);
  });
}

kvplug_status kvplug_cache_clone(kvplug_cache* cache, const kvp_call* call, kvplug_cache** out, kvp_error* err) {
  return on_stack(cache, err, [&](CacheStack& stack) {
    need(out, "out");
    auto copy = std::make_unique<kvplug_cache>();
    copy->state = std::make_shared<CacheState>();
    copy->state->host = cache->state->host;
    copy->state->stack = stack.clone(need(call, "call"));
    *out = copy.release();
  });
}

kvplug_status kvplug_cache_reserve(kvplug_cache* cache, const kvp_call* call, int64_t batch, int64_t tokens,
                                   kvp_error* err) {
  return on_stack(cache, err, [&](CacheStack& stack) { stack.reserve(need(call, "call"), batch, tokens); });
}

kvplug_status kvplug_cache_reset(kvplug_cache* cache, const kvp_call* call, kvp_error* err) {
  return on_stack(cache, err, [&](CacheStack& stack) { stack.reset(need(call, "call")); });
}

kvplug_status kvplug_cache_begin_step(kvplug_cache* cache, const kvp_call* call, kvp_error* err) {
  return on_stack(cache, err, [&](CacheStack& stack) { stack.begin_step(need(call, "call")); });
}

kvplug_status kvplug_cache_end_step(kvplug_cache* cache, const kvp_call* call, kvp_error* err) {
  return on_stack(cache, err, [&](CacheStack& stack) { stack.end_step(need(call, "call")); });
}

kvplug_status kvplug_cache_memory(kvplug_cache* cache, int32_t layer, kvp_memory* out, kvp_error* err) {
  return on_stack(cache, err, [&](CacheStack& stack) {
    const size_t size = std::min(need(out, "out").struct_size, sizeof(kvp_memory));
    kvp_memory memory = stack.memory(layer);
    memory.struct_size = out->struct_size;
    std::memcpy(out, &memory, size);
  });
}

kvplug_status kvplug_cache_counters(kvplug_cache* cache, kvplug_buf** json, kvp_error* err) {
  return on_stack(cache, err, [&](CacheStack& stack) {
    need(json, "json");
    give(json, stack.counters());
  });
}

}  // extern "C"
