// SPDX-License-Identifier: Apache-2.0
// Data of the text tests: see the header.
#include "test_data.h"

#include <unistd.h>

#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <stdexcept>

namespace kvplug::text {

using nlohmann::json;

std::filesystem::path data_path(std::string_view relative) {
  return std::filesystem::path(KVPLUG_TEST_DATA) / relative;
}

std::string read_bytes(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("missing test data: " + path.string());
  return {std::istreambuf_iterator<char>(in), {}};
}

nlohmann::ordered_json read_data(std::string_view relative) {
  return nlohmann::ordered_json::parse(read_bytes(data_path(relative)));
}

std::string text_at(const nlohmann::ordered_json& object, const char* key) { return object.at(key).get<std::string>(); }

TempFolder::TempFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "kvplug-text-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  path_ = name;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void TempFolder::write(const std::string& name, std::string_view content) const {
  std::ofstream out(path_ / name, std::ios::binary);
  out << content;
  if (!out.flush()) throw std::runtime_error("cannot write " + name);
}

namespace {

const json& samples() {
  static const json data = read_data("text/pretokenizers.json");
  return data;
}

}  // namespace

std::vector<std::string> sample_names() {
  std::vector<std::string> names;
  for (const auto& [name, content] : samples().at("tokenizers").items()) names.push_back(name);
  return names;
}

std::shared_ptr<const Tokenizer> sample_tokenizer(const std::string& name) {
  static std::mutex mutex;
  static std::map<std::string, std::shared_ptr<const Tokenizer>> loaded;
  const std::lock_guard lock(mutex);
  auto& tokenizer = loaded[name];
  if (!tokenizer) {
    json content = samples().at("tokenizers").at(name);
    if (!content.contains("model")) content["model"] = samples().at("byte_level_model");
    const TempFolder folder;
    folder.write("tokenizer.json", content.dump());
    tokenizer = Tokenizer::load(folder.path());
  }
  return tokenizer;
}

std::shared_ptr<const Tokenizer> chat_tokenizer() {
  static const auto tokenizer = Tokenizer::load(data_path("models/llama_chat"));
  return tokenizer;
}

bool is_utf8(std::string_view text) {
  try {
    (void)json(text).dump();
    return true;
  } catch (const json::exception&) {
    return false;
  }
}

void no_error() { throw std::runtime_error("expected an Error, nothing was thrown"); }

}  // namespace kvplug::text
