// SPDX-License-Identifier: Apache-2.0
// Folders of plugins for tests: a temporary folder, and copies of the built test plugins in it.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "core/error.h"

namespace kvplug {

namespace fs = std::filesystem;

class TempFolder {
 public:
  TempFolder() {
    std::string name = fs::canonical(fs::temp_directory_path()) / "kvplug_core_XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw Error(Code::kIo, "no temporary folder");
    path_ = name;
  }
  ~TempFolder() { fs::remove_all(path_); }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  const fs::path& path() const { return path_; }
  fs::path operator/(const std::string& name) const { return path_ / name; }

  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name, std::ios::binary) << text;
  }

 private:
  fs::path path_;
};

// Where the build put the plugin of tests/misbehaving/<name>.
inline fs::path built_plugin(const std::string& name) { return fs::path(KVPLUG_TEST_BUILD) / "misbehaving" / name; }

inline std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Copies library, manifest and options of a built plugin: another file, hence another library to the host.
inline void copy_plugin(const std::string& name, const fs::path& to) {
  for (const fs::directory_entry& entry : fs::directory_iterator(built_plugin(name))) {
    fs::copy(entry.path(), to, fs::copy_options::overwrite_existing);
  }
}

inline std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  if (at == std::string::npos) ADD_FAILURE() << "not found: " << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

// The Error that `work` throws, or a test failure.
template <class Work>
Error error_of(Work work) {
  try {
    work();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(Code::kOk, "");
}

#define EXPECT_HAS(text, part) EXPECT_NE(std::string(text).find(part), std::string::npos) << text

}  // namespace kvplug
