// SPDX-License-Identifier: Apache-2.0
// What is queued during one step, recorded once and replayed: the same operations on the same memory.
#pragma once

#include <functional>
#include <memory>

namespace kvplug::model {

class StepGraph {
 public:
  virtual ~StepGraph() = default;
  // Records what `work` queues on the current stream, and runs none of it; what it allocates stays the graph's. Throws
  // what work throws.
  virtual void record(const std::function<void()>& work) = 0;
  virtual void replay() = 0;
};

using GraphMaker = std::function<std::unique_ptr<StepGraph>()>;

}  // namespace kvplug::model
