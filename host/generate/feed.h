// SPDX-License-Identifier: Apache-2.0
// The ids of one forward pass as a matrix [batch, tokens]. Rows that hold nothing yet are padded on the left, so that
// they all end in the last column; rows that go on are ragged on the right (count).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/executor.h"

namespace kvplug::generate {

struct Feed {
  int64_t batch = 0, tokens = 0;
  std::vector<int32_t> ids;         // [batch, tokens]
  std::vector<int64_t> pad, count;  // [batch]

  model::ForwardInput input() const { return {ids.data(), batch, tokens, pad.data(), count.data()}; }
  // Columns begin..end-1.
  Feed columns(int64_t begin, int64_t end) const;
};

// pending[b]: the ids row b takes, may be empty for rows that are not fresh; fresh[b]: the row holds no token yet.
Feed make_feed(std::span<const std::span<const int32_t>> pending, const std::vector<bool>& fresh);

}  // namespace kvplug::generate
