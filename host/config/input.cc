// SPDX-License-Identifier: Apache-2.0
#include "config/input.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "config/document.h"
#include "core/error.h"

namespace kvplug::config {
namespace {

using nlohmann::json;

void check_regular(const std::string& path, const std::string& where) {
  std::error_code ignored;
  const auto status = std::filesystem::status(path, ignored);
  if (!std::filesystem::exists(status))
    throw Error(Code::kNotFound, "no such file: " + path, "relative paths start from the folder of the run file",
                where);
  if (std::filesystem::is_directory(status)) throw Error(Code::kIo, "a folder, not a file: " + path, {}, where);
}

// A line of the JSON Lines file.
Prompt read_line(const std::string& line, const Run& run, const std::string& where, std::size_t number) {
  Node row;
  try {
    row = parse_json(line, where);
  } catch (const Error& error) {
    throw Error(Code::kConfig, error.message(), {}, where);
  }
  if (row.kind != Node::Kind::kTable) throw Error(Code::kConfig, "expected an object, got " + describe(row), {}, where);
  const json values = to_json(row);
  const std::string& text = run.input.text_column;
  const std::string& messages = run.input.messages_column;
  Prompt prompt;
  prompt.where = where;
  prompt.generation = run.generation;
  prompt.id = std::to_string(number);
  if (values.contains("id") && text != "id" && messages != "id")
    prompt.id = values["id"].is_string() ? values["id"].get<std::string>() : values["id"].dump();
  if (values.contains(text) == values.contains(messages))
    throw Error(Code::kConfig,
                values.contains(text) ? "both \"" + text + "\" and \"" + messages + "\""
                                      : "neither \"" + text + "\" nor \"" + messages + "\"",
                "input.text_column and input.messages_column name the columns", where);
  if (values.contains(text)) {
    if (!values[text].is_string()) throw Error(Code::kConfig, "\"" + text + "\" is not a string", {}, where);
    prompt.text = values[text].get<std::string>();
    return prompt;
  }
  const json& chat = values[messages];
  bool good = chat.is_array() && !chat.empty();
  for (const json& message : chat)
    good = good && message.is_object() && message.contains("role") && message["role"].is_string() &&
           message.contains("content") && (message["content"].is_string() || message["content"].is_array());
  if (!good)
    throw Error(Code::kConfig, "\"" + messages + "\" is not a list of messages",
                "[{\"role\": \"user\", \"content\": \"Hi\"}]", where);
  prompt.messages = chat;
  return prompt;
}

}  // namespace

bool is_utf8(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  for (std::size_t i = 0; i < text.size();) {
    const unsigned char first = byte(i);
    const int more = first < 0x80                    ? 0
                     : first >= 0xC2 && first < 0xE0 ? 1
                     : first >= 0xE0 && first < 0xF0 ? 2
                     : first >= 0xF0 && first < 0xF5 ? 3
                                                     : -1;
    if (more < 0 || i + static_cast<std::size_t>(more) >= text.size()) return false;
    for (int k = 1; k <= more; ++k)
      if ((byte(i + static_cast<std::size_t>(k)) & 0xC0) != 0x80) return false;
    // Overlong forms, surrogates, beyond U+10FFFF.
    if (more > 1) {
      const unsigned char second = byte(i + 1);
      if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) || (first == 0xF0 && second < 0x90) ||
          (first == 0xF4 && second > 0x8F))
        return false;
    }
    i += static_cast<std::size_t>(more) + 1;
  }
  return true;
}

std::string read_text_file(const std::string& path, const std::string& where) {
  check_regular(path, where);
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(Code::kIo, "cannot open " + path + ": " + std::strerror(errno), {}, where);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (file.bad()) throw Error(Code::kIo, "cannot read " + path, {}, where);
  if (!is_utf8(text)) throw Error(Code::kConfig, path + " is not UTF-8 text", {}, where);
  return text;
}

std::vector<Prompt> read_prompts(const Run& run, const std::string& jsonl_where) {
  std::vector<Prompt> prompts;
  const auto full = [&] { return run.input.limit > 0 && prompts.size() >= static_cast<std::size_t>(run.input.limit); };
  std::set<std::string> ids;
  for (const Prompt& given : run.prompts) {
    if (full()) return prompts;
    prompts.push_back(given);
    ids.insert(given.id);
    if (!given.file) continue;
    prompts.back().text = read_text_file(*given.file, given.where);
    prompts.back().file.reset();
  }
  if (!run.input.jsonl || full()) return prompts;

  const std::string& path = *run.input.jsonl;
  check_regular(path, jsonl_where);
  std::ifstream file(path, std::ios::binary);
  if (!file) throw Error(Code::kIo, "cannot open " + path + ": " + std::strerror(errno), {}, jsonl_where);
  std::string line;
  for (std::size_t number = 1; !full() && std::getline(file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = std::filesystem::path(path).filename().string() + ":" + std::to_string(number);
    Prompt prompt = read_line(line, run, where, prompts.size());
    if (!ids.insert(prompt.id).second)
      throw Error(Code::kConfig, "two prompts have the id \"" + prompt.id + "\"", {}, where);
    prompts.push_back(std::move(prompt));
  }
  if (file.bad()) throw Error(Code::kIo, "cannot read " + path, {}, jsonl_where);
  return prompts;
}

}  // namespace kvplug::config
