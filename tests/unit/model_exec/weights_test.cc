// SPDX-License-Identifier: Apache-2.0
// Reading checkpoints: conversion, both ways of reading, files that shrink under our hands.
#include "model/exec/weights.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <numeric>

#include "core/error.h"
#include "model/exec/kernels.h"
#include "support/safetensors.h"

namespace kvplug::model {
namespace {

namespace fs = std::filesystem;

// A writable copy of a test model, gone at the end.
class CopiedModel {
 public:
  explicit CopiedModel(const std::string& name)
      : folder_(fs::temp_directory_path() / ("kvplug_weights_" + std::to_string(getpid()) + "_" + name)) {
    fs::remove_all(folder_);
    fs::copy(fs::path(KVPLUG_TEST_DATA) / "models" / name, folder_);
    fs::permissions(file(), fs::perms::owner_all);
  }
  ~CopiedModel() { fs::remove_all(folder_); }
  const fs::path& folder() const { return folder_; }
  fs::path file() const { return folder_ / "model.safetensors"; }

 private:
  fs::path folder_;
};

class Reading : public ::testing::TestWithParam<bool> {};

TEST_P(Reading, AllTypesBecomeAllTypes) {
  for (const char* name : {"llama", "llama_bf16", "llama_fp16"}) {
    const fs::path folder = fs::path(KVPLUG_TEST_DATA) / "models" / name;
    const Description description = describe_model(folder);
    const Weights weights(description, GetParam());
    const auto golden = testing::read_safetensors(folder / "model.safetensors");
    const std::string tensor = description.layers[1].names.down + ".weight";
    const TensorInfo& info = weights.info(tensor);
    const int64_t width = info.shape[1];
    const auto whole = golden.at(tensor).floats();
    for (const Type type : {Type::kFloat32, Type::kBFloat16, Type::kFloat16}) {
      // Rows 3 and 4.
      std::vector<float> want(whole.begin() + 3 * width, whole.begin() + 5 * width), got(want.size());
      std::vector<char> bytes(want.size() * size_of(type)), want_bytes(bytes.size());
      kernels(type).from_float(want.data(), want_bytes.data(), 2 * width);
      weights.read(info, 3, 2, type, bytes.data());
      EXPECT_EQ(bytes, want_bytes) << name << " as " << name_of(type);
    }
  }
}

TEST_P(Reading, OneMatrixOfAStackComesTransposed) {
  const Description description = describe_model(fs::path(KVPLUG_TEST_DATA) / "models/llama4_text");
  const Weights weights(description, GetParam());
  const std::string& name = description.layers[1].names.experts_gate_up;
  const auto whole = testing::read_safetensors(description.files[0]).at(name).floats();
  const size_t in = 32, out = 48, matrix = 2, first = 5, columns = 41;
  for (const Type type : {Type::kFloat32, Type::kBFloat16}) {
    std::vector<float> want(columns * in);
    for (size_t c = 0; c < columns; ++c) {
      for (size_t i = 0; i < in; ++i) want[c * in + i] = whole[(matrix * in + i) * out + first + c];
    }
    std::vector<char> want_bytes(want.size() * size_of(type)), bytes(want_bytes.size());
    kernels(type).from_float(want.data(), want_bytes.data(), static_cast<int64_t>(want.size()));
    for (const int64_t begin : {0, 20}) {  // in two parts
      weights.read_transposed(weights.info(name), 2, begin, begin == 0 ? 20 : 32, 5, 41, type, bytes.data());
    }
    EXPECT_EQ(bytes, want_bytes) << name_of(type);
  }
}

TEST_P(Reading, TheEmbeddingGivesRows) {
  const Description description = describe_model(fs::path(KVPLUG_TEST_DATA) / "models/llama_bf16");
  const Weights weights(description, GetParam());
  const TensorInfo& info = weights.info(description.embed_tokens);
  const Embedding embedding(weights, info, Type::kFloat32);
  EXPECT_EQ(embedding.bytes() > 0, !GetParam());
  const auto whole = testing::read_safetensors(description.files[0]).at(description.embed_tokens).floats();
  const std::vector<int32_t> ids = {7, 0, 7, static_cast<int32_t>(description.vocab_size) - 1};
  const auto width = static_cast<size_t>(info.shape[1]);
  std::vector<float> got(ids.size() * width);
  embedding.lookup(ids.data(), 4, got.data());
  for (size_t i = 0; i < ids.size(); ++i) {
    for (size_t j = 0; j < width; ++j) EXPECT_EQ(got[i * width + j], whole[static_cast<size_t>(ids[i]) * width + j]);
  }
}

TEST_P(Reading, AMissingTensorIsNamed) {
  const Description description = describe_model(fs::path(KVPLUG_TEST_DATA) / "models/llama");
  const Weights weights(description, GetParam());
  try {
    weights.info("model.layers.99.weight");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kNotFound);
    EXPECT_NE(error.message().find("model.layers.99.weight"), std::string::npos);
  }
}

TEST_P(Reading, AFileThatShrankBeforeOpeningIsCorrupt) {
  const CopiedModel model("llama");
  const Description description = describe_model(model.folder());
  fs::resize_file(model.file(), 1000);
  try {
    const Weights weights(description, GetParam());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kCorrupt);
    EXPECT_NE(std::string(error.what()).find("model.safetensors"), std::string::npos);
  }
}

TEST_P(Reading, AFileThatVanishedIsAnIoError) {
  const CopiedModel model("llama");
  const Description description = describe_model(model.folder());
  fs::remove(model.file());
  try {
    const Weights weights(description, GetParam());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kIo);
  }
}

INSTANTIATE_TEST_SUITE_P(Ways, Reading, ::testing::Bool(),
                         [](const auto& one) { return std::string(one.param ? "mapped" : "read"); });

TEST(Weights, MoreThanTheSystemCanGiveIsAnError) {
  try {
    const Buffer buffer(size_t{1} << 60);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kOutOfMemory);
  }
}

TEST(Weights, AFileThatShrinksUnderTheEmbeddingIsAnErrorNotASignal) {
  const CopiedModel model("llama");
  const Description description = describe_model(model.folder());
  const Weights weights(description, true);
  const Embedding embedding(weights, weights.info(description.embed_tokens), Type::kFloat32);
  fs::resize_file(model.file(), 1000);
  const int32_t id = static_cast<int32_t>(description.vocab_size) - 1;
  std::vector<float> row(static_cast<size_t>(description.hidden_size));
  try {
    embedding.lookup(&id, 1, row.data());
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kCorrupt);
  }
}

}  // namespace
}  // namespace kvplug::model
