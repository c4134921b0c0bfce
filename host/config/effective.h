// SPDX-License-Identifier: Apache-2.0
// The values a run really uses, each with its origin: as TOML to read and to run again, as JSON for get() and the
// digest.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "config/layers.h"

namespace kvplug::config {

struct EffectiveValue {
  enum class State { kGiven, kDefault, kUnset, kAbsent };
  std::string section;  // "generation", "prompts[0]"
  std::string name;     // "top_p", "cache_config.nbits"
  nlohmann::json value;
  Origin origin;  // of the value, or of the list that unset it
  State state = State::kDefault;
  bool comment = false;  // written down, it would no longer be the default's or the checkpoint's choice
};

// Every key, in the order of the schema; keys of prompts and plugin loads only where they stand.
std::vector<EffectiveValue> effective_values(const State& state);
nlohmann::json nested_json(const std::vector<EffectiveValue>& values);
std::string digest_of(const std::vector<EffectiveValue>& values);  // "sha256:..."
std::string effective_text(const std::vector<EffectiveValue>& values);

// One JSON value as TOML on one line; no null inside.
std::string toml_value(const nlohmann::json& value);

}  // namespace kvplug::config
