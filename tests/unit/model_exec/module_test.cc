// SPDX-License-Identifier: Apache-2.0
// libkvplug_model through its door, opened as libkvplug opens it: this program links neither LibTorch nor oneDNN.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "core/error.h"
#include "model/executor.h"

namespace kvplug::model {
namespace {

Module& module() {
  static Module* const opened = [] {
    const std::string path = std::string(KVPLUG_TEST_BUILD) + "/lib/libkvplug_model.so";
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    return reinterpret_cast<Module* (*)()>(dlsym(library, "kvplug_model_module_v0"))();
  }();
  return *opened;
}

Description tiny(const std::string& name) {
  return describe_model(std::filesystem::path(KVPLUG_TEST_DATA) / "models" / name);
}

TEST(Module, SaysWhatItIsMadeOf) {
  const auto about = module().describe();
  EXPECT_EQ(about.at("libtorch").get<std::string>().substr(0, 2), "2.");
  EXPECT_EQ(about.at("onednn").get<std::string>().substr(0, 2), "3.");
  EXPECT_FALSE(about.at("cpu_capability").get<std::string>().empty());
  EXPECT_GE(module().parallel()->workers(module().parallel()->ctx), 1);
}

TEST(Module, LoadsAndComputes) {
  uint64_t last = 0, all = 0;
  const auto executor = module().load(tiny("qwen2"), {.dtype = {KVP_DTYPE_FLOAT, 32, 1}, .threads = 1},
                                      [&](uint64_t done, uint64_t total) {
                                        EXPECT_GE(done, last);
                                        last = done, all = total;
                                        return true;
                                      });
  EXPECT_EQ(last, all);
  EXPECT_GT(all, 0u);
  EXPECT_GE(executor->weight_bytes(), weight_bytes(executor->description(), executor->options().dtype));
  const auto explained = executor->explain();
  EXPECT_EQ(explained.at("dtype"), "float32");
  EXPECT_EQ(explained.at("threads"), 1);
  EXPECT_EQ(explained, module().explain(executor->description(), executor->options()));
  const auto runner = executor->prepare({.max_batch = 1, .max_query = 3, .use_cache = false}, nullptr);
  EXPECT_GT(runner->scratch_bytes(), 0u);
  const int32_t ids[] = {1, 2, 3};
  std::vector<float> logits(static_cast<size_t>(executor->description().vocab_size), NAN);
  runner->forward({.ids = ids, .batch = 1, .tokens = 3}, nullptr, logits.data());
  for (const float value : logits) EXPECT_TRUE(std::isfinite(value));
}

// The exception is made inside the library, whose symbols are hidden, and caught here.
TEST(Module, ErrorsArriveAsErrors) {
  Description description = tiny("llama");
  description.files[0] = "/nowhere/model.safetensors";
  try {
    module().load(description, {.dtype = description.checkpoint_dtype, .threads = 1}, {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kIo);
    EXPECT_EQ(error.where(), "/nowhere/model.safetensors");
  }
  try {
    module().load(tiny("llama"), {.dtype = {KVP_DTYPE_INT, 8, 1}, .threads = 1}, {});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kUnsupported);
  }
}

}  // namespace
}  // namespace kvplug::model
