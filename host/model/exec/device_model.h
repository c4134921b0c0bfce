// SPDX-License-Identifier: Apache-2.0
// A model whose weights are LibTorch tensors on one device, and a runner on LibTorch's own operations: for
// accelerators. Weights are moved once, when the model is loaded. A forward moves what it consumes (ids, positions,
// masks), nothing that grows with the text lives on the device but the cache. Attention goes to the cache plugin
// (kvp.attend/1) where that serves it, else over views to scaled_dot_product_attention, or step by step where scores
// have a softcap.
//
// Device "cpu" is the same code: there tests hold it against the golden files, on machines without an accelerator.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <memory>
#include <string>
#include <vector>

#include "core/accounts.h"
#include "model/exec/step_graph.h"
#include "model/exec/type.h"
#include "model/executor.h"

namespace kvplug::model {

// A product y = x W^T + b; weight [out, in].
struct DeviceLinear {
  at::Tensor weight, bias;
};

struct DeviceLayer {
  at::Tensor input_norm, attention_out_norm, mlp_norm, mlp_out_norm, q_norm, k_norm;  // undefined: none
  DeviceLinear q, k, v, o, gate, up, down;
  at::Tensor router, experts_gate_up, experts_down;
};

class DeviceModel {
 public:
  DeviceModel(const Description& description, const LoadOptions& options, const at::Device& device,
              const Progress& progress);

  const Description description;
  const LoadOptions options;
  const Type type;
  const at::Device device;

  at::Tensor embedding, final_norm, lm_head;
  std::vector<DeviceLayer> layers;
  std::vector<float> inverse_frequencies;
  uint64_t weight_bytes() const { return bytes_; }

 private:
  uint64_t bytes_ = 0;
};

// Opens LibTorch's library for the device ("cuda", "cuda:1") if it is not part of the process yet. Throws kUnsupported,
// saying what to install, where there is none, and kDevice where it finds no device.
at::Device open_device(const std::string& name);
// Memory of an open accelerator and pinned host memory, from LibTorch's caching allocators.
EngineAllocator device_allocator();
// All of this process's work on an open accelerator is queued on one stream, not the default one, which cannot be
// recorded from. On the CPU there are none: the stream is LibTorch's placeholder.
c10::Stream stream_of(const at::Device& device);
kvp_call device_call(const at::Device& device);
// A graph on an open accelerator. Throws kUnsupported.
std::unique_ptr<StepGraph> open_graph();

// graphs: makes what decode steps are recorded into; empty: they are not.
std::unique_ptr<Runner> make_device_runner(std::shared_ptr<const DeviceModel> model, const StepShape& shape,
                                           CacheStack* stack, GraphMaker graphs = {});

}  // namespace kvplug::model
