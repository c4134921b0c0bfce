// SPDX-License-Identifier: Apache-2.0
#include "ggml_attention.h"

#include <ggml-cpu.h>
#include <ggml.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace kvplug::bench {

namespace {

ggml_type type_of(int bits) { return bits == 16 ? GGML_TYPE_F16 : bits == 8 ? GGML_TYPE_Q8_0 : GGML_TYPE_Q4_0; }

struct Planned {
  ggml_cgraph* graph;
  ggml_cplan plan;
};

}  // namespace

struct GgmlAttention::State {
  ggml_type type;
  Shape shape;
  size_t bytes;  // of a layer
  char* memory;
  ggml_context* context;
  ggml_threadpool* pool;
  std::vector<Planned> planned;  // of one token, then of each layer
  std::vector<uint8_t> work;     // of all

  ~State() {
    ggml_threadpool_free(pool);
    ggml_free(context);
  }
  ggml_tensor* tensor(ggml_type of, int64_t rows, int64_t heads, void* data) {
    ggml_tensor* t = ggml_new_tensor_3d(context, of, shape.dim, rows, heads);
    t->data = data;
    return t;
  }
  void add(size_t layer, int64_t tokens, int threads, float* q, float* out) {
    char* k = memory + layer * bytes;
    ggml_tensor* result = ggml_flash_attn_ext(context, tensor(GGML_TYPE_F32, 1, shape.q_heads, q),
                                              tensor(type, tokens, shape.kv_heads, k),
                                              tensor(type, tokens, shape.kv_heads, k + bytes / 2), nullptr,
                                              1 / std::sqrt(static_cast<float>(shape.dim)), 0, 0);
    result->data = out;
    ggml_cgraph* graph = ggml_new_graph_custom(context, 8, false);
    ggml_build_forward_expand(graph, result);
    planned.push_back({graph, ggml_graph_plan(graph, threads, pool)});
    work.resize(std::max(work.size(), planned.back().plan.work_size));
  }
  bool compute(Planned& p) {
    p.plan.work_data = work.data();
    return ggml_graph_compute(p.graph, &p.plan) == GGML_STATUS_SUCCESS;
  }
};

std::string GgmlAttention::type(int bits) { return ggml_type_name(type_of(bits)); }

size_t GgmlAttention::layer_bytes(int bits, const Shape& s) {
  return ggml_row_size(type_of(bits), 2 * s.kv_heads * s.context * s.dim);
}

GgmlAttention::GgmlAttention(int bits, const Shape& shape, size_t layers, int threads, const std::vector<float>& kv,
                             char* memory, float* q, float* out) {
  const size_t graph_bytes = ggml_graph_overhead_custom(8, false) + 4 * ggml_tensor_overhead();
  ggml_context* context = ggml_init({(layers + 1) * graph_bytes, nullptr, true});
  ggml_threadpool_params threading = ggml_threadpool_params_default(threads);
  state_.reset(new State{
      type_of(bits), shape, layer_bytes(bits, shape), memory, context, ggml_threadpool_new(&threading), {}, {}});
  ggml_quantize_chunk(state_->type, kv.data(), memory, 0, 2 * shape.kv_heads * shape.context, shape.dim, nullptr);
  for (size_t l = 1; l < layers; ++l) std::memcpy(memory + l * state_->bytes, memory, state_->bytes);
  state_->add(0, 1, threads, q, out);
  for (size_t l = 0; l < layers; ++l) state_->add(l, shape.context, threads, q, out);
}

GgmlAttention::~GgmlAttention() = default;

bool GgmlAttention::attend(size_t layer) { return state_->compute(state_->planned[layer + 1]); }

bool GgmlAttention::wake() { return state_->compute(state_->planned[0]); }

std::vector<float> GgmlAttention::held() const {
  const Shape& s = state_->shape;
  std::vector<float> kv(static_cast<size_t>(2 * s.kv_heads * s.context * s.dim));
  ggml_get_type_traits(state_->type)->to_float(state_->memory, kv.data(), static_cast<int64_t>(kv.size()));
  return kv;
}

}  // namespace kvplug::bench
