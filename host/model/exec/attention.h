// SPDX-License-Identifier: Apache-2.0
// Attention of one layer, three ways to the same kernel: fused in the cache plugin (kvp.attend/1), over views that the
// cache gives back, or over the current keys and values alone when there is no cache. Which way a layer goes is asked
// when a session is prepared.
#pragma once

#include <kvplug/sdk/attention.h>

#include <span>
#include <vector>

#include "core/cache_stack.h"
#include "model/exec/buffer.h"
#include "model/exec/type.h"
#include "model/executor.h"

namespace kvplug::model {

// What becomes of q.k: softcap(scale * q.k), softcap(x) = c * tanh(x / c), 0 = none.
struct Scores {
  float scale = 1, softcap = 0;
};

// Of a layer's kind: its window, its chunk; 0 = none.
int64_t window_of(const kvp_layer& layer);
int64_t chunk_of(const kvp_layer& layer);

// The steps of a model as plugins are asked about them: layer `index` of the cache, appended to and attended to at
// once.
kvp_attend_desc step_desc(size_t index, const kvp_layer& layer, Type type, Scores scores, const StepShape& shape);

class Attention {
 public:
  // Asks the stack (NULL = no cache) which layers it attends to itself. Throws kUnsupported if the kernel cannot serve
  // the shape.
  Attention(std::span<const kvp_layer> layers, Type type, Scores scores, const StepShape& shape, CacheStack* stack);

  // The call of a step on `stack`: prepared where the input says so and no layer goes over views, which need scratch.
  kvp_call call_for(const ForwardInput& input, CacheStack* stack);

  // Before the layers of a forward: takes the rows' lengths from the stack and works out every token's position.
  // [batch * tokens] each: positions, the row position of each token, 0 for padding; slots, the same with the row's
  // padding counted.
  void begin(const ForwardInput& input, CacheStack* stack, int64_t* positions, int64_t* slots);

  // q [batch, q_heads, tokens, dim]; k, v [batch, kv_heads, tokens, dim] of this forward, appended to the cache; out as
  // q. Padding gets 0.
  void run(int32_t layer, const kvp_tensor& q, const kvp_tensor& k, const kvp_tensor& v, kvp_tensor& out);

  // A call in host memory, no flags.
  static kvp_call call() {
    kvp_call c{};
    c.struct_size = sizeof c;
    c.device_type = KVP_DEVICE_CPU;
    return c;
  }
  size_t scratch_bytes() const { return scratch_.size(); }

 private:
  void ask(CacheStack* stack);
  kvp_lengths lengths(int32_t layer, int64_t* row_seen, int64_t* row_pad) const;
  void attend_views(const kvp_layer& layer, const kvp_tensor& q, const kvp_tensor& k, const kvp_tensor& v,
                    int64_t first_slot, kvp_tensor& out);

  const std::vector<kvp_layer> layers_;
  const Type type_;
  const Scores scores_;
  const StepShape shape_;
  CacheStack* stack_ = nullptr;
  std::vector<bool> fused_;
  Buffer scratch_;

  // Of the current forward.
  kvp_call call_{};
  const ForwardInput* input_ = nullptr;
  std::vector<int64_t> row_seen_, row_pad_;  // before the forward; row_pad_ with its padding
  std::vector<sdk::AttendRow> rows_;
  std::vector<sdk::KvBlock> blocks_;
};

}  // namespace kvplug::model
