// SPDX-License-Identifier: Apache-2.0
// Finding LibTorch's CUDA library at run time. Nothing here links it: what is needed of it (allocators, streams) is
// reached through registries of libc10 and libtorch_cpu, which the library fills when it is opened.
#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <dlfcn.h>

#include <filesystem>
#include <map>
#include <mutex>

#include "core/error.h"
#include "model/exec/device_model.h"

namespace kvplug::model {
namespace {

constexpr const char* kLibrary = "libtorch_cuda.so";
constexpr const char* kGraphLibrary = "libkvplug_model_cuda.so";

// Beside the LibTorch of this process, or where the dynamic loader looks. Returns what went wrong, "" if nothing did.
std::string open_library() {
  static std::mutex mutex;
  static bool open = false;
  const std::lock_guard lock(mutex);
  if (open) return "";
  Dl_info info{};
  std::string why;
  if (dladdr(reinterpret_cast<const void*>(&at::getHostAllocator), &info) != 0 && info.dli_fname != nullptr) {
    const auto beside = std::filesystem::path(info.dli_fname).parent_path() / kLibrary;
    open = dlopen(beside.c_str(), RTLD_NOW | RTLD_GLOBAL) != nullptr;
    if (!open) why = dlerror();
  }
  if (!open) open = dlopen(kLibrary, RTLD_NOW | RTLD_GLOBAL) != nullptr;
  if (!open && why.empty()) why = dlerror();
  return open ? "" : why;
}

// libkvplug_model_cuda, beside this library.
StepGraph* (*open_graph_library())() {
  Dl_info info{};
  dladdr(reinterpret_cast<const void*>(&open_graph), &info);
  const auto path =
      std::filesystem::path(info.dli_fname != nullptr ? info.dli_fname : "").parent_path() / kGraphLibrary;
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  void* const symbol = library == nullptr ? nullptr : dlsym(library, "kvplug_step_graph_v0");
  if (symbol == nullptr) throw Error(Code::kUnsupported, std::string("steps cannot be recorded: ") + dlerror());
  return reinterpret_cast<StepGraph* (*)()>(symbol);
}

c10::Allocator* allocator_of(const kvp_mem& mem) {
  return mem.tier == KVP_TIER_PINNED ? at::getHostAllocator(at::kCUDA) : c10::GetAllocator(at::kCUDA);
}

}  // namespace

at::Device open_device(const std::string& name) {
  const at::Device device(name);
  if (device.is_cpu()) return device;
  if (const std::string why = open_library(); !why.empty()) {
    throw Error(
        Code::kUnsupported, "model.device = \"" + name + "\" needs LibTorch's CUDA library: " + why,
        "install it with its CUDA libraries (python3 -m pip install torch==2.11.0) and put the folder torch/lib "
        "on LD_LIBRARY_PATH, or compute on the CPU (model.device = \"cpu\")");
  }
  const auto* guard = c10::impl::getDeviceGuardImpl(device.type());
  const int count = guard->deviceCount();
  const int index = device.has_index() ? device.index() : 0;
  if (index >= count) {
    throw Error(Code::kDevice, "model.device = \"" + name + "\": there are " + std::to_string(count) + " CUDA devices",
                "`nvidia-smi` lists those that the driver sees; model.device = \"cpu\" needs none");
  }
  return {device.type(), static_cast<c10::DeviceIndex>(index)};
}

c10::Stream stream_of(const at::Device& device) {
  if (device.is_cpu()) return c10::Stream(c10::Stream::DEFAULT, device);
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, c10::Stream> streams;
  const std::lock_guard lock(mutex);
  const auto found = streams.find(device.index());
  if (found != streams.end()) return found->second;
  const c10::Stream made = c10::impl::getDeviceGuardImpl(device.type())->getStreamFromGlobalPool(device, false);
  return streams.emplace(device.index(), made).first->second;
}

kvp_call device_call(const at::Device& device) {
  kvp_call call{};
  call.struct_size = sizeof call;
  call.device_type = KVP_DEVICE_CPU;
  if (device.is_cpu()) return call;
  call.device_type = KVP_DEVICE_CUDA;
  call.device_id = device.index();
  call.stream = c10::impl::getDeviceGuardImpl(device.type())->getStreamNativeHandle(stream_of(device));
  return call;
}

std::unique_ptr<StepGraph> open_graph() {
  static StepGraph* (*const make)() = open_graph_library();
  return std::unique_ptr<StepGraph>(make());
}

EngineAllocator device_allocator() {
  EngineAllocator out;
  out.alloc = [](void*, const kvp_mem* mem, void** block, kvp_error*) -> int32_t {
    try {
      const c10::StreamGuard guard(stream_of({at::kCUDA, static_cast<c10::DeviceIndex>(mem->device_id)}));
      *block = allocator_of(*mem)->raw_allocate(mem->bytes);
      return KVP_OK;
    } catch (const std::exception&) {
      return KVP_OUT_OF_MEMORY;
    }
  };
  out.free = [](void*, const kvp_mem* mem, void* block) {
    try {
      allocator_of(*mem)->raw_deallocate(block);
    } catch (const std::exception&) {  // a device that is lost keeps its memory
    }
  };
  return out;
}

}  // namespace kvplug::model
