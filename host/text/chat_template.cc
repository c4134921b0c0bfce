// SPDX-License-Identifier: Apache-2.0
// Choosing the template among the places a folder may keep it, and calling the shim.
#include "text/chat_template.h"

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "text/files.h"
#include "text/shim_call.h"

namespace kvplug::text {
namespace {

using nlohmann::json;

[[noreturn]] void refuse_value(const std::filesystem::path& config_path) {
  throw Error(Code::kModel, "chat_template: expected a string, or a list of objects with string name and template", {},
              config_path.string());
}

// chat_template of tokenizer_config.json: one template, or named ones.
std::string choose_template(const json& value, const std::filesystem::path& config_path) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) refuse_value(config_path);
  std::string names;
  for (const json& entry : value) {
    if (!entry.is_object() || !entry.contains("name") || !entry["name"].is_string() || !entry.contains("template") ||
        !entry["template"].is_string()) {
      refuse_value(config_path);
    }
    const auto name = entry["name"].get<std::string>();
    if (name == "default") return entry["template"].get<std::string>();
    names += (names.empty() ? "" : ", ") + name;
  }
  throw Error(Code::kNotFound, "chat_template: none of the named templates is \"default\"; found: " + names,
              "save the one you want as a .jinja file and name it in tokenizer.chat_template", config_path.string());
}

}  // namespace

std::shared_ptr<const ChatTemplate> ChatTemplate::load(const std::filesystem::path& folder) {
  const auto own_file = folder / "chat_template.jinja";
  if (const auto source = read_file(own_file)) return from_source(*source, own_file.string());
  const auto config_path = folder / "tokenizer_config.json";
  const json config = read_json_object(config_path).value_or(json::object());
  const auto it = config.find("chat_template");
  if (it == config.end() || it->is_null()) {
    throw Error(Code::kNotFound, "this model has no chat template, so it cannot take messages",
                "give plain text instead, or name a .jinja file in tokenizer.chat_template", folder.string());
  }
  return from_source(choose_template(*it, config_path), config_path.string());
}

std::shared_ptr<const ChatTemplate> ChatTemplate::from_file(const std::filesystem::path& path) {
  const auto source = read_file(path);
  if (!source) throw Error(Code::kNotFound, "there is no such chat template file", {}, path.string());
  return from_source(*source, path.string());
}

std::shared_ptr<const ChatTemplate> ChatTemplate::from_source(std::string_view source, std::string origin) {
  kvtext_template* handle = nullptr;
  const auto failure =
      failure_of([&](kvtext_bytes* error) { return kvtext_template_compile(view_of(source), &handle, error); });
  if (failure) {
    throw Error(Code::kModel, "cannot use this chat template: " + *failure,
                "plain text prompts still work; or name another .jinja file in tokenizer.chat_template", origin);
  }
  return std::shared_ptr<const ChatTemplate>(new ChatTemplate(handle, std::move(origin)));
}

ChatTemplate::~ChatTemplate() { kvtext_template_free(handle_); }

std::string ChatTemplate::render(std::string_view messages_json, const ChatOptions& options) const {
  const std::string special_tokens = json(options.special_tokens).dump();
  const uint32_t flags = (options.add_generation_prompt ? KVTEXT_ADD_GENERATION_PROMPT : 0u) |
                         (options.continue_final_message ? KVTEXT_CONTINUE_FINAL_MESSAGE : 0u);
  ShimBytes text;
  const auto failure = failure_of([&](kvtext_bytes* error) {
    return kvtext_template_render(handle_, view_of(messages_json), view_of(special_tokens),
                                  view_of(options.kwargs_json), flags, text.out(), error);
  });
  if (failure) throw Error(Code::kInvalidArgument, "cannot render the chat: " + *failure, {}, origin_);
  return text.str();
}

}  // namespace kvplug::text
