// SPDX-License-Identifier: Apache-2.0
#include "model/exec/weights.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "core/error.h"
#include "model/exec/kernels.h"
#include "model/exec/parallel.h"

namespace kvplug::model {
namespace {

constexpr int64_t kConvertTile = 4096;

Error io_error(const std::filesystem::path& file, const char* what) {
  return {Code::kIo, std::string(what) + ": " + std::strerror(errno), {}, file.string()};
}

Error shorter(const std::filesystem::path& file, uint64_t now, uint64_t before) {
  return {Code::kCorrupt,
          "the file has " + std::to_string(now) + " bytes now and had " + std::to_string(before) +
              " when its header was read",
          "something writes to the model folder while it is in use: copy it again", file.string()};
}

int64_t elements_of_row(const TensorInfo& tensor) {
  int64_t n = 1;
  for (size_t i = 1; i < tensor.shape.size(); ++i) n *= tensor.shape[i];
  return n;
}

void convert(const char* from, Type source, Type target, void* to, int64_t n) {
  if (source == target) {
    std::memcpy(to, from, static_cast<size_t>(n) * size_of(target));
    return;
  }
  float tile[kConvertTile];
  for (int64_t i = 0; i < n; i += kConvertTile) {
    const int64_t count = std::min(kConvertTile, n - i);
    kernels(source).to_float(offset(from, i, source), tile, count);
    kernels(target).from_float(tile, offset(to, i, target), count);
  }
}

}  // namespace

Weights::Weights(const Description& description, bool map)
    : description_(description), map_(map), files_(description.files.size()) {
  try {
    for (size_t i = 0; i < files_.size(); ++i) {
      File& file = files_[i];
      const auto& path = description.files[i];
      file.fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
      struct stat status{};
      if (file.fd < 0 || fstat(file.fd, &status) != 0) throw io_error(path, "cannot open");
      file.size = static_cast<uint64_t>(status.st_size);
      for (const auto& [name, tensor] : description.tensors) {
        if (tensor.file == i && tensor.offset + tensor.bytes > file.size) {
          throw shorter(path, file.size, tensor.offset + tensor.bytes);
        }
      }
      if (!map || file.size == 0) continue;
      void* data = mmap(nullptr, file.size, PROT_READ, MAP_PRIVATE, file.fd, 0);
      if (data == MAP_FAILED) throw io_error(path, "cannot map");
      file.data = static_cast<char*>(data);
    }
  } catch (...) {
    close_all();
    throw;
  }
}

Weights::~Weights() { close_all(); }

void Weights::close_all() {
  for (File& file : files_) {
    if (file.data != nullptr) munmap(file.data, file.size);
    if (file.fd >= 0) close(file.fd);
  }
}

const TensorInfo& Weights::info(const std::string& name) const {
  const auto at = description_.tensors.find(name);
  if (at == description_.tensors.end()) {
    throw Error(Code::kNotFound, "the checkpoint has no tensor \"" + name + "\"", {}, description_.folder.string());
  }
  return at->second;
}

void Weights::copy(const TensorInfo& tensor, uint64_t from, uint64_t bytes, void* to) const {
  const File& file = files_[tensor.file];
  for (uint64_t done = 0; done < bytes;) {
    const ssize_t got =
        pread(file.fd, static_cast<char*>(to) + done, bytes - done, static_cast<off_t>(tensor.offset + from + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw io_error(description_.files[tensor.file], "cannot read");
    if (got == 0) throw shorter(description_.files[tensor.file], tensor.offset + from + done, file.size);
    done += static_cast<uint64_t>(got);
  }
}

void Weights::read(const TensorInfo& tensor, int64_t first, int64_t rows, Type type, void* to) const {
  const int64_t width = elements_of_row(tensor);
  read_elements(tensor, first * width, rows * width, type, to);
}

void Weights::read_elements(const TensorInfo& tensor, int64_t first, int64_t n, Type type, void* to) const {
  const Type source = type_of(tensor.dtype);
  const uint64_t from = static_cast<uint64_t>(first) * size_of(source);
  const uint64_t bytes = static_cast<uint64_t>(n) * size_of(source);
  if (map_) {
    convert(files_[tensor.file].data + tensor.offset + from, source, type, to, n);
  } else if (source == type) {
    copy(tensor, from, bytes, to);
  } else {
    const auto plain = std::make_unique_for_overwrite<char[]>(bytes);
    copy(tensor, from, bytes, plain.get());
    convert(plain.get(), source, type, to, n);
  }
}

void Weights::read_transposed(const TensorInfo& tensor, int64_t index, int64_t begin, int64_t end, int64_t first,
                              int64_t columns, Type type, void* to) const {
  const int64_t in = tensor.shape.at(1), out = tensor.shape.at(2);
  const auto size = static_cast<int64_t>(size_of(type));
  // So many inputs at a time that what is written of a row fills a cache line.
  const int64_t block = 64 / size;
  const auto tile = std::make_unique_for_overwrite<char[]>(static_cast<size_t>(block * columns * size));
  for (int64_t i = begin; i < end; i += block) {
    const int64_t count = std::min(block, end - i);
    for (int64_t j = 0; j < count; ++j) {
      read_elements(tensor, (index * in + i + j) * out + first, columns, type, tile.get() + j * columns * size);
    }
    for (int64_t c = 0; c < columns; ++c) {
      char* row = static_cast<char*>(to) + (c * in + i) * size;
      for (int64_t j = 0; j < count; ++j) {
        std::memcpy(row + j * size, tile.get() + (j * columns + c) * size, static_cast<size_t>(size));
      }
    }
  }
}

std::vector<float> Weights::vector(const std::string& name, Type type) const {
  const TensorInfo& tensor = info(name);
  check(tensor);
  const auto n = static_cast<size_t>(tensor.shape[0] * elements_of_row(tensor));
  const auto rounded = std::make_unique<char[]>(n * size_of(type));
  read(tensor, 0, tensor.shape[0], type, rounded.get());
  std::vector<float> out(n);
  kernels(type).to_float(rounded.get(), out.data(), static_cast<int64_t>(n));
  return out;
}

void Weights::advise(const TensorInfo& tensor, int64_t first, int64_t rows, int advice) const {
  if (!map_) return;
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t row = static_cast<uint64_t>(elements_of_row(tensor)) * size_of(type_of(tensor.dtype));
  const uint64_t from = tensor.offset + static_cast<uint64_t>(first) * row,
                 to = from + static_cast<uint64_t>(rows) * row;
  // Inner pages alone: the edges belong to neighbours too.
  const uint64_t begin = (from + page - 1) / page * page, end = to / page * page;
  if (begin < end) madvise(files_[tensor.file].data + begin, end - begin, advice);
}

void Weights::release(const TensorInfo& tensor, int64_t first, int64_t rows) const {
  advise(tensor, first, rows, MADV_DONTNEED);
}

void Weights::expect_lookups(const TensorInfo& tensor) const { advise(tensor, 0, tensor.shape[0], MADV_RANDOM); }

void Weights::check(const TensorInfo& tensor) const {
  struct stat status{};
  const File& file = files_[tensor.file];
  if (fstat(file.fd, &status) != 0) throw io_error(description_.files[tensor.file], "cannot look at");
  const auto size = static_cast<uint64_t>(status.st_size);
  if (size < file.size) throw shorter(description_.files[tensor.file], size, file.size);
}

Embedding::Embedding(const Weights& weights, const TensorInfo& table, Type type)
    : weights_(weights), table_(table), type_(type), width_(elements_of_row(table)) {
  if (weights.mapped()) return;
  held_ = Buffer(static_cast<size_t>(table.shape[0] * width_) * size_of(type));
  parallel_for(table.shape[0], 4096, [&](int64_t begin, int64_t end) {
    weights.read(table, begin, end - begin, type, offset(held_.data(), begin * width_, type));
  });
}

void Embedding::lookup(const int32_t* ids, int64_t n, void* to) const {
  if (held_.data() != nullptr) {
    for (int64_t i = 0; i < n; ++i) {
      std::memcpy(offset(to, i * width_, type_), offset(held_.data(), ids[i] * width_, type_),
                  static_cast<size_t>(width_) * size_of(type_));
    }
    return;
  }
  weights_.check(table_);
  for (int64_t i = 0; i < n; ++i) weights_.read(table_, ids[i], 1, type_, offset(to, i * width_, type_));
}

}  // namespace kvplug::model
