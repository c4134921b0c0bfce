// SPDX-License-Identifier: Apache-2.0
// Small helpers of the configuration tests: a run file from its text, and the message that something fails with.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "config/config.h"
#include "core/error.h"

namespace kvplug::config {

inline constexpr std::string_view kHead = "config_version = 1\n";

// The lines after config_version = 1, so that the first of them is line 2 of "run.toml".
inline Config from_toml(std::string_view text) {
  Config config;
  config.merge_toml(std::string(kHead) + std::string(text), "run.toml", "/base");
  return config;
}

inline std::string message_of(const std::function<void()>& work, Code code = Code::kConfig) {
  try {
    work();
  } catch (const Error& error) {
    return error.code() == code ? error.what() : "code " + std::string(code_word(error.code())) + ": " + error.what();
  }
  return "no error";
}

// What a run file of these lines fails with.
inline std::string toml_error(std::string_view text, const KindTable* kinds = nullptr) {
  return message_of([&] { from_toml(text).resolve(kinds); });
}

inline KindTable table_of_kinds() {
  KindTable kinds;
  kinds.schemas["dynamic"] = OptionsSchema::parse("{}", "dynamic");
  kinds.schemas["quantized"] = OptionsSchema::parse(R"({"type": "object", "properties": {
      "backend": {"type": "string", "default": "quanto"},
      "residual_length": {"type": "integer", "minimum": 0, "default": 128},
      "sink_tokens": {"type": "integer", "minimum": 0, "default": 0},
      "hf_compat": {"type": "string", "enum": ["fixed", "strict"], "default": "fixed"}}})",
                                                    "quantized");
  const std::string groups = R"({"type": "object", "properties": {
      "nbits": {"type": "integer", "minimum": 1, "maximum": 8, "default": 4},
      "axis": {"type": "integer", "enum": [0, 1, -1], "default": 0},
      "q_group_size": {"type": "integer", "minimum": 1, "default": 64},
      "hf_compat": {"type": "string", "enum": ["fixed", "strict"], "default": "fixed"}}})";
  kinds.quantizers["quanto"] = OptionsSchema::parse(groups, "quanto");
  kinds.quantizers["hqq"] = OptionsSchema::parse(groups, "hqq");
  kinds.quantizers["fp8"] = OptionsSchema::parse(R"({"type": "object", "properties": {
      "fp8_format": {"type": "string", "enum": ["e4m3", "e5m2"], "default": "e4m3"},
      "hf_compat": {"type": "string", "enum": ["fixed", "strict"], "default": "fixed"}}})",
                                                 "fp8");
  kinds.searched = {"/plugins"};
  return kinds;
}

}  // namespace kvplug::config
