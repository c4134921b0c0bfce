// SPDX-License-Identifier: Apache-2.0
// The CPU.
#include "engine.h"

#include <cstring>

#include "vectors.h"

namespace kvplug::quantized {
namespace {

using sdk::at;

class HostEngine final : public Engine {
 public:
  void start(const kvp_call&) noexcept override {}
  void check() override {}
  int32_t device_type() const noexcept override { return KVP_DEVICE_CPU; }
  int32_t device_id() const noexcept override { return 0; }
  const kvp_host_parallel* parallel() const noexcept override { return parallel_; }
  kvp_mem memory(uint64_t owner, int32_t purpose, int64_t bytes) const noexcept override {
    return sdk::host_memory(owner, purpose, static_cast<uint64_t>(bytes));
  }
  std::unique_ptr<sdk::PageStore> pages(const sdk::PageLayout& layout, uint64_t owner) const override {
    return std::make_unique<sdk::HeapPages>(layout, owner, KVP_PURPOSE_RESIDUAL);
  }
  int64_t attend_scratch(const sdk::AttendShape& shape) const noexcept override {
    return static_cast<int64_t>(sdk::attend_scratch_bytes(shape, workers()));
  }

  void upload(void* to, const void* from, size_t bytes) noexcept override { std::memcpy(to, from, bytes); }
  void copy(void* to, const void* from, size_t bytes) noexcept override { std::memcpy(to, from, bytes); }
  void fill(void* to, size_t bytes, uint32_t pattern) noexcept override {
    if (pattern == 0) {
      std::memset(to, 0, bytes);
    } else {
      std::fill_n(static_cast<uint32_t*>(to), bytes / 4, pattern);
    }
  }

  void use(const Lists&, int64_t, int64_t) noexcept override {}
  void add(const sdk::KvBlock*, int64_t) noexcept override {}
  kvp_status attend(const sdk::AttendShape& shape, const sdk::AttendCall& call, void* scratch,
                    size_t scratch_bytes) noexcept override {
    return sdk::attend(shape, call, parallel_, scratch, scratch_bytes);
  }
  void show(const sdk::KvBlock* blocks, int64_t first_block, int64_t from, int64_t to, bool keys,
            const kvp_tensor& out) noexcept override {
    const int64_t element = sdk::element_bytes(sdk::dtype_of(out));
    for (int64_t head = 0; head < out.shape[1]; ++head) {
      for (int64_t position = from; position < to; ++position) {
        const sdk::KvBlock& block = blocks[position / sdk::kBlockTokens - first_block];
        const int64_t offset = head * (keys ? block.k_head_stride : block.v_head_stride) +
                               position % sdk::kBlockTokens * (keys ? block.k_token_stride : block.v_token_stride);
        std::memcpy(
            at(out, 0, head, position - from),
            reinterpret_cast<const void*>(reinterpret_cast<int64_t>(keys ? block.k : block.v) + offset * element),
            static_cast<size_t>(out.shape[3] * element));
      }
    }
  }

  void convert(const kvp_tensor& from, const kvp_tensor& to, bool turn) noexcept override {
    const int64_t heads = from.shape[1], tokens = from.shape[2], dim = from.shape[3];
    const kvp_dtype in_type = sdk::dtype_of(from), out_type = sdk::dtype_of(to);
    sdk::parallel_for(parallel_, from.shape[0] * heads * tokens, 64, [&](int64_t begin, int64_t end) {
      float room[kMostTurned];
      for (int64_t i = begin; i < end; ++i) {
        const int64_t b = i / (heads * tokens), head = i / tokens % heads, token = i % tokens;
        const std::byte* const in = at(from, b, head, token);
        std::byte* const out = at(to, b, head, token);
        if (!turn && in_type.bits == 32) {
          from_floats(reinterpret_cast<const float*>(in), dim, out_type, out);
          continue;
        }
        float* const x = out_type.bits == 32 ? reinterpret_cast<float*>(out) : room;
        if (in != out || x == room) to_floats(in, in_type, dim, x);
        if (turn) rotate(x, dim);
        if (x == room) from_floats(x, dim, out_type, out);
      }
    });
  }
  void merge(float* sum, float* sum_lse, const float* part, const float* part_lse, int64_t vectors,
             int64_t dim) noexcept override {
    sdk::parallel_for(parallel_, vectors, 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        quantized::merge(sum + i * dim, sum_lse[i], part + i * dim, part_lse[i], dim);
      }
    });
  }
  void finish(const sdk::AttendRow* rows, const float* sum, const float* sum_lse, const kvp_tensor& out,
              const kvp_tensor* lse) noexcept override {
    const int64_t heads = out.shape[1], queries = out.shape[2], dim = out.shape[3];
    for (int64_t i = 0; i < out.shape[0] * heads * queries; ++i) {
      const int64_t b = i / (heads * queries), head = i / queries % heads, query = i % queries;
      const sdk::AttendRow& row = rows[b];
      const bool live = query < row.q_count && row.q_position + query >= 0;
      if (live) {
        from_floats(sum + i * dim, dim, sdk::dtype_of(out), at(out, b, head, query));
      } else {
        std::memset(at(out, b, head, query), 0, static_cast<size_t>(dim * sdk::element_bytes(sdk::dtype_of(out))));
      }
      if (lse == nullptr) continue;
      const float value = live ? sum_lse[i] : -std::numeric_limits<float>::infinity();
      std::memcpy(at(*lse, b, head, query), &value, sizeof value);
    }
  }

 private:
  const kvp_host_parallel* const parallel_ = sdk::host_parallel();
};

}  // namespace

std::string Engine::refusal(int32_t device_type) {
  return device_type == KVP_DEVICE_CPU ? "" : device_refusal(device_type);
}

std::shared_ptr<Engine> Engine::make(int32_t device_type, int32_t device_id) {
  if (device_type != KVP_DEVICE_CPU) return make_device_engine(device_type, device_id);
  return std::make_shared<HostEngine>();
}

}  // namespace kvplug::quantized
