// SPDX-License-Identifier: Apache-2.0
#include "generate/feed.h"

#include <algorithm>

namespace kvplug::generate {

Feed make_feed(std::span<const std::span<const int32_t>> pending, const std::vector<bool>& fresh) {
  Feed feed;
  feed.batch = static_cast<int64_t>(pending.size());
  for (const auto& row : pending) feed.tokens = std::max(feed.tokens, static_cast<int64_t>(row.size()));
  feed.ids.assign(static_cast<size_t>(feed.batch * feed.tokens), 0);
  for (size_t b = 0; b < pending.size(); ++b) {
    const auto n = static_cast<int64_t>(pending[b].size());
    const int64_t pad = fresh[b] ? feed.tokens - n : 0;
    feed.pad.push_back(pad);
    feed.count.push_back(pad + n);
    std::copy(pending[b].begin(), pending[b].end(), feed.ids.begin() + static_cast<int64_t>(b) * feed.tokens + pad);
  }
  return feed;
}

Feed Feed::columns(int64_t begin, int64_t end) const {
  Feed out;
  out.batch = batch;
  out.tokens = end - begin;
  for (int64_t b = 0; b < batch; ++b) {
    const auto row = ids.begin() + b * tokens;
    out.ids.insert(out.ids.end(), row + begin, row + end);
    out.pad.push_back(std::clamp<int64_t>(pad[static_cast<size_t>(b)] - begin, 0, out.tokens));
    out.count.push_back(std::clamp<int64_t>(count[static_cast<size_t>(b)] - begin, 0, out.tokens));
  }
  return out;
}

}  // namespace kvplug::generate
