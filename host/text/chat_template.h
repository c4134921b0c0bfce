// SPDX-License-Identifier: Apache-2.0
// A Hugging Face chat template: messages in, prompt text out, as apply_chat_template(tokenize=False) gives it. The text
// holds its own BOS, so it is encoded with add_special = false. Immutable: one object serves any number of threads.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>

struct kvtext_template;

namespace kvplug::text {

struct ChatOptions {
  bool add_generation_prompt = false;   // end with the opening of the assistant's turn
  bool continue_final_message = false;  // end inside the last message; excludes add_generation_prompt
  std::string kwargs_json;              // JSON object of further variables (tools, enable_thinking, ...); empty = none
  std::map<std::string, std::string> special_tokens;  // Tokenizer::special_tokens()
};

class ChatTemplate {
 public:
  // From a model folder: chat_template.jinja, else chat_template of tokenizer_config.json: a string, or a list of named
  // templates of which "default" is taken. Throws Error: kNotFound if the folder has none, kModel if it cannot be used.
  static std::shared_ptr<const ChatTemplate> load(const std::filesystem::path& folder);
  // From a file of the user's. Throws Error: kNotFound, kIo, kModel.
  static std::shared_ptr<const ChatTemplate> from_file(const std::filesystem::path& path);
  // From text; origin names it in errors. Throws Error (kModel) with the line of a syntax error.
  static std::shared_ptr<const ChatTemplate> from_source(std::string_view source, std::string origin);

  ~ChatTemplate();
  ChatTemplate(const ChatTemplate&) = delete;
  ChatTemplate& operator=(const ChatTemplate&) = delete;

  // messages_json: array of {"role", "content", ...}. Throws Error (kInvalidArgument) when the input is malformed or
  // the template refuses it (raise_exception), with the template's line.
  std::string render(std::string_view messages_json, const ChatOptions& options) const;

  // Where the template came from: a path, or the origin given.
  const std::string& origin() const { return origin_; }

 private:
  ChatTemplate(kvtext_template* handle, std::string origin) : handle_(handle), origin_(std::move(origin)) {}

  kvtext_template* handle_;
  std::string origin_;
};

}  // namespace kvplug::text
