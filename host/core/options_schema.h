// SPDX-License-Identifier: Apache-2.0
// The options schema of a cache kind or quantizer: JSON Schema of one flat object, declared by the plugin.
//
// It is the single source for checking, did-you-mean, defaults and documentation, and needs no code loaded. Types are
// boolean, integer, number and string; default, minimum, maximum, enum and description may stand beside them.
#pragma once

#include <kvplug/options.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvplug {

struct OptionSpec {
  std::string key;
  int32_t type = 0;              // KVP_OPTION_…
  nlohmann::json default_value;  // null: none
  std::optional<double> minimum, maximum;
  std::vector<nlohmann::json> allowed;  // enum; empty: anything of the type
  std::string description;
};

class OptionsSchema {
 public:
  OptionsSchema() = default;  // no options
  // Throws kPlugin with `origin` (a file or a plugin's name) as the place and what is wrong.
  static OptionsSchema parse(std::string_view text, const std::string& origin);

  const std::vector<OptionSpec>& options() const { return options_; }  // in the schema's order
  const OptionSpec* find(std::string_view key) const;
  const nlohmann::json& json() const { return json_; }  // as declared; an empty object for no options

 private:
  std::vector<OptionSpec> options_;
  nlohmann::json json_ = nlohmann::json::object();
};

// One thing wrong with the options that a user gave.
struct OptionProblem {
  std::string key, message, hint;
};

// "" or what is wrong with `value` for `spec`: its type, its range, or not one of the allowed values.
std::string check_option(const OptionSpec& spec, const nlohmann::json& value);

// Values with defaults filled in, in the form plugins get. Keys without a value and without a default are left out.
// Owns the texts; movable, and the array stays where it is.
class ResolvedOptions {
 public:
  ResolvedOptions() = default;
  ResolvedOptions(const OptionsSchema& schema, const nlohmann::json& given);  // given: checked against the schema

  const kvp_option* data() const { return options_.data(); }
  size_t size() const { return options_.size(); }
  const nlohmann::json& json() const { return values_; }  // for explain

 private:
  std::vector<std::unique_ptr<std::string>> texts_;
  std::vector<kvp_option> options_;
  nlohmann::json values_ = nlohmann::json::object();
};

}  // namespace kvplug
