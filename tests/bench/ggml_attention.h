// SPDX-License-Identifier: Apache-2.0
// ggml's attention as a peer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace kvplug::bench {

// ggml_flash_attn_ext of one query over layers of K and V, each [kv_heads, context, dim] in ggml's type of that many
// bits: f16, q8_0 or q4_0. Graphs, plans and threads are made once, ahead.
class GgmlAttention {
 public:
  struct Shape {
    int64_t q_heads, kv_heads, context, dim;
  };

  static std::string type(int bits);
  static size_t layer_bytes(int bits, const Shape& shape);
  // Writes `kv` (K, then V) to each layer of `memory`. q and out: float32 [q_heads, dim].
  GgmlAttention(int bits, const Shape& shape, size_t layers, int threads, const std::vector<float>& kv, char* memory,
                float* q, float* out);
  ~GgmlAttention();
  bool attend(size_t layer);
  bool wake();                      // the threads, by attention to one token
  std::vector<float> held() const;  // `kv` as the type holds it

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvplug::bench
