// SPDX-License-Identifier: Apache-2.0
// A device: the kernels of paged caches (sdk::Device) and those of this plugin. Quantizers bring their own.
#include "engine.h"

#if defined(KVPLUG_CUDA_KERNELS)
#include "kernels.h"
#endif

namespace kvplug::quantized {

#if defined(KVPLUG_CUDA_KERNELS)
namespace {

using sdk::Device;
using sdk::DeviceRow;
using sdk::KvBlock;

class DeviceEngine final : public Engine {
 public:
  DeviceEngine(int32_t device_type, int32_t device_id)
      : queue_(std::make_shared<sdk::DeviceQueue>(*sdk::cuda_device(), device_type, device_id, nullptr)) {}

  void start(const kvp_call& call) noexcept override { queue_->start(call.stream); }
  void check() override { queue_->check(); }
  int32_t device_type() const noexcept override { return queue_->type(); }
  int32_t device_id() const noexcept override { return queue_->id(); }
  const kvp_host_parallel* parallel() const noexcept override { return nullptr; }
  kvp_mem memory(uint64_t owner, int32_t purpose, int64_t bytes) const noexcept override {
    return queue_->memory(owner, purpose, static_cast<uint64_t>(bytes));
  }
  std::unique_ptr<sdk::PageStore> pages(const sdk::PageLayout& layout, uint64_t owner) const override {
    return std::make_unique<sdk::DevicePages>(layout, owner, queue_, false, KVP_PURPOSE_RESIDUAL);
  }
  int64_t attend_scratch(const sdk::AttendShape& shape) const noexcept override {
    return static_cast<int64_t>(queue_->device().attend_scratch_bytes(shape));
  }

  void upload(void* to, const void* from, size_t bytes) noexcept override {
    queue_->run(&Device::upload, to, from, bytes);
  }
  void copy(void* to, const void* from, size_t bytes) noexcept override {
    queue_->run(&Device::copy, sdk::DeviceCopy{to, from, bytes, bytes, 1});
  }
  void fill(void* to, size_t bytes, uint32_t pattern) noexcept override {
    queue_->run(kernels_.fill, to, bytes, pattern);
  }

  void use(const Lists& lists, int64_t batch, int64_t n) noexcept override {
    first_ = reinterpret_cast<const KvBlock*>(lists.blocks.data());
    rows_ = reinterpret_cast<DeviceRow*>(lists.on_device.data());
    blocks_ = reinterpret_cast<KvBlock*>(lists.on_device.data() + static_cast<size_t>(batch) * sizeof(DeviceRow));
    add(first_, n);
  }
  void add(const KvBlock* first, int64_t n) noexcept override {
    upload(blocks_ + (first - first_), first, static_cast<size_t>(n) * sizeof(KvBlock));
  }
  kvp_status attend(const sdk::AttendShape& shape, const sdk::AttendCall& call, void* scratch,
                    size_t) noexcept override {
    int64_t longest = 0;
    const auto row_at = [&](int64_t b) {
      const sdk::AttendRow& row = call.rows[b];
      longest = std::max(longest, row.kv_end - row.kv_begin);
      return sdk::device_row(row, first_);
    };
    sdk::upload_rows(rows_, shape.batch, row_at,
                     [&](void* to, const void* from, size_t bytes) { upload(to, from, bytes); });
    queue_->run(&Device::attend, shape, call, static_cast<const DeviceRow*>(rows_),
                static_cast<const KvBlock*>(blocks_), longest, scratch);
    return KVP_OK;
  }
  void show(const KvBlock* blocks, int64_t first_block, int64_t from, int64_t to, bool keys,
            const kvp_tensor& out) noexcept override {
    queue_->run(kernels_.show, blocks_ + (blocks - first_), first_block, from, to, keys, out);
  }

  void convert(const kvp_tensor& from, const kvp_tensor& to, bool turn) noexcept override {
    queue_->run(kernels_.convert, from, to, turn);
  }
  void merge(float* sum, float* sum_lse, const float* part, const float* part_lse, int64_t vectors,
             int64_t dim) noexcept override {
    queue_->run(kernels_.merge, sum, sum_lse, part, part_lse, vectors, dim);
  }
  void finish(const sdk::AttendRow*, const float* sum, const float* sum_lse, const kvp_tensor& out,
              const kvp_tensor* lse) noexcept override {
    queue_->run(kernels_.finish, static_cast<const DeviceRow*>(rows_), sum, sum_lse, out, lse);
  }

 private:
  const std::shared_ptr<sdk::DeviceQueue> queue_;
  const DeviceKernels& kernels_ = cuda_kernels();
  const KvBlock* first_ = nullptr;  // of the lists in use, in host memory and on the device
  KvBlock* blocks_ = nullptr;
  DeviceRow* rows_ = nullptr;
};

}  // namespace

std::string device_refusal(int32_t device_type) {
  if (device_type == KVP_DEVICE_CUDA) return "";
  return "quantized attends on the CPU or with CUDA; device type " + std::to_string(device_type) + " was asked for";
}
std::shared_ptr<Engine> make_device_engine(int32_t device_type, int32_t device_id) {
  return std::make_shared<DeviceEngine>(device_type, device_id);
}
#else
std::string device_refusal(int32_t device_type) {
  return "quantized was built without its CUDA kernels, for which device type " + std::to_string(device_type) +
         " asks: build kvplug with KVPLUG_WITH_CUDA=ON, or compute on the CPU";
}
std::shared_ptr<Engine> make_device_engine(int32_t device_type, int32_t) {
  sdk::fail(KVP_UNSUPPORTED, device_refusal(device_type));
}
#endif

}  // namespace kvplug::quantized
