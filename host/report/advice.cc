// SPDX-License-Identifier: Apache-2.0
#include "report/advice.h"

namespace kvplug::report {

std::vector<std::string> advice_on(const GroupChoice& choice) {
  std::vector<std::string> advice;
  if (choice.backend.empty()) return advice;
  const bool hqq = choice.backend == "hqq", quanto = choice.backend == "quanto";
  const bool strict = choice.options.value("hf_compat", "") == "strict";
  for (const bool key : {true, false}) {
    const nlohmann::json& options = key ? choice.key_options : choice.value_options;
    const auto axis = options.value("axis", int64_t{0});
    const std::string name = key ? "axis_key" : "axis_value";
    if (hqq && axis == 0) {
      advice.push_back(
          name + " = 0: Hugging Face advises 1 for hqq" +
          (strict ? "" : "; 0 has no append-only form, and becomes blocks of q_group_size tokens a channel"));
    }
    if (quanto && axis != 0) {
      advice.push_back(name + " = " + std::to_string(axis) + ": Hugging Face advises 0 for quanto");
    }
  }
  if (const auto residual = choice.options.value("residual_length", int64_t{0}); residual > 0) {
    advice.push_back("keep the defaults unless memory is short; then lower residual_length (now " +
                     std::to_string(residual) + ") first");
  }
  return advice;
}

}  // namespace kvplug::report
