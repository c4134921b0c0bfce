// SPDX-License-Identifier: Apache-2.0
// The rows of one layer: how many slots each has seen and how many of the first are padding. Every kind of cache keeps
// its books with this, so that padding, ragged rows, crop and gather mean the same everywhere.
//
// A row's slots are 0 .. seen-1; the first `pad` hold padding, which is not stored; the token of slot s has row
// position s - pad; stored = seen - pad. Rows may differ in length. Checks throw INVALID_ARGUMENT before anything
// changes; what changes things does not throw, gather excepted, which is all or nothing.
#pragma once

#include <kvplug/sdk/status.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace kvplug::sdk {

// The tokens of one call: `tokens` a row, of which row b takes the first count[b] (NULL: all); the first pad[b] of
// these (NULL: none) are padding.
struct Append {
  int64_t batch = 0;
  int64_t tokens = 0;
  const int64_t* pad = nullptr;
  const int64_t* count = nullptr;

  int64_t taken(int64_t b) const noexcept { return count == nullptr ? tokens : count[b]; }
  int64_t padding(int64_t b) const noexcept { return pad == nullptr ? 0 : pad[b]; }
  // Tokens b really stores; the first of them is token padding(b) of the call.
  int64_t stored(int64_t b) const noexcept { return taken(b) - padding(b); }
};

class Rows {
 public:
  struct Row {
    int64_t seen = 0;
    int64_t pad = 0;
    int64_t stored() const noexcept { return seen - pad; }
  };

  int64_t batch() const noexcept { return static_cast<int64_t>(rows_.size()); }
  const Row& operator[](int64_t b) const noexcept { return rows_[static_cast<size_t>(b)]; }

  // Slots of the longest row; 0 without rows.
  int64_t longest() const noexcept {
    int64_t most = 0;
    for (const Row& row : rows_) most = std::max(most, row.seen);
    return most;
  }

  // Makes `batch` empty rows. Allocates only beyond the largest batch so far.
  void start(int64_t batch) { rows_.assign(static_cast<size_t>(batch), Row{}); }

  void check_append(const Append& a) const {
    if (a.batch != batch())
      fail(KVP_INVALID_ARGUMENT, "the batch is ", a.batch, "; the cache holds ", batch(), " rows");
    for (int64_t b = 0; b < a.batch; ++b) {
      if (a.taken(b) < 0 || a.taken(b) > a.tokens) {
        fail(KVP_INVALID_ARGUMENT, "count[", b, "] is ", a.taken(b), "; the call has ", a.tokens, " tokens a row");
      }
      const int64_t padding = a.padding(b);
      if (padding < 0 || padding > a.taken(b)) {
        fail(KVP_INVALID_ARGUMENT, "pad[", b, "] is ", padding, "; row ", b, " takes ", a.taken(b), " tokens");
      }
      const Row& row = (*this)[b];
      if (padding > 0 && row.stored() > 0) {
        fail(KVP_INVALID_ARGUMENT, "pad[", b, "] is ", padding, ", but row ", b, " already holds ", row.stored(),
             " tokens; only the first of a row can be padding");
      }
    }
  }

  void append(const Append& a) noexcept {
    for (int64_t b = 0; b < a.batch; ++b) {
      rows_[static_cast<size_t>(b)].seen += a.taken(b);
      rows_[static_cast<size_t>(b)].pad += a.padding(b);
    }
  }

  // Cuts row b down to `seen` slots; longer than it is: nothing happens.
  void truncate(int64_t b, int64_t seen) noexcept {
    Row& row = rows_[static_cast<size_t>(b)];
    row.seen = std::min(row.seen, seen);
    row.pad = std::min(row.pad, row.seen);
  }

  // The rows after gather; `this` is unchanged.
  Rows gathered(const int64_t* src_rows, int64_t n) const {
    Rows out;
    out.rows_.resize(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
      if (src_rows[i] >= 0 && src_rows[i] < batch()) out.rows_[static_cast<size_t>(i)] = (*this)[src_rows[i]];
    }
    return out;
  }

  // Fills seen, row_seen and row_pad of an answer of lengths.
  void fill(kvp_lengths& out) const {
    const auto n = static_cast<int64_t>(out.n_rows);
    if ((out.row_seen != nullptr || out.row_pad != nullptr) && n > batch() && batch() > 0) {
      fail(KVP_INVALID_ARGUMENT, "n_rows is ", n, "; the cache holds ", batch(), " rows");
    }
    out.seen = longest();
    for (int64_t b = 0; b < n; ++b) {
      const Row row = b < batch() ? (*this)[b] : Row{};
      if (out.row_seen != nullptr) out.row_seen[b] = row.seen;
      if (out.row_pad != nullptr) out.row_pad[b] = row.pad;
    }
  }

 private:
  std::vector<Row> rows_;
};

// src_rows of gather against the rows there are; a cache without rows yet takes any, as there is nothing to move.
inline void check_gather(const int64_t* src_rows, int64_t n, int64_t batch) {
  if (n < 1 || src_rows == nullptr) fail(KVP_INVALID_ARGUMENT, "gather to ", n, " rows; expected at least 1");
  for (int64_t i = 0; i < n; ++i) {
    if (src_rows[i] < -1 || (batch > 0 && src_rows[i] >= batch)) {
      fail(KVP_INVALID_ARGUMENT, "src_rows[", i, "] is ", src_rows[i], "; expected -1 or a row below ", batch);
    }
  }
}

// n_remove of crop: one count for all rows, or one a row.
inline void check_crop(const int64_t* n_remove, int64_t n, int64_t batch) {
  if (n_remove == nullptr || n < 1 || (n != 1 && batch > 0 && n != batch)) {
    fail(KVP_INVALID_ARGUMENT, "crop with ", n, " counts; expected 1 or one for each of ", batch, " rows");
  }
  for (int64_t i = 0; i < n; ++i) {
    if (n_remove[i] < 0) fail(KVP_INVALID_ARGUMENT, "n_remove[", i, "] is ", n_remove[i], "; expected 0 or more");
  }
}

}  // namespace kvplug::sdk
