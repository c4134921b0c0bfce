// SPDX-License-Identifier: Apache-2.0
// What an accelerator does for a paged cache, and the queue through which one cache asks for it. Everything is queued
// on the stream of the call; nothing waits for the device, and what comes from host memory has been read when a
// function returns. Rows, tables and decisions stay in host memory: a device gets lists of addresses.
#pragma once

#include <kvplug/sdk/attention.h>
#include <kvplug/sdk/host.h>
#include <kvplug/sdk/status.h>

#include <cstring>
#include <string>

namespace kvplug::sdk {

// The tail of a page's head in one copy: `rows` pieces of `bytes`, `pitch` bytes apart on both sides.
struct DeviceCopy {
  void* to;
  const void* from;
  size_t bytes, pitch, rows;
};

// Tokens [token, token + n) of row `row` of a call, to places of one page. k, v: the page's first head at that place.
struct DeviceSegment {
  void* k;
  void* v;
  int64_t row, token, n;
};

// As AttendRow; `list`: index of the row's first block.
struct DeviceRow {
  int64_t list, first_block, kv_begin, kv_end, q_position, q_count, bias_column;
  int64_t origin = 0;
};

// The row of a call whose blocks lie in a list that begins at `list`.
inline DeviceRow device_row(const AttendRow& row, const KvBlock* list) noexcept {
  return {row.blocks - list, row.first_block, row.kv_begin, row.kv_end, row.q_position, row.q_count, row.bias_column};
}

// row(b) for every row of a batch to `to`, 32 at a time, so that nothing is taken for it. upload(to, from, bytes) has
// read `from` when it returns.
template <class Row, class Upload>
void upload_rows(DeviceRow* to, int64_t batch, Row&& row, Upload&& upload) {
  constexpr int64_t kSome = 32;
  DeviceRow some[kSome];
  for (int64_t first = 0; first < batch; first += kSome) {
    const int64_t n = batch - first < kSome ? batch - first : kSome;
    for (int64_t i = 0; i < n; ++i) some[i] = row(first + i);
    upload(to + first, some, static_cast<size_t>(n) * sizeof(DeviceRow));
  }
}

// A recorded step: where the device itself keeps how long the rows are.
struct DeviceClock {
  const int32_t* row_seen;  // [batch], slots before the step
  const int64_t* row_pad;   // [batch]
  int64_t columns;          // blocks of a row in the list
};

class Device {
 public:
  virtual ~Device() = default;
  // Each returns 0 or the device's error number. Addresses are the device's, except where said.
  virtual int upload(int device, void* stream, void* to, const void* from_host, size_t bytes) const = 0;
  virtual int copy(int device, void* stream, const DeviceCopy& copy) const = 0;
  virtual int append(int device, void* stream, const DeviceSegment* segments_in_host, int64_t n, const kvp_tensor& k,
                     const kvp_tensor& v) const = 0;
  // One of K and V, dense [batch, heads, kv_len, dim]: zero outside of [kv_begin, kv_end).
  virtual int view(int device, void* stream, const DeviceRow* rows, const KvBlock* blocks, bool keys, int64_t kv_offset,
                   const kvp_tensor& out) const = 0;
  // call.rows is unused; `longest`: the most tokens that a row of the call shows.
  virtual int attend(int device, void* stream, const AttendShape& shape, const AttendCall& call, const DeviceRow* rows,
                     const KvBlock* blocks, int64_t longest, void* scratch) const = 0;
  // Of a recorded step: rows from the clock, then the call's tokens into the pages.
  virtual int clock_rows(int device, void* stream, const DeviceClock& clock, int64_t batch, int64_t queries,
                         DeviceRow* rows) const = 0;
  virtual int clock_append(int device, void* stream, const DeviceRow* rows, const KvBlock* blocks, const kvp_tensor& k,
                           const kvp_tensor& v) const = 0;
  virtual size_t attend_scratch_bytes(const AttendShape& shape) const = 0;

  // For data that move while others are computed with: streams beside those of calls, events that order streams, and
  // copies between device memory and pinned host memory.
  virtual int make_stream(int device, void** out) const = 0;
  virtual void drop_stream(int device, void* stream) const = 0;
  virtual int make_event(int device, void** out) const = 0;
  virtual void drop_event(int device, void* event) const = 0;
  // The event stands for all that has been queued on the stream so far, no longer for what it stood for before.
  virtual int record(int device, void* stream, void* event) const = 0;
  // What is queued on the stream from now on comes behind what the event stands for.
  virtual int wait(int device, void* stream, void* event) const = 0;
  virtual int move(int device, void* stream, void* to, const void* from, size_t bytes) const = 0;
  // The one function that waits for the device: for all that is queued on the stream.
  virtual int synchronize(int device, void* stream) const = 0;
  virtual const char* error_text(int error) const = 0;
};

// NULL in a build without CUDA kernels.
const Device* cuda_device() noexcept;

// One instance's way to its device. An error stays until it is asked for: the work goes on being queued, in vain.
class DeviceQueue {
 public:
  DeviceQueue(const Device& device, int32_t type, int32_t id, void* stream)
      : device_(device), type_(type), id_(id), stream_(stream) {}

  void start(void* stream) noexcept { stream_ = stream; }
  const Device& device() const noexcept { return device_; }
  int32_t type() const noexcept { return type_; }
  int32_t id() const noexcept { return id_; }
  void* stream() const noexcept { return stream_; }
  // do_(&Device::copy, ...): the member function with this queue's device and stream.
  template <class... Params, class... Args>
  void run(int (Device::*work)(int, void*, Params...) const, Args&&... args) noexcept {
    note((device_.*work)(id_, stream_, std::forward<Args>(args)...));
  }
  // A plugin's own kernels: a function of a device and a stream.
  template <class... Params, class... Args>
  void run(int (*work)(int, void*, Params...), Args&&... args) noexcept {
    note(work(id_, stream_, std::forward<Args>(args)...));
  }
  // Throws DEVICE: the instance is lost.
  void check() {
    const int error = std::exchange(error_, 0);
    if (error != 0) fail(KVP_DEVICE, "device ", id_, " reported error ", error, ": ", device_.error_text(error));
  }
  // Device memory, or pinned host memory that it reaches.
  kvp_mem memory(uint64_t owner, int32_t purpose, uint64_t bytes, int32_t tier = KVP_TIER_DEVICE) const noexcept {
    kvp_mem mem = host_memory(owner, purpose, bytes);
    mem.align = 256;
    mem.tier = tier;
    mem.device_type = type_;
    mem.device_id = id_;
    mem.stream = stream_;
    return mem;
  }

 private:
  void note(int error) noexcept {
    if (error_ == 0) error_ = error;
  }

  const Device& device_;
  const int32_t type_, id_;
  void* stream_;
  int error_ = 0;
};

}  // namespace kvplug::sdk
