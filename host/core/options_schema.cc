// SPDX-License-Identifier: Apache-2.0
#include "core/options_schema.h"

#include <algorithm>
#include <cmath>

#include "core/did_you_mean.h"
#include "core/error.h"

namespace kvplug {
namespace {

using Json = nlohmann::json;

struct TypeWord {
  std::string_view word;
  int32_t type;
  const char* expected;
};
constexpr TypeWord kTypes[] = {{"boolean", KVP_OPTION_BOOLEAN, "true or false"},
                               {"integer", KVP_OPTION_INTEGER, "a whole number"},
                               {"number", KVP_OPTION_NUMBER, "a number"},
                               {"string", KVP_OPTION_TEXT, "a text"}};

bool has_type(const Json& value, int32_t type) {
  switch (type) {
    case KVP_OPTION_BOOLEAN: return value.is_boolean();
    case KVP_OPTION_INTEGER: return value.is_number_integer();
    case KVP_OPTION_NUMBER: return value.is_number() && std::isfinite(value.get<double>());
    default: return value.is_string();
  }
}

std::vector<std::string> dumped(const std::vector<Json>& values) {
  std::vector<std::string> texts;
  for (const Json& value : values) texts.push_back(value.dump());
  return texts;
}

std::string number_text(double value) {
  return value == std::floor(value) && std::abs(value) < 1e15 ? std::to_string(static_cast<int64_t>(value))
                                                              : Json(value).dump();
}

// A schema is read strictly: a word of JSON Schema that is not obeyed here would be a promise that nobody keeps.
OptionSpec parse_option(const std::string& key, const Json& entry, const std::string& origin) {
  const auto fail = [&](const std::string& what) {
    throw Error(Code::kPlugin, "options schema, key \"" + key + "\": " + what, {}, origin);
  };
  if (!entry.is_object()) fail("expected an object with a type");
  OptionSpec spec;
  spec.key = key;
  const char* expected = "";
  for (const TypeWord& type : kTypes) {
    if (entry.value("type", Json()) == type.word) spec.type = type.type, expected = type.expected;
  }
  if (spec.type == 0) fail("type must be boolean, integer, number or string");

  for (const auto& [word, value] : entry.items()) {
    if (word == "minimum" || word == "maximum") {
      if (!value.is_number()) fail(word + " must be a number");
      (word == "minimum" ? spec.minimum : spec.maximum) = value.get<double>();
    } else if (word == "enum") {
      if (!value.is_array() || value.empty()) fail("enum must be a list of values");
      spec.allowed.assign(value.begin(), value.end());
    } else if (word == "description") {
      if (!value.is_string()) fail("description must be a text");
      spec.description = value;
    } else if (word == "default") {
      spec.default_value = value;
    } else if (word != "type" && word != "title" && word != "examples") {
      fail("\"" + word + "\" is not understood (known: type, default, minimum, maximum, enum, description)");
    }
  }
  for (const Json& value : spec.allowed) {
    if (!has_type(value, spec.type)) fail("enum holds " + value.dump() + ", which is not " + expected);
  }
  if (!spec.default_value.is_null()) {
    const std::string wrong = check_option(spec, spec.default_value);
    if (!wrong.empty()) fail("default: " + wrong);
  }
  return spec;
}

}  // namespace

OptionsSchema OptionsSchema::parse(std::string_view text, const std::string& origin) {
  // The order of the keys is the author's, for documentation and for the array that plugins get.
  nlohmann::ordered_json ordered;
  try {
    ordered = nlohmann::ordered_json::parse(text);
  } catch (const Json::exception& error) {
    throw Error(Code::kPlugin, std::string("options schema is not JSON: ") + error.what(), {}, origin);
  }
  OptionsSchema schema;
  schema.json_ = ordered;
  if (!ordered.is_object() || schema.json_.value("type", Json("object")) != "object") {
    throw Error(Code::kPlugin, "options schema must describe one flat object", {}, origin);
  }
  const auto properties = ordered.find("properties");
  if (properties == ordered.end()) return schema;
  if (!properties->is_object()) throw Error(Code::kPlugin, "options schema: properties must be an object", {}, origin);
  for (const auto& [key, entry] : properties->items()) {
    schema.options_.push_back(parse_option(key, Json(entry), origin));
  }
  return schema;
}

const OptionSpec* OptionsSchema::find(std::string_view key) const {
  const auto found =
      std::find_if(options_.begin(), options_.end(), [&](const OptionSpec& spec) { return spec.key == key; });
  return found == options_.end() ? nullptr : &*found;
}

std::string check_option(const OptionSpec& spec, const Json& value) {
  if (!has_type(value, spec.type)) {
    const auto type = std::find_if(std::begin(kTypes), std::end(kTypes),
                                   [&](const TypeWord& word) { return word.type == spec.type; });
    return value.dump() + " is not " + type->expected;
  }
  if (!spec.allowed.empty() && std::find(spec.allowed.begin(), spec.allowed.end(), value) == spec.allowed.end()) {
    return value.dump() + " is not one of " + join_words(dumped(spec.allowed));
  }
  if (value.is_number()) {
    const double number = value.get<double>();
    if (spec.minimum && number < *spec.minimum) {
      return value.dump() + " is below the minimum of " + number_text(*spec.minimum);
    }
    if (spec.maximum && number > *spec.maximum) {
      return value.dump() + " is above the maximum of " + number_text(*spec.maximum);
    }
    if (spec.type == KVP_OPTION_INTEGER && value.is_number_unsigned() &&
        value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
      return value.dump() + " is above the maximum of " + std::to_string(INT64_MAX);
    }
  }
  if (value.is_string() && value.get_ref<const std::string&>().find('\0') != std::string::npos) {
    return "the text holds a NUL character";
  }
  return {};
}

ResolvedOptions::ResolvedOptions(const OptionsSchema& schema, const Json& given) {
  for (const OptionSpec& spec : schema.options()) {
    const auto found = given.find(spec.key);
    const Json& value = found == given.end() ? spec.default_value : *found;
    if (value.is_null()) continue;
    values_[spec.key] = value;
    kvp_option option{};
    option.key = texts_.emplace_back(std::make_unique<std::string>(spec.key))->c_str();
    option.type = spec.type;
    if (spec.type == KVP_OPTION_BOOLEAN) option.integer = value.get<bool>() ? 1 : 0;
    if (spec.type == KVP_OPTION_INTEGER) option.integer = value.get<int64_t>();
    if (spec.type == KVP_OPTION_NUMBER) option.number = value.get<double>();
    if (spec.type == KVP_OPTION_TEXT) {
      option.text = texts_.emplace_back(std::make_unique<std::string>(value.get<std::string>()))->c_str();
    }
    options_.push_back(option);
  }
}

}  // namespace kvplug
