// SPDX-License-Identifier: Apache-2.0
#include "report/logits_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace kvplug::report {
namespace fs = std::filesystem;

void check_writable(const std::string& path, bool overwrite) {
  if (fs::exists(path) && !overwrite) {
    throw Error(Code::kConfig, path + " exists", "choose another path, or set output.overwrite = true",
                "output.logits_path");
  }
  if (fs::exists(path) && !fs::is_regular_file(path)) {
    throw Error(Code::kConfig, path + " is no regular file", "choose another path", "output.logits_path");
  }
  if (const fs::path folder = fs::absolute(path).parent_path(); !fs::is_directory(folder)) {
    throw Error(Code::kIo, "the folder " + folder.string() + " does not exist", "create it first",
                "output.logits_path");
  }
}

void write_logits(const std::string& named, const generate::TaskResult& task, int64_t vocab) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  uint64_t at = 0;
  for (const generate::PromptResult& prompt : task.prompts) {
    const uint64_t bytes = prompt.logits.size() * sizeof(float);
    header[prompt.id + ".0"] = {{"dtype", "F32"},
                                {"shape", {static_cast<int64_t>(prompt.logits.size()) / vocab, vocab}},
                                {"data_offsets", {at, at + bytes}}};
    at += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  // A link stays a link: what it leads to is replaced.
  const std::string path = fs::exists(named) ? fs::canonical(named).string() : named;
  std::string partial = path + ".XXXXXX";
  const int fd = mkstemp(partial.data());
  if (fd < 0) throw Error(Code::kIo, std::string("cannot be written: ") + std::strerror(errno), "", path);
  fchmod(fd, 0644);
  close(fd);
  {
    std::ofstream out(partial, std::ios::binary | std::ios::trunc);
    out.write(reinterpret_cast<const char*>(&length), sizeof length);
    out.write(text.data(), static_cast<std::streamsize>(text.size()));
    for (const generate::PromptResult& prompt : task.prompts) {
      out.write(reinterpret_cast<const char*>(prompt.logits.data()),
                static_cast<std::streamsize>(prompt.logits.size() * sizeof(float)));
    }
    out.close();
    if (!out) {
      std::error_code ignored;
      fs::remove(partial, ignored);
      throw Error(Code::kIo, "could not be written: " + std::to_string(8 + length + at) + " bytes are needed",
                  "free some space", path);
    }
  }
  fs::rename(partial, path);
}

}  // namespace kvplug::report
