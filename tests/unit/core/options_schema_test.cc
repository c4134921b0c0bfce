// SPDX-License-Identifier: Apache-2.0
// Options of a kind: reading the schema, checking what a user gave, the array that a plugin gets.
#include "core/options_schema.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace kvplug {
namespace {

using Json = nlohmann::json;

constexpr char kCache[] = R"({"type": "object", "properties": {
  "residual_length": {"type": "integer", "default": 128, "minimum": 0, "maximum": 65536},
  "mode": {"type": "string", "default": "fixed", "enum": ["fixed", "strict"]},
  "share": {"type": "number", "minimum": 0, "maximum": 1.5},
  "pin": {"type": "boolean", "default": true}}})";

// What is wrong with the first of these values; "" if nothing is.
std::string first_problem(const Json& given) {
  const OptionsSchema schema = OptionsSchema::parse(kCache, "test");
  for (const auto& [key, value] : given.items()) {
    if (const std::string wrong = check_option(*schema.find(key), value); !wrong.empty()) return key + ": " + wrong;
  }
  return "";
}

TEST(OptionsSchema, TypesRangesAndWordsAreChecked) {
  EXPECT_EQ(first_problem({{"residual_length", 0}, {"mode", "strict"}, {"share", 1}, {"pin", false}}), "");
  EXPECT_EQ(first_problem({{"residual_length", 4.0}}), "residual_length: 4.0 is not a whole number");
  EXPECT_EQ(first_problem({{"residual_length", true}}), "residual_length: true is not a whole number");
  EXPECT_EQ(first_problem({{"residual_length", -1}}), "residual_length: -1 is below the minimum of 0");
  EXPECT_EQ(first_problem({{"residual_length", 65537}}), "residual_length: 65537 is above the maximum of 65536");
  EXPECT_EQ(first_problem({{"residual_length", nullptr}}), "residual_length: null is not a whole number");
  EXPECT_EQ(first_problem({{"share", 1.6}}), "share: 1.6 is above the maximum of 1.5");
  EXPECT_EQ(first_problem({{"share", "1"}}), "share: \"1\" is not a number");
  EXPECT_EQ(first_problem({{"mode", "fixd"}}), "mode: \"fixd\" is not one of \"fixed\", \"strict\"");
  EXPECT_EQ(first_problem({{"pin", 1}}), "pin: 1 is not true or false");
  EXPECT_EQ(first_problem({{"mode", Json::array()}}), "mode: [] is not a text");
}

TEST(OptionsSchema, DefaultsAreFilledInInTheSchemasOrder) {
  const OptionsSchema schema = OptionsSchema::parse(kCache, "test");
  const ResolvedOptions options(schema, {{"residual_length", 7}, {"share", 1}});
  ASSERT_EQ(options.size(), 4U);
  const kvp_option* at = options.data();
  EXPECT_STREQ(at[0].key, "residual_length");
  EXPECT_EQ(at[0].type, KVP_OPTION_INTEGER);
  EXPECT_EQ(at[0].integer, 7);
  EXPECT_STREQ(at[1].text, "fixed");
  EXPECT_EQ(at[1].type, KVP_OPTION_TEXT);
  EXPECT_EQ(at[2].number, 1.0);
  EXPECT_EQ(at[3].integer, 1);
  EXPECT_EQ(ResolvedOptions(schema, Json::object()).size(), 3U);  // share has no default.
}

TEST(OptionsSchema, BadSchemasAreThePluginsFault) {
  for (const char* text :
       {"", "[]", "{\"properties\": 1}", R"({"type": "array"})", R"({"properties": {"a": {"type": "object"}}})",
        R"({"properties": {"a": {}}})", R"({"properties": {"a": {"type": "integer", "default": "x"}}})",
        R"({"properties": {"a": {"type": "integer", "default": 3, "maximum": 2}}})",
        R"({"properties": {"a": {"type": "string", "enum": []}}})",
        R"({"properties": {"a": {"type": "string", "enum": [1]}}})",
        R"({"properties": {"a": {"type": "string", "pattern": "x"}}})"}) {
    try {
      OptionsSchema::parse(text, "x.options.json");
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Code::kPlugin);
      EXPECT_EQ(error.where(), "x.options.json");
    }
  }
  EXPECT_TRUE(OptionsSchema::parse("{}", "x").options().empty());
}

}  // namespace
}  // namespace kvplug
