// SPDX-License-Identifier: Apache-2.0
#include "cli/terminal.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <regex>

namespace kvplug::cli {

int exit_code(kvplug_status status) {
  switch (status) {
    case KVP_OK: return 0;
    case KVPLUG_E_CONFIG:
    case KVP_INVALID_ARGUMENT:
    case KVPLUG_E_NOT_FOUND: return 2;
    case KVPLUG_E_MODEL: return 3;
    case KVPLUG_E_PLUGIN:
    case KVPLUG_E_ABI:
    case KVP_POISONED: return 4;
    case KVPLUG_E_PLAN_EXCEEDED:
    case KVP_OUT_OF_MEMORY:
    case KVP_CAPACITY: return 5;
    case KVP_UNSUPPORTED: return 6;
    case KVP_CANCELLED: return 130;
    default: return 1;
  }
}

void print_failure(const Failure& failure, bool json) {
  if (!json) {
    std::fprintf(stderr, "%s %s\n", in_color("31", "error:").c_str(), failure.text().c_str());
    return;
  }
  const size_t line_end = failure.text().find('\n');
  std::string message = failure.text().substr(0, line_end), hint, where;
  if (line_end != std::string::npos) hint = failure.text().substr(failure.text().find_first_not_of(" \n", line_end));
  // "run.toml:14: generation.nbits: message", or "path: message".
  static const std::regex in_file(R"(^([^:\s]+:\d+(?::\d+)?): ([A-Za-z0-9_.\[\]"/-]+): )"), path(R"(^(/[^:]+): )");
  std::smatch found;
  if (std::regex_search(message, found, in_file)) {
    where = found[1].str() + " " + found[2].str();
    message = found.suffix().str();
  } else if (std::regex_search(message, found, path)) {
    where = found[1].str();
    message = found.suffix().str();
  }
  const nlohmann::json line = {
      {"error",
       {{"code", kvplug_status_word(failure.status())}, {"message", message}, {"hint", hint}, {"where", where}}}};
  std::fprintf(stderr, "%s\n", line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
}

bool stderr_is_terminal() { return isatty(STDERR_FILENO) == 1; }

namespace {
std::string color_mode = "auto";
}

void set_color(const std::string& mode) { color_mode = mode; }

std::string in_color(const char* sgr, std::string_view text) {
  const bool on = color_mode == "always" || (color_mode == "auto" && stderr_is_terminal() && !std::getenv("NO_COLOR"));
  return on ? "\x1b[" + std::string(sgr) + "m" + std::string(text) + "\x1b[0m" : std::string(text);
}

Output::Output(const std::string& path, bool overwrite) : path_(path) {
  if (path_ == "-") {
    file_ = stdout;
    return;
  }
  struct stat info{};
  const bool exists = stat(path_.c_str(), &info) == 0;  // of what a link leads to
  if (exists && !S_ISREG(info.st_mode)) {               // a device or a pipe: written as it is, never replaced
    file_ = std::fopen(path_.c_str(), "wb");
  } else {
    if (exists && !overwrite) {
      throw Failure(KVPLUG_E_CONFIG,
                    "output.path: " + path_ + " exists\n  choose another path, or set output.overwrite = true");
    }
    char real[PATH_MAX];
    if (exists && realpath(path_.c_str(), real)) path_ = real;
    partial_ = path_ + ".XXXXXX";
    if (const int fd = mkstemp(partial_.data()); fd >= 0) {
      fchmod(fd, exists ? info.st_mode & 07777 : 0644);
      file_ = fdopen(fd, "wb");
    }
  }
  if (!file_) {
    const std::string why = std::strerror(errno);
    throw Failure(KVP_IO, "output.path: " + path + ": cannot be written: " + why);
  }
}

Output::~Output() {
  if (file_ && file_ != stdout) {
    std::fclose(file_);
    if (!partial_.empty()) std::remove(partial_.c_str());
  }
}

void Output::write(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), file_) != text.size() || std::fflush(file_) != 0) {
    throw Failure(KVP_IO,
                  (path_ == "-" ? "standard output" : path_) + ": could not be written: " + std::strerror(errno));
  }
}

void Output::finish() {
  if (file_ == stdout) return;
  std::FILE* file = std::exchange(file_, nullptr);
  if (std::fclose(file) != 0 || (!partial_.empty() && std::rename(partial_.c_str(), path_.c_str()) != 0)) {
    const std::string why = std::strerror(errno);
    if (!partial_.empty()) std::remove(partial_.c_str());
    throw Failure(KVP_IO, path_ + ": could not be written: " + why);
  }
}

}  // namespace kvplug::cli
