// SPDX-License-Identifier: Apache-2.0
// What a quantized cache computes with and where its data lie: the CPU and host memory, or a device and its own. The
// cache decides, from rows and tables in host memory; an engine does the work: at once, or queued on the stream of the
// call. Nothing throws but check() and what takes memory.
#pragma once

#include <kvplug/sdk/paged_layer.h>

#include <memory>

namespace kvplug::quantized {

// The largest dims that are turned.
inline constexpr int64_t kMostTurned = 4096;

// Room for lists in host memory, and where the data are computed with.
struct Lists {
  sdk::Block blocks;     // KvBlock
  sdk::Block on_device;  // DeviceRow [batch], then as `blocks`; nothing on the CPU
};

class Engine {
 public:
  virtual ~Engine() = default;

  // Empty, or why there is none for devices of this type.
  static std::string refusal(int32_t device_type);
  static std::shared_ptr<Engine> make(int32_t device_type, int32_t device_id);

  virtual void start(const kvp_call& call) noexcept = 0;
  // Throws DEVICE if something since start() failed.
  virtual void check() = 0;

  virtual int32_t device_type() const noexcept = 0;
  virtual int32_t device_id() const noexcept = 0;
  bool on_device() const noexcept { return device_type() != KVP_DEVICE_CPU; }
  int32_t tier() const noexcept { return on_device() ? KVP_TIER_DEVICE : KVP_TIER_HOST; }
  // The host's threads; NULL on a device.
  virtual const kvp_host_parallel* parallel() const noexcept = 0;
  int32_t workers() const noexcept { return sdk::worker_count(parallel()); }
  virtual kvp_mem memory(uint64_t owner, int32_t purpose, int64_t bytes) const noexcept = 0;
  virtual std::unique_ptr<sdk::PageStore> pages(const sdk::PageLayout& layout, uint64_t owner) const = 0;
  virtual int64_t attend_scratch(const sdk::AttendShape& shape) const noexcept = 0;
  template <size_t N>
  kvp_tensor tensor(void* data, kvp_dtype dtype, const int64_t (&shape)[N]) const noexcept {
    kvp_tensor t = sdk::dense_tensor(data, dtype, shape);
    t.device_type = device_type();
    t.device_id = device_id();
    return t;
  }

  // Bytes of host memory to where the engine computes, and between two places there.
  virtual void upload(void* to, const void* from, size_t bytes) noexcept = 0;
  virtual void copy(void* to, const void* from, size_t bytes) noexcept = 0;
  // `bytes`, a multiple of 4, of a pattern; any number of zero.
  virtual void fill(void* to, size_t bytes, uint32_t pattern) noexcept = 0;

  // From now on `blocks` of attend() and show() lie in these lists, of which `n` blocks are written. Likewise n blocks
  // from `first` on, written after that.
  virtual void use(const Lists& lists, int64_t batch, int64_t n) noexcept = 0;
  virtual void add(const sdk::KvBlock* first, int64_t n) noexcept = 0;
  virtual kvp_status attend(const sdk::AttendShape& shape, const sdk::AttendCall& call, void* scratch,
                            size_t scratch_bytes) noexcept = 0;
  // Positions [from, to) of a row whose blocks begin at first_block; K or V; to [1, kv_heads, to - from, dim].
  virtual void show(const sdk::KvBlock* blocks, int64_t first_block, int64_t from, int64_t to, bool keys,
                    const kvp_tensor& out) noexcept = 0;

  // from [b, heads, tokens, dim] to `to`, one of them float32, or turned on the way (vectors.h: rotate), dims up to
  // kMostTurned then. May be one and the same.
  virtual void convert(const kvp_tensor& from, const kvp_tensor& to, bool turn) noexcept = 0;
  // Dense float32: sum [vectors, dim] and its lse take in `part` and its.
  virtual void merge(float* sum, float* sum_lse, const float* part, const float* part_lse, int64_t vectors,
                     int64_t dim) noexcept = 0;
  // Dense float32 to out [batch, heads, queries, dim] and lse; queries that are padding in rows, which are those of the
  // last attend(), become 0 and -inf.
  virtual void finish(const sdk::AttendRow* rows, const float* sum, const float* sum_lse, const kvp_tensor& out,
                      const kvp_tensor* lse) noexcept = 0;
};

std::string device_refusal(int32_t device_type);
std::shared_ptr<Engine> make_device_engine(int32_t device_type, int32_t device_id);

}  // namespace kvplug::quantized
