// SPDX-License-Identifier: Apache-2.0
#include "api/model_library.h"

#include <dlfcn.h>

#include <mutex>
#include <string>

#include "core/error.h"

namespace kvplug::api {

std::filesystem::path library_folder() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&library_folder), &info) == 0 || !info.dli_fname) return {};
  std::error_code ec;
  const auto file = std::filesystem::canonical(info.dli_fname, ec);
  return ec ? std::filesystem::path() : file.parent_path();
}

model::Module& model_library() {
  static std::mutex mutex;
  static model::Module* module = nullptr;
  const std::lock_guard lock(mutex);
  if (module) return *module;
  const auto path = library_folder() / "libkvplug_model.so";
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    throw Error(Code::kNotFound, std::string("the model executor cannot be loaded: ") + dlerror(),
                "it comes with LibTorch and oneDNN: run tools/setup, then build again", path.string());
  }
  using Entry = model::Module* (*)();
  const auto entry = reinterpret_cast<Entry>(dlsym(library, "kvplug_model_module_v0"));
  if (!entry)
    throw Error(Code::kAbi, "is not the model executor of this release", "build and install both libraries together",
                path.string());
  module = entry();
  return *module;
}

}  // namespace kvplug::api
