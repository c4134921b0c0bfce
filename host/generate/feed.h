// SPDX-License-Identifier: Apache-2.0
// The ids of one forward pass as a matrix [batch, tokens]. Rows that hold nothing yet are padded on the left, so that
// they all end in the last column; rows that go on are ragged on the right (count). One feed serves a whole generation:
// filling it again takes no memory once it has been as large.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/executor.h"

namespace kvplug::generate {

// What one row takes: its ids, may be none for rows that are not fresh; fresh: the row holds no token yet.
struct FeedRow {
  std::span<const int32_t> ids;
  bool fresh = false;
};

struct Feed {
  int64_t batch = 0, tokens = 0;
  std::vector<int32_t> ids;         // [batch, tokens]
  std::vector<int64_t> pad, count;  // [batch]

  void fill(std::span<const FeedRow> rows);
  // Columns begin..end-1 of `from`.
  void fill(const Feed& from, int64_t begin, int64_t end);
  model::ForwardInput input() const { return {ids.data(), batch, tokens, pad.data(), count.data()}; }
};

}  // namespace kvplug::generate
