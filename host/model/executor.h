// SPDX-License-Identifier: Apache-2.0
// The seam between libkvplug and libkvplug_model: what generate knows of a model that can compute. Implemented in
// model/exec on LibTorch and oneDNN; the library is opened by the first call that needs weights, so everything else
// runs without LibTorch in the process.
#pragma once

#include <kvplug/abi.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "core/accounts.h"
#include "core/cache_stack.h"
#include "model/describe/description.h"

namespace kvplug::model {

// done and total in bytes of weights; a return of false stops the load (kCancelled).
using Progress = std::function<bool(uint64_t done, uint64_t total)>;

struct LoadOptions {
  kvp_dtype dtype{};           // compute and K/V dtype, already resolved from "auto"
  int threads = 0;             // computing threads of this model's steps; 0 = physical cores
  bool mmap = true;            // false: read the files into memory
  std::string device = "cpu";  // cpu, cuda or cuda:N
  bool deterministic = false;  // matrix products whose result for a row does not depend on the other rows
};

// Whether such a word ("auto" too) names an accelerator.
inline bool on_device(const std::string& device) { return device.starts_with("cuda"); }

// Where a cache for a model on `device` (as in LoadOptions) keeps K/V and attends.
inline void place(StackParams& params, const std::string& device) {
  const bool cuda = on_device(device);
  params.device_type = cuda ? KVP_DEVICE_CUDA : KVP_DEVICE_CPU;
  params.device_id = cuda && device.size() > 5 ? std::stoi(device.substr(5)) : 0;
}

// One forward pass. Everything lies in host memory and is borrowed for the call.
struct ForwardInput {
  const int32_t* ids = nullptr;  // [batch, tokens]; every id in 0..vocab-1 (checked by the caller)
  int64_t batch = 0, tokens = 0;
  const int64_t* pad = nullptr;    // [batch] leading padding tokens of this call, NULL = none
  const int64_t* count = nullptr;  // [batch] tokens the row takes (the rest is right padding), NULL = all
  // The caller reserved what the step needs: the stack gets KVP_CALL_PREPARED where it attends to every layer itself.
  // On a device such a step is recorded into a graph, and the next ones replay it, where the stack can do that.
  bool prepared = false;
};

// What a Runner sizes its scratch for.
struct StepShape {
  int64_t max_batch = 1;
  int64_t max_query = 1;  // tokens of the longest forward (prompt, or prefill_chunk_size)
  bool use_cache = true;  // false: every forward gets the whole sequence and no stack
};

// Sees the output of every layer's attention, in layer order: [rows, q_heads * head_dim] float32, rows = batch * tokens
// of the step. Borrowed for the call.
using AttentionWatch = std::function<void(size_t layer, const float* out, int64_t rows, int64_t width)>;

// Scratch and bound kernels of one session: prepared once, then run without decisions. One thread at a time.
class Runner {
 public:
  virtual ~Runner() = default;
  // logits: [batch, vocab] float32 of each row's last token that counts (count[b]-1, or tokens-1).
  // stack may be NULL (use_cache = false). On an exception the stack is as it was, or poisoned and says so.
  virtual void forward(const ForwardInput& input, CacheStack* stack, float* logits) = 0;
  // Logits of every position, [batch, tokens, vocab] float32: scoring and tests.
  virtual void forward_all(const ForwardInput& input, CacheStack* stack, float* logits) = 0;
  // For comparisons; an empty one, as at first, costs nothing.
  virtual void watch_attention(AttentionWatch watch) = 0;
  virtual uint64_t scratch_bytes() const = 0;
};

// Immutable weights; shared by any number of sessions on any threads.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual const Description& description() const = 0;
  virtual const LoadOptions& options() const = 0;
  // Picks kernels and sizes scratch for the shape and the stack's layers (stack NULL without a cache).
  virtual std::unique_ptr<Runner> prepare(const StepShape& shape, CacheStack* stack) = 0;
  // {"linear": [{"name":"lm_head","backend":"onednn","implementation":"brgemm:avx512_core","shape":[576,49152]},...],
  // "attention": ...}
  virtual nlohmann::json explain() const = 0;
  virtual uint64_t weight_bytes() const = 0;  // bytes of weights held in memory (packed ones, mapped ones that stay)
  // The call with which a stack is changed between steps: the device and the stream of the model's steps, no flags.
  virtual kvp_call call() const {
    kvp_call out{};
    out.struct_size = sizeof out;
    out.device_type = KVP_DEVICE_CPU;
    return out;
  }
};

// Exported by libkvplug_model as `extern "C" kvplug::model::Module* kvplug_model_module_v0()`; static storage, never
// freed.
class Module {
 public:
  virtual std::shared_ptr<Executor> load(const Description& description, const LoadOptions& options,
                                         const Progress& progress) = 0;
  // What Executor::explain() of such a model would say; follows from shapes, no weights are read.
  virtual nlohmann::json explain(const Description& description, const LoadOptions& options) = 0;
  // kvp_host_parallel on LibTorch's own pool (at::parallel_for), for plugins at run level. Static storage.
  virtual const kvp_host_parallel* parallel() = 0;
  // Makes a device (as in LoadOptions) usable. Throws kUnsupported with what to install, kDevice.
  virtual void open(const std::string& device) = 0;
  // Device and pinned memory; only once a model is loaded on an accelerator.
  virtual EngineAllocator device_allocator() = 0;
  virtual void set_threads(int threads) = 0;    // for the calling thread
  virtual nlohmann::json describe() const = 0;  // versions of LibTorch and oneDNN, CPU capability

 protected:
  ~Module() = default;
};

}  // namespace kvplug::model
