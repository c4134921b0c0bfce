// SPDX-License-Identifier: Apache-2.0
// The one door of libkvplug_model: loads models, lends the thread pool, says what it is made of.
#include <ATen/Version.h>
#include <kvplug/sdk/attention.h>
#include <torch/headeronly/version.h>

#include "model/exec/device_model.h"
#include "model/exec/errors.h"
#include "model/exec/explain.h"
#include "model/exec/kernels.h"
#include "model/exec/linear.h"
#include "model/exec/packed_model.h"
#include "model/exec/parallel.h"
#include "model/exec/step_runner.h"

namespace kvplug::model {
namespace {

class PackedExecutor final : public Executor {
 public:
  explicit PackedExecutor(std::shared_ptr<const PackedModel> model) : model_(std::move(model)) {}

  const Description& description() const override { return model_->description; }
  const LoadOptions& options() const override { return model_->options; }
  std::unique_ptr<Runner> prepare(const StepShape& shape, CacheStack* stack) override {
    return translated([&] {
      use_threads(model_->options.threads);
      return std::make_unique<StepRunner>(model_, shape, stack);
    });
  }
  nlohmann::json explain() const override {
    return translated([&] { return explain_model(model_->description, model_->options); });
  }
  uint64_t weight_bytes() const override { return model_->weight_bytes(); }

 private:
  const std::shared_ptr<const PackedModel> model_;
};

// On an accelerator.
class DeviceExecutor final : public Executor {
 public:
  explicit DeviceExecutor(std::shared_ptr<const DeviceModel> model) : model_(std::move(model)) {}

  const Description& description() const override { return model_->description; }
  const LoadOptions& options() const override { return model_->options; }
  std::unique_ptr<Runner> prepare(const StepShape& shape, CacheStack* stack) override {
    return translated([&] { return make_device_runner(model_, shape, stack, open_graph); });
  }
  nlohmann::json explain() const override { return explain_device(model_->options); }
  kvp_call call() const override { return device_call(model_->device); }
  uint64_t weight_bytes() const override { return model_->weight_bytes(); }

 private:
  const std::shared_ptr<const DeviceModel> model_;
};

class TorchModule final : public Module {
 public:
  std::shared_ptr<Executor> load(const Description& description, const LoadOptions& options,
                                 const Progress& progress) override {
    return translated([&] {
      use_threads(options.threads);
      if (options.device != "cpu") {
        const at::Device device = open_device(options.device);
        return std::shared_ptr<Executor>(std::make_shared<DeviceExecutor>(
            std::make_shared<const DeviceModel>(description, options, device, progress)));
      }
      return std::shared_ptr<Executor>(
          std::make_shared<PackedExecutor>(std::make_shared<const PackedModel>(description, options, progress)));
    });
  }
  nlohmann::json explain(const Description& description, const LoadOptions& options) override {
    if (options.device != "cpu") return explain_device(options);
    return translated([&] { return explain_model(description, options); });
  }
  void open(const std::string& device) override {
    translated([&] { open_device(device); });
  }
  EngineAllocator device_allocator() override { return model::device_allocator(); }
  const kvp_host_parallel* parallel() override { return torch_parallel(); }
  void set_threads(int threads) override { use_threads(threads); }
  nlohmann::json describe() const override {
    return translated([] {
      return nlohmann::json{{"libtorch", TORCH_VERSION},
                            {"onednn", onednn_version()},
                            {"cpu_capability", at::get_cpu_capability()},
                            {"elementwise", kernel_level()},
                            {"attention", sdk::attend_level()},
                            {"threads", use_threads(0)}};
    });
  }
};

}  // namespace
}  // namespace kvplug::model

extern "C" __attribute__((visibility("default"))) kvplug::model::Module* kvplug_model_module_v0() {
  static kvplug::model::TorchModule module;
  return &module;
}
