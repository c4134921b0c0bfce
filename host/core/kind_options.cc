// SPDX-License-Identifier: Apache-2.0
#include "core/kind_options.h"

#include <algorithm>
#include <cctype>

#include "core/did_you_mean.h"

namespace kvplug {
namespace {

using Json = nlohmann::json;

constexpr const char* kBackend = "backend";
constexpr const char* kResidual = "residual_length";
constexpr std::string_view kSuffixes[] = {"_key", "_value"};

// "nbits" of "nbits_key"; "" without such an ending.
std::string stem_of(std::string_view key) {
  for (const std::string_view suffix : kSuffixes) {
    if (key.size() > suffix.size() && key.ends_with(suffix))
      return std::string(key.substr(0, key.size() - suffix.size()));
  }
  return "";
}

bool speaks_of_groups(const std::string& key) {
  const std::string stem = stem_of(key);
  const std::string& word = stem.empty() ? key : stem;
  return word == "nbits" || word == "axis" || word == "q_group_size" || key == kResidual;
}

}  // namespace

bool takes_quantizers(const OptionsSchema& kind) { return kind.find(kBackend) != nullptr; }

bool quantizer_takes(const OptionsSchema& quantizer, std::string_view key) {
  return quantizer.find(key) != nullptr || quantizer.find(stem_of(key)) != nullptr;
}

std::string backend_name(std::string_view word) {
  std::string name(word);
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name;
}

OptionProblem unknown_quantizer(const std::string& name, const std::vector<std::string>& known,
                                const std::vector<std::string>& searched) {
  const std::string near = name.size() > 80 ? "" : did_you_mean(name, known);
  return {kBackend,
          "quantizer " +
              (name.size() > 80 ? "of a name of " + std::to_string(name.size()) + " bytes" : "\"" + name + "\"") +
              " not found",
          (near.empty() ? "" : "did you mean \"" + near + "\"? ") +
              ("known quantizers: " + (known.empty() ? "none" : join_words(known))) +
              "\n  searched: " + (searched.empty() ? "no folder" : join_words(searched))};
}

KindOptions::KindOptions(std::string kind, const OptionsSchema& schema, const Schemas& quantizers, const Json& given,
                         const std::vector<std::string>& searched)
    : kind_(std::move(kind)), schema_(schema), quantizers_(quantizers) {
  const OptionSpec* spec = schema.find(kBackend);
  if (spec == nullptr) return;
  const auto found = given.find(kBackend);
  const Json value = normal(kBackend, found == given.end() ? spec->default_value : *found);
  if (std::string wrong = check_option(*spec, value); !wrong.empty()) {
    backend_problem_ = {kBackend, std::move(wrong), spec->description};
    return;
  }
  const auto named = quantizers.find(value.get_ref<const std::string&>());
  if (named == quantizers.end()) {
    std::vector<std::string> known;
    for (const auto& [name, its] : quantizers) known.push_back(name);
    backend_problem_ = unknown_quantizer(value, known, searched);
    return;
  }
  backend_ = named->first;
  quantizer_ = &named->second;
}

Json KindOptions::normal(const std::string& key, const Json& value) {
  return key == kBackend && value.is_string() ? Json(backend_name(value.get_ref<const std::string&>())) : value;
}

bool KindOptions::groupless() const {
  return quantizer_ != nullptr && quantizer_->find("fp8_format") != nullptr &&
         quantizer_->find("q_group_size") == nullptr;
}

std::vector<std::string> KindOptions::keys() const {
  std::vector<std::string> keys;
  if (takes_quantizers(schema_)) keys.emplace_back(kBackend);
  if (quantizer_ != nullptr) {
    for (const OptionSpec& spec : quantizer_->options()) {
      if (schema_.find(spec.key) != nullptr) continue;
      keys.push_back(spec.key);
      for (const std::string_view suffix : kSuffixes) keys.push_back(spec.key + std::string(suffix));
    }
  }
  for (const OptionSpec& spec : schema_.options()) {
    const bool there = std::find(keys.begin(), keys.end(), spec.key) != keys.end();
    if (!there && !(groupless() && speaks_of_groups(spec.key))) keys.push_back(spec.key);
  }
  return keys;
}

std::vector<const OptionSpec*> KindOptions::specs(const std::string& key) const {
  std::vector<const OptionSpec*> specs;
  if (const OptionSpec* own = schema_.find(key)) specs.push_back(own);
  if (quantizer_ == nullptr) return specs;
  const OptionSpec* spec = quantizer_->find(key);
  // What cache and quantizer share cannot differ between keys and values.
  if (const std::string stem = stem_of(key); spec == nullptr && schema_.find(stem) == nullptr)
    spec = quantizer_->find(stem);
  if (spec != nullptr) specs.push_back(spec);
  return specs;
}

// Another back end that knows the key, "" if none does.
std::string KindOptions::foreign_backend(const std::string& key) const {
  if (quantizer_ == nullptr || schema_.find(stem_of(key)) != nullptr) return "";
  const auto found = std::find_if(quantizers_.begin(), quantizers_.end(),
                                  [&](const auto& other) { return quantizer_takes(other.second, key); });
  return found == quantizers_.end() ? "" : found->first;
}

std::optional<OptionProblem> KindOptions::check(const std::string& key, const Json& value) const {
  if (backend_problem_) return key == kBackend ? backend_problem_ : std::nullopt;  // the rest follows from it
  if (groupless() && speaks_of_groups(key)) {
    return OptionProblem{key, "backend \"" + backend_ + "\" has no groups and takes no " + key,
                         R"(remove the key, or use backend = "quanto" or "hqq")"};
  }
  const std::vector<const OptionSpec*> known = specs(key);
  for (const OptionSpec* spec : known) {
    if (std::string wrong = check_option(*spec, normal(key, value)); !wrong.empty()) {
      return OptionProblem{key, std::move(wrong), spec->description};
    }
  }
  if (!known.empty()) return std::nullopt;
  if (const std::string other = foreign_backend(key); !other.empty()) {
    return OptionProblem{key, "a key of backend \"" + other + "\", not of \"" + backend_ + "\"",
                         "remove the key, or use backend = \"" + other + "\" (keys of \"" + kind_ + "\" with \"" +
                             backend_ + "\": " + join_words(keys()) + ")"};
  }
  return OptionProblem{key, kUnknownKey, ""};
}

DealtOptions KindOptions::deal(const Json& given) const {
  DealtOptions dealt{backend_, Json::object(), Json::object(), Json::object()};
  for (const auto& [key, value] : given.items()) {
    if (schema_.find(key) != nullptr) dealt.cache[key] = normal(key, value);
  }
  if (quantizer_ == nullptr) return dealt;
  if (groupless() && schema_.find(kResidual) != nullptr) dealt.cache[kResidual] = 0;
  for (const OptionSpec& spec : quantizer_->options()) {
    for (Json* part : {&dealt.key, &dealt.value}) {
      const std::string own = spec.key + std::string(kSuffixes[part == &dealt.key ? 0 : 1]);
      const bool suffixed = schema_.find(spec.key) == nullptr && given.contains(own);
      const auto found = given.find(suffixed ? own : spec.key);
      if (found != given.end()) (*part)[spec.key] = *found;
    }
  }
  return dealt;
}

}  // namespace kvplug
