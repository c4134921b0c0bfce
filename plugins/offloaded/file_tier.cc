// SPDX-License-Identifier: Apache-2.0
#include "file_tier.h"

#include <fcntl.h>
#include <kvplug/sdk/status.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace kvplug::offloaded {
namespace {

using sdk::fail;

// A file without a name: of the kind the system makes, or named for a moment where the file system has none.
int open_unnamed(const std::string& folder) {
#ifdef O_TMPFILE
  const int made = open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (made >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return made;
#endif
  std::string name = folder + "/kvplug-XXXXXX";
  const int file = mkostemp(name.data(), O_CLOEXEC);
  if (file >= 0) unlink(name.c_str());
  return file;
}

[[noreturn]] void refuse(const std::string& folder, int error) {
  fail(KVP_IO, "disk_path '", folder, "': no file can be made there: ", std::strerror(error),
       "; give a folder that exists and may be written to");
}

}  // namespace

void FileTier::check_folder(const std::string& folder) {
  const std::string inside = folder + "/.";  // of a file there is none
  if (faccessat(AT_FDCWD, inside.c_str(), W_OK | X_OK, AT_EACCESS) != 0) refuse(folder, errno);
}

FileTier::FileTier(std::string folder, size_t layers) : folder_(std::move(folder)) {
  for (size_t i = 0; i < layers; ++i) {
    const int file = open_unnamed(folder_);
    if (file < 0) {
      const int error = errno;
      for (const int open : files_) close(open);
      refuse(folder_, error);
    }
    files_.push_back(file);
  }
}

FileTier::~FileTier() {
  for (const int file : files_) close(file);
}

void FileTier::grow(size_t layer, int64_t bytes) {
  const int error = posix_fallocate(files_[layer], 0, bytes);
  if (error != 0) {
    fail(KVP_IO, "disk_path '", folder_, "': ", bytes, " bytes are needed for layer ", layer,
         " and cannot be had: ", std::strerror(error));
  }
}

void FileTier::read(size_t layer, int64_t at, int64_t bytes, std::byte* to) {
  while (bytes > 0) {
    const ssize_t n = pread(files_[layer], to, static_cast<size_t>(bytes), at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      fail(KVP_IO, "disk_path '", folder_, "': reading layer ", layer,
           " failed: ", n < 0 ? std::strerror(errno) : "the file is shorter than it was");
    }
    to += n;
    at += n;
    bytes -= n;
  }
}

void FileTier::write(size_t layer, int64_t at, int64_t bytes, const std::byte* from) {
  while (bytes > 0) {
    const ssize_t n = pwrite(files_[layer], from, static_cast<size_t>(bytes), at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) fail(KVP_IO, "disk_path '", folder_, "': writing layer ", layer, " failed: ", std::strerror(errno));
    from += n;
    at += n;
    bytes -= n;
  }
}

}  // namespace kvplug::offloaded
