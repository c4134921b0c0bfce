// SPDX-License-Identifier: Apache-2.0
// The one place where kernels meet their compiler. Under nvcc this is CUDA. Under a C++ compiler, for tests on machines
// without a device, the same kernels run in an emulator (tests/support/cuda_emulator.h): one block after the other, its
// threads as fibers with real barriers, device memory being host memory.
//
// A kernel is KVP_KERNEL void f(...), is launched by launch(), gets its dynamic shared memory from shared_memory(), and
// uses blockIdx, threadIdx, blockDim and __syncthreads() only.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define KVP_KERNEL __global__
#define KVP_DEVICE_CODE __device__ __forceinline__

namespace kvplug::sdk::cuda {

KVP_DEVICE_CODE float* shared_memory() {
  extern __shared__ float kvp_shared[];
  return kvp_shared;
}

struct F32 {
  using Bits = float;
  static KVP_DEVICE_CODE float load(Bits x) { return x; }
  static KVP_DEVICE_CODE Bits store(float x) { return x; }
};
struct F16 {
  using Bits = __half;
  static KVP_DEVICE_CODE float load(Bits x) { return __half2float(x); }
  static KVP_DEVICE_CODE Bits store(float x) { return __float2half_rn(x); }
};
struct BF16 {
  using Bits = __nv_bfloat16;
  static KVP_DEVICE_CODE float load(Bits x) { return __bfloat162float(x); }
  static KVP_DEVICE_CODE Bits store(float x) { return __float2bfloat16_rn(x); }
};

// The stream's device is current for as long as this lives.
class Current {
 public:
  explicit Current(int device) {
    cudaGetDevice(&before_);
    if (before_ != device) cudaSetDevice(device);
    changed_ = before_ != device;
  }
  ~Current() {
    if (changed_) cudaSetDevice(before_);
  }
  Current(const Current&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

// More than 48 KiB of shared memory are there on request only.
template <class... Params, class... Args>
int launch(void (*kernel)(Params...), dim3 grid, unsigned threads, size_t shared_bytes, void* stream, Args... args) {
  if (shared_bytes > 48 * 1024) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes));
    if (error != cudaSuccess) return error;
  }
  kernel<<<grid, threads, shared_bytes, static_cast<cudaStream_t>(stream)>>>(args...);
  return cudaGetLastError();
}

inline int upload_bytes(void* stream, void* to, const void* from, size_t bytes) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, static_cast<cudaStream_t>(stream));
}
inline int copy_bytes(void* stream, void* to, const void* from, size_t bytes, size_t pitch, size_t rows) {
  return cudaMemcpy2DAsync(to, pitch, from, pitch, bytes, rows, cudaMemcpyDeviceToDevice,
                           static_cast<cudaStream_t>(stream));
}
inline int move_bytes(void* stream, void* to, const void* from, size_t bytes) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream));
}

inline int clear_bytes(void* stream, void* to, size_t bytes) {
  return cudaMemsetAsync(to, 0, bytes, static_cast<cudaStream_t>(stream));
}

// Without the implicit order that the default stream has with others.
inline int stream_create(void** out) {
  cudaStream_t stream = nullptr;
  const cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  *out = stream;
  return error;
}
inline void stream_destroy(void* stream) { cudaStreamDestroy(static_cast<cudaStream_t>(stream)); }
inline int stream_synchronize(void* stream) { return cudaStreamSynchronize(static_cast<cudaStream_t>(stream)); }
inline int event_create(void** out) {
  cudaEvent_t event = nullptr;
  const cudaError_t error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  *out = event;
  return error;
}
inline void event_destroy(void* event) { cudaEventDestroy(static_cast<cudaEvent_t>(event)); }
inline int event_record(void* stream, void* event) {
  return cudaEventRecord(static_cast<cudaEvent_t>(event), static_cast<cudaStream_t>(stream));
}
inline int event_wait(void* stream, void* event) {
  return cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), static_cast<cudaEvent_t>(event), 0);
}
inline const char* error_name(int error) { return cudaGetErrorString(static_cast<cudaError_t>(error)); }

}  // namespace kvplug::sdk::cuda

#else
#include "cuda_emulator.h"
#endif
