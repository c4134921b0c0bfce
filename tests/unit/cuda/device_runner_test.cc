// SPDX-License-Identifier: Apache-2.0
// The runner for accelerators, on device "cpu", against logits of Hugging Face Transformers: without a cache, on a
// cache's views, and fused in the plugin. What a device adds to this is where the tensors lie.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/registry.h"
#include "model/exec/device_model.h"
#include "model/exec/parallel.h"
#include "support/safetensors.h"
#include "unit/model_exec/tiny_model.h"
#include "unit/model_exec/view_stack.h"

namespace kvplug::model {
namespace {

using nlohmann::json;
using testing::find_case;
using testing::golden;

std::shared_ptr<const DeviceModel> load(const std::string& name) {
  const Description description = describe_model(testing::data("models/" + name));
  return std::make_shared<const DeviceModel>(
      description, LoadOptions{.dtype = description.checkpoint_dtype, .threads = 1}, open_device("cpu"), Progress());
}

Registry& registry() {
  static Registry* const all = [] {
    auto* made = new Registry(*new HostServices());
    made->load(std::filesystem::path(KVPLUG_TEST_BUILD) / "plugins/dynamic.toml");
    return made;
  }();
  return *all;
}

float worst_of(const std::vector<float>& a, const std::vector<float>& b) {
  float worst = a.size() == b.size() ? 0 : INFINITY;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    worst = std::isnan(a[i]) ? INFINITY : std::max(worst, std::abs(a[i] - b[i]));
  }
  return worst;
}

class DeviceRunner : public ::testing::TestWithParam<const char*> {};

TEST_P(DeviceRunner, LogitsOfEveryPositionWithoutACache) {
  const std::string name = GetParam();
  const json file = golden(name);
  const json& one = find_case(file, name + "/forward/single");
  const auto tensors =
      testing::read_safetensors(testing::data("golden/generate/" + file.at("tensors").get<std::string>()));
  const std::vector<int32_t> ids = one.at("input_ids").at(0);
  const auto model = load(name);
  const auto tokens = static_cast<int64_t>(ids.size());
  const auto runner = make_device_runner(model, {.max_query = tokens, .use_cache = false}, nullptr);
  std::vector<float> logits(ids.size() * static_cast<size_t>(model->description.vocab_size));
  runner->forward_all({.ids = ids.data(), .batch = 1, .tokens = tokens}, nullptr, logits.data());
  EXPECT_LE(worst_of(logits, tensors.at(one.at("logits")).floats()), one.at("atol").get<float>());
}

// Left-padded rows, the prompt at once, then token by token as recorded; the logits of the recorded steps.
TEST_P(DeviceRunner, RecordedStepsOnACache) {
  const std::string name = GetParam();
  const json file = golden(name);
  const auto tensors =
      testing::read_safetensors(testing::data("golden/generate/" + file.at("tensors").get<std::string>()));
  const auto model = load(name);
  const auto vocab = static_cast<size_t>(model->description.vocab_size);
  const std::vector<kvp_layer> layers = model->description.cache_layers();
  int compared = 0;
  for (const json& one : file.at("cases")) {
    const std::string id = one.at("id");
    if (!id.ends_with("/dynamic/single/greedy") && !id.ends_with("/dynamic/batch3/greedy")) continue;
    if (!one.contains("logits")) continue;
    const std::vector<std::vector<int32_t>> mask = one.at("attention_mask"), sequences = one.at("sequences");
    const auto batch = static_cast<int64_t>(mask.size()), prompt = static_cast<int64_t>(mask[0].size());
    const auto steps = one.at("logits").at("steps").get<std::vector<int64_t>>();
    const std::vector<float> want = tensors.at(one.at("logits").at("tensor")).floats();
    std::vector<int64_t> pad;
    for (const auto& row : mask) pad.push_back(std::count(row.begin(), row.end(), 0));
    for (const bool fused : {false, true}) {
      std::unique_ptr<CacheStack> stack;
      if (fused) {
        stack = CacheStack::create(registry(), layers, {}, {.dtype = model->options.dtype});
      } else {
        stack = std::make_unique<testing::ViewStack>(layers);
      }
      const auto runner = make_device_runner(model, {.max_batch = batch, .max_query = prompt}, stack.get());
      for (int64_t step = 0; step <= steps.back(); ++step) {
        const int64_t first = step == 0 ? 0 : prompt + step - 1, tokens = step == 0 ? prompt : 1;
        std::vector<int32_t> ids;
        for (const auto& row : sequences) ids.insert(ids.end(), row.begin() + first, row.begin() + first + tokens);
        std::vector<float> logits(static_cast<size_t>(batch) * vocab);
        const ForwardInput input{
            .ids = ids.data(), .batch = batch, .tokens = tokens, .pad = step == 0 ? pad.data() : nullptr};
        runner->forward(input, stack.get(), logits.data());
        const auto at = std::find(steps.begin(), steps.end(), step);
        if (at == steps.end()) continue;
        const auto index = static_cast<int64_t>(at - steps.begin()) * static_cast<int64_t>(logits.size());
        const std::vector<float> expected(want.begin() + index,
                                          want.begin() + index + static_cast<int64_t>(logits.size()));
        EXPECT_LE(worst_of(logits, expected), one.at("atol").get<float>())
            << id << ", step " << step << ", fused " << fused;
        ++compared;
      }
    }
  }
  EXPECT_GE(compared, 2);
}

INSTANTIATE_TEST_SUITE_P(Models, DeviceRunner,
                         ::testing::Values("llama", "llama_rope3", "qwen2", "qwen3", "mistral", "gemma2",
                                           "llama4_text"),
                         [](const auto& one) { return std::string(one.param); });

TEST(Devices, CudaWithoutItsLibrarySaysWhatToInstall) {
  try {
    open_device("cuda");
    GTEST_SKIP() << "this machine has LibTorch's CUDA library and a device";
  } catch (const Error& error) {
    if (error.code() == Code::kDevice) GTEST_SKIP() << "this machine has LibTorch's CUDA library: " << error.what();
    EXPECT_EQ(error.code(), Code::kUnsupported);
    EXPECT_NE(std::string(error.what()).find("libtorch_cuda.so"), std::string::npos) << error.what();
    EXPECT_NE(error.hint().find("pip install torch"), std::string::npos) << error.hint();
  }
}

}  // namespace
}  // namespace kvplug::model
