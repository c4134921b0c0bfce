// SPDX-License-Identifier: Apache-2.0
// The data the text tests share: golden files, sample tokenizers, folders made for one test.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "text/tokenizer.h"

namespace kvplug::text {

std::filesystem::path data_path(std::string_view relative);
std::string read_bytes(const std::filesystem::path& path);

// Key order kept: tojson shows it.
nlohmann::ordered_json read_data(std::string_view relative);

// A folder that goes with the object.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }
  void write(const std::string& name, std::string_view content) const;

 private:
  std::filesystem::path path_;
};

// Names and content of the sample tokenizers of tests/data/text/pretokenizers.json.
std::vector<std::string> sample_names();
std::shared_ptr<const Tokenizer> sample_tokenizer(const std::string& name);
std::shared_ptr<const Tokenizer> chat_tokenizer();  // tests/data/models/llama_chat

std::string text_at(const nlohmann::ordered_json& object, const char* key);

bool is_utf8(std::string_view text);

[[noreturn]] void no_error();

// What f() throws; fails the test if it throws nothing.
template <class F>
Error error_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e;
  }
  no_error();
}

}  // namespace kvplug::text
