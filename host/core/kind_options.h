// SPDX-License-Identifier: Apache-2.0
// What may stand below cache_config for one cache kind, and who gets it.
//
// A kind whose schema declares `backend` takes quantizers, one for keys and one for values, made of the plugin that
// `backend` names. Keys that the kind declares go to it, keys of the quantizer's schema to both quantizers, keys that
// both declare to all three; `x_key` and `x_value` go to one quantizer as its `x`. A back end that declares fp8_format
// and no q_group_size has no groups: keys that speak of groups, and residual_length, are refused with it. Everything
// here is known from the schemas beside the manifests: no code is loaded.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/options_schema.h"

namespace kvplug {

using Schemas = std::map<std::string, OptionsSchema, std::less<>>;

// True if the kind takes quantizers.
bool takes_quantizers(const OptionsSchema& kind);
// True for the quantizer's own keys and for x_key, x_value of them.
bool quantizer_takes(const OptionsSchema& quantizer, std::string_view key);
// "backend" as it is registered: letters in any case are one name.
std::string backend_name(std::string_view word);
// The message about a quantizer that nobody provides.
OptionProblem unknown_quantizer(const std::string& name, const std::vector<std::string>& known,
                                const std::vector<std::string>& searched);

// What the cache and each of its quantizers are given.
struct DealtOptions {
  std::string backend;  // "": the kind takes no quantizers, and gets everything
  nlohmann::json cache, key, value;
};

class KindOptions {
 public:
  static constexpr const char* kUnknownKey = "unknown key";

  // `schema` and `quantizers` (by name) outlive this. given: an object.
  KindOptions(std::string kind, const OptionsSchema& schema, const Schemas& quantizers, const nlohmann::json& given,
              const std::vector<std::string>& searched);

  // "" where the kind takes none, or where the one that is named does not exist (check("backend") tells).
  const std::string& backend() const { return backend_; }
  std::vector<std::string> keys() const;  // all that are known, in the order of messages
  // The value in its normal form.
  static nlohmann::json normal(const std::string& key, const nlohmann::json& value);
  // What is wrong with a key, or nothing. A key that nobody knows: kUnknownKey, without a hint.
  std::optional<OptionProblem> check(const std::string& key, const nlohmann::json& value) const;
  // given: checked.
  DealtOptions deal(const nlohmann::json& given) const;

 private:
  bool groupless() const;
  // What a key must suit, the kind's own first.
  std::vector<const OptionSpec*> specs(const std::string& key) const;
  std::string foreign_backend(const std::string& key) const;

  const std::string kind_;
  const OptionsSchema& schema_;
  const Schemas& quantizers_;
  std::string backend_;
  const OptionsSchema* quantizer_ = nullptr;
  std::optional<OptionProblem> backend_problem_;
};

}  // namespace kvplug
