// SPDX-License-Identifier: Apache-2.0
// Rotary settings: two dialects with one meaning, and frequencies against a double-precision reference.
#include "model/describe/rope.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "model_folder.h"

namespace kvplug::testing {
namespace {

using nlohmann::json;

model::Rope rope_of(json more) {
  ModelFolder folder;
  for (auto& [key, value] : more.items()) folder.config[key] = value;
  folder.config["max_position_embeddings"] = 131072;
  return folder.describe().rope;
}

std::string refusal(json more) {
  ModelFolder folder;
  for (auto& [key, value] : more.items()) folder.config[key] = value;
  return folder.error().what();
}

// Llama 3.1's bands (Transformers, _compute_llama3_parameters) in double precision.
std::vector<double> reference(const model::Rope& rope, int64_t dim) {
  std::vector<double> out;
  for (int64_t i = 0; i < dim / 2; ++i) {
    double f = 1.0 / std::pow(rope.theta, 2.0 * static_cast<double>(i) / static_cast<double>(dim));
    if (rope.type == "linear") f /= rope.factor;
    if (rope.type == "llama3") {
      const double original = static_cast<double>(rope.original_max_position_embeddings),
                   wavelength = 2 * std::numbers::pi / f;
      if (wavelength > original / rope.low_freq_factor) {
        f /= rope.factor;
      } else if (wavelength >= original / rope.high_freq_factor) {
        const double smooth =
            (original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
        f = (1 - smooth) * f / rope.factor + smooth * f;
      }
    }
    out.push_back(f);
  }
  return out;
}

TEST(Rope, TwoDialectsOneMeaning) {
  const json llama3 = {
      {"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 8192}};
  json old_form = llama3, old_type = llama3, new_form = llama3;
  old_form["rope_type"] = "llama3";
  old_type["type"] = "llama3";
  new_form["rope_type"] = "llama3";
  new_form["rope_theta"] = 500000.0;
  const model::Rope a = rope_of({{"rope_theta", 500000.0}, {"rope_scaling", old_form}});
  const model::Rope b = rope_of({{"rope_theta", 500000.0}, {"rope_scaling", old_type}});
  const model::Rope c = rope_of({{"rope_parameters", new_form}});
  EXPECT_EQ(model::inverse_frequencies(a, 64), model::inverse_frequencies(c, 64));
  EXPECT_EQ(model::inverse_frequencies(b, 64), model::inverse_frequencies(c, 64));
  EXPECT_EQ(c.type, "llama3");
}

TEST(Rope, FrequenciesAgainstDoublePrecision) {
  for (const auto& [type, factor] : {std::pair{"default", 1.0}, {"linear", 4.0}, {"llama3", 8.0}, {"llama3", 32.0}}) {
    model::Rope rope;
    rope.type = type;
    rope.theta = 500000.0;
    rope.factor = factor;
    rope.original_max_position_embeddings = 8192;
    const auto got = model::inverse_frequencies(rope, 128);
    const auto want = reference(rope, 128);
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i] / want[i], 1.0, 1e-6) << type << " " << i;
  }
}

TEST(Rope, ConflictsAndUnknownTypesAreErrors) {
  EXPECT_NE(refusal({{"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}}}}).find("\"yarn\""), std::string::npos);
  EXPECT_NE(refusal({{"rope_scaling", {{"rope_type", "linear"}, {"type", "dynamic"}, {"factor", 2.0}}}})
                .find("contradicts rope_type"),
            std::string::npos);
  EXPECT_NE(refusal({{"rope_scaling", {{"rope_type", "linear"}}}}).find("factor"), std::string::npos);
  EXPECT_NE(refusal({{"rope_theta", 1e4}, {"rope_parameters", {{"rope_theta", 1e5}}}}).find("contradicts"),
            std::string::npos);
  EXPECT_NE(refusal({{"rope_parameters", {{"full_attention", {{"rope_theta", 1e5}}}}}}).find("per layer type"),
            std::string::npos);
  EXPECT_NE(refusal({{"rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}}}).find("low_freq_factor"),
            std::string::npos);
  EXPECT_NE(refusal({{"rope_scaling", "linear"}}).find("expected an object"), std::string::npos);
}

}  // namespace
}  // namespace kvplug::testing
