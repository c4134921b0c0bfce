// SPDX-License-Identifier: Apache-2.0
// The bytes of a checkpoint. Offsets come from headers that `describe` has checked against the files.
//
// Mapped, the default: private read-only mappings; release() gives pages back once they were packed, so that weights
// are never held twice. A file that becomes shorter while mapped would end the process at the next touch (SIGBUS);
// check() before every use closes all of that but the moment between the two. Not mapped: every read is a pread, and a
// shorter file is an ordinary error.
#pragma once

#include <cstdint>
#include <vector>

#include "model/describe/description.h"
#include "model/exec/buffer.h"
#include "model/exec/type.h"

namespace kvplug::model {

class Weights {
 public:
  // Opens every file of the description. Throws kIo, kCorrupt (shorter than its header says).
  Weights(const Description& description, bool map);
  ~Weights();
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;

  bool mapped() const { return map_; }
  // Throws kNotFound.
  const TensorInfo& info(const std::string& name) const;
  // Rows [first, first + rows) of a tensor seen as [shape[0], rest], converted to `type`, one after the other.
  // Thread-safe.
  void read(const TensorInfo& tensor, int64_t first, int64_t rows, Type type, void* to) const;
  // A stack [n, in, out] seen as n products x * W: columns [first, first + columns) of matrix `index` become rows of
  // `in`, as read() gives a [out, in] matrix. Fills the part of `to` that belongs to inputs [begin, end). Thread-safe.
  void read_transposed(const TensorInfo& tensor, int64_t index, int64_t begin, int64_t end, int64_t first,
                       int64_t columns, Type type, void* to) const;
  // A vector as float32 that holds values already rounded to `type`.
  std::vector<float> vector(const std::string& name, Type type) const;
  // Rows that will not be read soon: their pages need not stay resident.
  void release(const TensorInfo& tensor, int64_t first, int64_t rows) const;
  // Rows will be read here and there: no read-ahead.
  void expect_lookups(const TensorInfo& tensor) const;
  // Throws kCorrupt if the tensor's file has become shorter.
  void check(const TensorInfo& tensor) const;

 private:
  struct File {
    int fd = -1;
    uint64_t size = 0;
    char* data = nullptr;
  };
  void close_all();
  // n elements from element `first` on.
  void read_elements(const TensorInfo& tensor, int64_t first, int64_t n, Type type, void* to) const;
  void copy(const TensorInfo& tensor, uint64_t from, uint64_t bytes, void* to) const;
  void advise(const TensorInfo& tensor, int64_t first, int64_t rows, int advice) const;

  const Description& description_;
  const bool map_;
  std::vector<File> files_;
};

// The token embedding: rows are looked up in the checkpoint and converted on the way, the table is not held a second
// time. Without mapping it is held in memory, in `type`.
class Embedding {
 public:
  Embedding(const Weights& weights, const TensorInfo& table, Type type);
  // to: [n, width]. Throws kCorrupt if the file has become shorter.
  void lookup(const int32_t* ids, int64_t n, void* to) const;
  // Held in memory; a mapped table belongs to the file.
  uint64_t bytes() const { return held_.size(); }

 private:
  const Weights& weights_;
  const TensorInfo& table_;
  const Type type_;
  int64_t width_;
  Buffer held_;
};

}  // namespace kvplug::model
