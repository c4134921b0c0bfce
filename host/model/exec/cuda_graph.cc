// SPDX-License-Identifier: Apache-2.0
// LibTorch's CUDA graph as a StepGraph. A library of its own, libkvplug_model_cuda, opened behind libtorch_cuda.so, in
// which its open symbols are found: so nothing that a machine without a device loads names a CUDA library.
#include <ATen/cuda/CUDAGraph.h>

#include "model/exec/step_graph.h"

namespace kvplug::model {
namespace {

class CudaGraph final : public StepGraph {
 public:
  void record(const std::function<void()>& work) override {
    graph_.capture_begin({0, 0}, cudaStreamCaptureModeThreadLocal);
    try {
      work();
    } catch (...) {
      try {
        graph_.capture_end();
      } catch (const std::exception&) {  // the first error is the one to tell
      }
      throw;
    }
    graph_.capture_end();
  }
  void replay() override { graph_.replay(); }

 private:
  at::cuda::CUDAGraph graph_;
};

}  // namespace
}  // namespace kvplug::model

extern "C" __attribute__((visibility("default"))) kvplug::model::StepGraph* kvplug_step_graph_v0() {
  return new kvplug::model::CudaGraph();
}
