// SPDX-License-Identifier: Apache-2.0
// Where a template comes from, what it may use (against Python's jinja2), and how it fails.
#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <ctime>

#include "test_data.h"

namespace kvplug::text {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kHello = R"([{"role": "user", "content": "hi"}])";

std::string render(std::string_view source, std::string_view messages = kHello, const ChatOptions& options = {}) {
  return ChatTemplate::from_source(source, "test")->render(messages, options);
}

std::string message_of(std::string_view source, std::string_view messages = kHello, const ChatOptions& options = {}) {
  return error_of([&] { render(source, messages, options); }).message();
}

TEST(ChatTemplate, RendersAsJinja2Does) {
  const Json data = read_data("text/templates.json");
  size_t rendered = 0, refused = 0;
  for (const Json& c : data.at("cases")) {
    SCOPED_TRACE(text_at(c, "id"));
    const std::string source = data.at("templates").at(text_at(c, "template"));
    const std::string messages = data.at("conversations").at(text_at(c, "conversation")).dump();
    ChatOptions options;
    options.kwargs_json = Json{{"extra", data.at("extra")}}.dump();
    if (c.contains("error")) {
      ++refused;
      if (source.find("raise_exception") == std::string::npos) continue;  // Python's own wording for misuse
      EXPECT_NE(message_of(source, messages, options).find("line 1: " + text_at(c, "error")), std::string::npos);
      continue;
    }
    ++rendered;
    EXPECT_EQ(render(source, messages, options), text_at(c, "text"));
  }
  EXPECT_EQ(rendered, 180u);
  EXPECT_EQ(refused, 10u);
}

TEST(ChatTemplate, OwnFileWinsOverTheConfig) {
  const TempFolder folder;
  folder.write("tokenizer_config.json", R"({"chat_template": "config"})");
  EXPECT_EQ(ChatTemplate::load(folder.path())->render(kHello, {}), "config");
  folder.write("chat_template.jinja", "own");
  const auto chosen = ChatTemplate::load(folder.path());
  EXPECT_EQ(chosen->render(kHello, {}), "own");
  EXPECT_EQ(chosen->origin(), (folder.path() / "chat_template.jinja").string());
}

TEST(ChatTemplate, NamedTemplates) {
  const TempFolder folder;
  folder.write("tokenizer_config.json",
               R"({"chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]})");
  EXPECT_EQ(ChatTemplate::load(folder.path())->render(kHello, {}), "D");
  folder.write("tokenizer_config.json",
               R"({"chat_template": [{"name": "tool_use", "template": "T"}, {"name": "rag", "template": "R"}]})");
  const Error error = error_of([&] { ChatTemplate::load(folder.path()); });
  EXPECT_EQ(error.code(), Code::kNotFound);
  EXPECT_NE(error.message().find("tool_use, rag"), std::string::npos) << error.message();
}

TEST(ChatTemplate, NoneIsAnErrorWithTheWayOut) {
  const TempFolder folder;
  for (const bool with_config : {false, true}) {
    if (with_config) folder.write("tokenizer_config.json", R"({"chat_template": null})");
    const Error error = error_of([&] { ChatTemplate::load(folder.path()); });
    EXPECT_EQ(error.code(), Code::kNotFound);
    EXPECT_NE(error.hint().find(".jinja"), std::string::npos);
  }
  EXPECT_EQ(error_of([&] { ChatTemplate::from_file(folder.path() / "x.jinja"); }).code(), Code::kNotFound);
  for (const char* value : {"1", "[1]", R"([{"name": "default"}])", R"([{"name": 1, "template": "x"}])"}) {
    folder.write("tokenizer_config.json", std::string(R"({"chat_template": )") + value + "}");
    EXPECT_EQ(error_of([&] { ChatTemplate::load(folder.path()); }).code(), Code::kModel) << value;
  }
}

TEST(ChatTemplate, SyntaxErrorsNameTheLineAtLoad) {
  const TempFolder folder;
  folder.write("chat_template.jinja", "fine\n{% for m in messages %}\n{{ m.content }\n{% endfor %}");
  const Error error = error_of([&] { ChatTemplate::load(folder.path()); });
  EXPECT_EQ(error.code(), Code::kModel);
  EXPECT_NE(error.message().find("line 3"), std::string::npos) << error.message();
  EXPECT_NE(error.where().find("chat_template.jinja"), std::string::npos);
  EXPECT_NE(message_of("{% trans %}").find("line 1"), std::string::npos);
}

TEST(ChatTemplate, RenderingErrorsNameTheLine) {
  EXPECT_NE(message_of("\n\n{{ raise_exception('no such role') }}").find("line 3: no such role"), std::string::npos);
  EXPECT_NE(message_of("\n{{ 1 | no_such_filter }}").find("line 2"), std::string::npos);
  EXPECT_NE(message_of("{{ missing.field.deeper }}").find("line 1"), std::string::npos);
}

TEST(ChatTemplate, EndlessLoopsEnd) {
  const std::string message =
      message_of("{% for a in range(10000) %}{% for b in range(10000) %}{% set c = b %}{% endfor %}{% endfor %}");
  EXPECT_NE(message.find("loop for ever"), std::string::npos) << message;
  EXPECT_NE(message_of("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}").find("line 1"), std::string::npos);
}

TEST(ChatTemplate, VariablesAndTheirPrecedence) {
  ChatOptions options;
  options.special_tokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  EXPECT_EQ(render("{{ bos_token }}{{ eos_token }}{{ unk_token is defined }}", kHello, options), "<s></s>False");
  options.kwargs_json = R"({"bos_token": "B", "enable_thinking": false, "tools": [{"b": 1, "a": 2}]})";
  EXPECT_EQ(render("{{ bos_token }}{{ enable_thinking }}{{ tools | tojson }}", kHello, options),
            R"(BFalse[{"b": 1, "a": 2}])");
  options.add_generation_prompt = true;
  EXPECT_EQ(render("{{ add_generation_prompt }}", kHello, options), "True");
}

TEST(ChatTemplate, TojsonRefusesWhatItDoesNotKnow) {
  EXPECT_NE(message_of("{{ messages | tojson(default=1) }}").find("line 1"), std::string::npos);
  EXPECT_NE(message_of("{{ messages | tojson(indent='x') }}").find("line 1"), std::string::npos);
  EXPECT_NE(message_of("{{ messages | tojson(separators=['a']) }}").find("separators"), std::string::npos);
  EXPECT_NE(message_of("{{ missing | tojson }}").find("not JSON serializable"), std::string::npos);
}

TEST(ChatTemplate, StrftimeNow) {
  const std::string year = render("{{ strftime_now('%Y') }}");
  const time_t now = time(nullptr);
  const int this_year = localtime(&now)->tm_year + 1900;
  EXPECT_NEAR(std::stoi(year), this_year, 1);  // the year may change between the two looks
  EXPECT_EQ(render("{{ strftime_now('') }}[{{ strftime_now('100%% \xC3\xA9') }}]"), "[100% \xC3\xA9]");
}

TEST(ChatTemplate, ContinueFinalMessage) {
  ChatOptions options;
  options.continue_final_message = true;
  constexpr const char* kChat = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</s>{% endfor %}";
  constexpr const char* kTrimmed = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</s>{% endfor %}";
  constexpr const char* kMessages = R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": "Sure, "}])";
  EXPECT_EQ(render(kChat, kMessages, options), "<user>q</s><assistant>Sure, ");
  EXPECT_EQ(render(kTrimmed, kMessages, options), "<user>q</s><assistant>Sure,");
  constexpr const char* kBlocks =
      R"([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, {"type": "image"}]}])";
  EXPECT_EQ(render("{% for b in messages[0].content %}{{ b.text }}.{% endfor %}", kBlocks, options), "a.b");

  EXPECT_NE(message_of("{{ messages[0].content[:1] }}", kMessages, options).find("cannot be continued"),
            std::string::npos);
  EXPECT_NE(message_of("{{ messages }}", kMessages, options).find("does not read the content"), std::string::npos);
  EXPECT_NE(message_of(kChat, "[]", options).find("no messages"), std::string::npos);
  EXPECT_NE(message_of(kChat, R"([{"role": "user"}])", options).find("no text to continue"), std::string::npos);
  options.add_generation_prompt = true;
  EXPECT_NE(message_of(kChat, kMessages, options).find("exclude each other"), std::string::npos);
}

}  // namespace
}  // namespace kvplug::text
