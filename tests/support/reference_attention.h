// SPDX-License-Identifier: Apache-2.0
// Plain attention in double precision over a ReferenceCache: the masks as the contract words them, one query at a time.
#pragma once

#include <cmath>
#include <limits>
#include <vector>

#include "reference_cache.h"

namespace kvplug::test {

struct AttendParams {
  bool causal = true;
  int64_t window = 0, chunk = 0;
  int64_t kv_offset = 0;  // slot of the first column of bias
  double scale = 1, softcap = 0;
  const Values* bias = nullptr;   // [batch or 1, q_heads or 1, queries or 1, kv_len]
  const Values* sinks = nullptr;  // [q_heads]
};

struct AttendResult {
  std::vector<double> out;
  double lse;
};

// Query `i` of row b, which stands at `slot` (before its row's padding: sees nothing).
inline AttendResult attend_one(const ReferenceCache& cache, size_t layer, int64_t b, const Values& q, int64_t head,
                               int64_t i, int64_t slot, const AttendParams& p) {
  const ReferenceCache::Layer& l = cache.layer(layer);
  const ReferenceCache::Row& row = l.rows[static_cast<size_t>(b)];
  const int64_t pad = row.pad(), group = q.t.shape[1] / l.kv_heads, kv_head = head / group;
  std::vector<double> score;
  std::vector<int64_t> at;
  for (int64_t j = std::max(pad, row.readable); j < row.seen() && slot >= pad; ++j) {
    if (p.causal && j > slot) continue;
    if (p.window > 0 && j <= slot - p.window) continue;
    if (p.chunk > 0 && (j - pad) / p.chunk != (slot - pad) / p.chunk) continue;
    double s = 0;
    for (int64_t d = 0; d < l.key_dim; ++d) {
      s += static_cast<double>(q.get(b, head, i, d)) * static_cast<double>(cache.k(layer, b, kv_head, j, d));
    }
    s *= p.scale;
    if (p.softcap > 0) s = p.softcap * std::tanh(s / p.softcap);
    if (p.bias != nullptr) {
      const auto index = [&](int axis, int64_t n) { return p.bias->t.shape[axis] == 1 ? 0 : n; };
      s += static_cast<double>(p.bias->get(index(0, b), index(1, head), index(2, i), j - p.kv_offset));
    }
    score.push_back(s);
    at.push_back(j);
  }
  AttendResult result{std::vector<double>(static_cast<size_t>(l.value_dim), 0.0),
                      -std::numeric_limits<double>::infinity()};
  double most = result.lse;
  for (double s : score) most = std::max(most, s);
  const bool sink = p.sinks != nullptr && slot >= pad;
  if (sink) most = std::max(most, static_cast<double>(p.sinks->get(head)));
  if (std::isinf(most)) return result;
  double sum = sink ? std::exp(static_cast<double>(p.sinks->get(head)) - most) : 0;
  for (double s : score) sum += std::exp(s - most);
  for (size_t n = 0; n < score.size(); ++n) {
    for (int64_t d = 0; d < l.value_dim; ++d) {
      result.out[static_cast<size_t>(d)] +=
          std::exp(score[n] - most) / sum * static_cast<double>(cache.v(layer, b, kv_head, at[n], d));
    }
  }
  result.lse = most + std::log(sum);
  return result;
}

}  // namespace kvplug::test
