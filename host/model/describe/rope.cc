// SPDX-License-Identifier: Apache-2.0
#include "model/describe/rope.h"

#include <cmath>
#include <numbers>

namespace kvplug::model {
namespace {

void refuse_other_rotary(const ConfigReader& from) {
  if (from.number_or("partial_rotary_factor", 0.0, 1.0, 1.0) != 1.0) {
    from.fail("partial_rotary_factor", "rotary embedding over a part of the head is not supported in this release");
  }
}

}  // namespace

Rope read_rope(const ConfigReader& config, int64_t max_position_embeddings, double default_theta) {
  const auto parameters = config.object("rope_parameters");
  const auto scaling = config.object("rope_scaling");
  refuse_other_rotary(config);
  if (parameters && scaling && parameters->json() != scaling->json()) {
    config.fail("rope_scaling", "contradicts rope_parameters in the same file", "keep one of the two");
  }
  Rope rope;
  rope.theta = config.number_or("rope_theta", 1e-3, 1e12, default_theta);
  const auto& detail = parameters ? parameters : scaling;
  if (!detail) return rope;

  refuse_other_rotary(*detail);
  for (const auto& [key, value] : detail->json().items()) {
    if (value.is_object()) detail->fail(key, "rotary settings per layer type are not supported in this release");
  }
  if (detail->has("rope_type") && detail->has("type") &&
      detail->string_or("type", "") != detail->string_or("rope_type", "")) {
    detail->fail("type", "contradicts rope_type", "keep one of the two");
  }
  if (detail->has("rope_theta")) {
    const double theta = detail->number_or("rope_theta", 1e-3, 1e12, rope.theta);
    if (config.has("rope_theta") && theta != rope.theta)
      detail->fail("rope_theta", "contradicts rope_theta at the top", "keep one of the two");
    rope.theta = theta;
  }
  rope.type = detail->string_or("rope_type", detail->string_or("type", "default"));
  if (rope.type == "default") return rope;
  if (rope.type != "linear" && rope.type != "llama3") {
    detail->fail(detail->has("rope_type") ? "rope_type" : "type",
                 "\"" + rope.type + "\" is not supported in this release", "known: default, linear, llama3");
  }
  if (!detail->has("factor")) detail->fail("factor", "is missing; rope_type \"" + rope.type + "\" needs it");
  rope.factor = detail->number_or("factor", 1.0, 1e6, 1.0);
  if (rope.type == "llama3") {
    for (const char* key : {"low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
      if (!detail->has(key) && !(std::string(key) == "original_max_position_embeddings" && config.has(key))) {
        detail->fail(key, "is missing; rope_type \"llama3\" needs it");
      }
    }
    rope.low_freq_factor = detail->number_or("low_freq_factor", 1e-6, 1e6, 1.0);
    rope.high_freq_factor = detail->number_or("high_freq_factor", 1e-6, 1e6, 4.0);
    if (rope.high_freq_factor <= rope.low_freq_factor)
      detail->fail("high_freq_factor", "must be larger than low_freq_factor");
    const auto& where = detail->has("original_max_position_embeddings") ? *detail : config;
    rope.original_max_position_embeddings =
        where.integer("original_max_position_embeddings", 1, max_position_embeddings);
  }
  return rope;
}

std::vector<float> inverse_frequencies(const Rope& rope, int64_t head_dim) {
  std::vector<float> out(static_cast<size_t>(head_dim / 2));
  for (size_t i = 0; i < out.size(); ++i) {
    // The reference computes in float32 throughout; following it keeps cos and sin equal at large positions.
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    float freq = 1.0f / std::pow(static_cast<float>(rope.theta), exponent);
    if (rope.type == "linear") freq /= static_cast<float>(rope.factor);
    if (rope.type == "llama3") {
      const auto original = static_cast<float>(rope.original_max_position_embeddings);
      const auto factor = static_cast<float>(rope.factor);
      const auto low = static_cast<float>(rope.low_freq_factor), high = static_cast<float>(rope.high_freq_factor);
      const float wavelength = 2.0f * std::numbers::pi_v<float> / freq;
      if (wavelength > original / low) {
        freq /= factor;
      } else if (wavelength >= original / high) {
        const float smooth = (original / wavelength - low) / (high - low);
        freq = (1.0f - smooth) * freq / factor + smooth * freq;
      }
    }
    out[i] = freq;
  }
  return out;
}

}  // namespace kvplug::model
