// SPDX-License-Identifier: Apache-2.0
#include "model/exec/explain.h"

#include <kvplug/sdk/attention.h>

#include "model/exec/kernels.h"
#include "model/exec/linear.h"
#include "model/exec/packed_model.h"
#include "model/exec/parallel.h"

namespace kvplug::model {

nlohmann::json explain_model(const Description& d, const LoadOptions& options) {
  const Type type = type_of(options.dtype);
  const int64_t decode = options.deterministic ? kFixedRows : 1, prefill = options.deterministic ? kFixedRows : 128;
  const int64_t q = d.q_heads * d.head_dim, kv = d.kv_heads * d.head_dim;
  nlohmann::json linear = nlohmann::json::array();
  const auto add = [&](const char* name, size_t count, const LinearShape& shape) {
    const auto kind = make_linear(shape, {.fixed_rows = options.deterministic ? kFixedRows : 0});
    linear.push_back({{"name", name},
                      {"count", count},
                      {"shape", {shape.in, shape.out}},
                      {"backend", kind->backend()},
                      {"layout", kind->layout()},
                      {"implementation", kind->implementation(decode)},
                      {"prefill_implementation", kind->implementation(prefill)}});
  };
  add("qkv_proj", d.layers.size(), {d.hidden_size, q + 2 * kv, d.qkv_bias, type});
  add("o_proj", d.layers.size(), {q, d.hidden_size, d.o_bias, type});
  add("gate_up_proj", d.layers.size(), {d.hidden_size, 2 * d.intermediate_size, d.mlp_bias, type});
  add("down_proj", d.layers.size(), {d.intermediate_size, d.hidden_size, d.mlp_bias, type});
  add("lm_head", 1, {d.hidden_size, d.vocab_size, false, type});
  return {{"linear", linear},
          {"elementwise", kernel_level()},
          {"embedding", options.mmap ? "looked up in the mapped checkpoint" : "held in memory"},
          {"deterministic", options.deterministic},
          {"dtype", name_of(type)},
          {"threads", use_threads(options.threads)},
          {"attention", sdk::attend_level()}};
}

}  // namespace kvplug::model
