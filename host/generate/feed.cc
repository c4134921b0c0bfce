// SPDX-License-Identifier: Apache-2.0
#include "generate/feed.h"

#include <algorithm>

namespace kvplug::generate {

void Feed::fill(std::span<const FeedRow> rows) {
  batch = static_cast<int64_t>(rows.size());
  tokens = 0;
  for (const FeedRow& row : rows) tokens = std::max(tokens, static_cast<int64_t>(row.ids.size()));
  ids.assign(static_cast<size_t>(batch * tokens), 0);
  pad.resize(rows.size());
  count.resize(rows.size());
  for (size_t b = 0; b < rows.size(); ++b) {
    const auto n = static_cast<int64_t>(rows[b].ids.size());
    pad[b] = rows[b].fresh ? tokens - n : 0;
    count[b] = pad[b] + n;
    std::copy(rows[b].ids.begin(), rows[b].ids.end(), ids.begin() + static_cast<int64_t>(b) * tokens + pad[b]);
  }
}

void Feed::fill(const Feed& from, int64_t begin, int64_t end) {
  batch = from.batch;
  tokens = end - begin;
  ids.clear();
  pad.resize(from.pad.size());
  count.resize(from.count.size());
  for (size_t b = 0; b < pad.size(); ++b) {
    const auto row = from.ids.begin() + static_cast<int64_t>(b) * from.tokens;
    ids.insert(ids.end(), row + begin, row + end);
    pad[b] = std::clamp<int64_t>(from.pad[b] - begin, 0, tokens);
    count[b] = std::clamp<int64_t>(from.count[b] - begin, 0, tokens);
  }
}

}  // namespace kvplug::generate
