// SPDX-License-Identifier: Apache-2.0
#include "report/bandwidth.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace kvplug::report {
namespace {

constexpr size_t kWords = size_t{1} << 26;
constexpr size_t kLanes = 32;  // enough independent sums for the vector units

uint64_t sum_of(const uint64_t* words, size_t n) {
  uint64_t lanes[kLanes] = {};
  for (size_t i = 0; i + kLanes <= n; i += kLanes) {
    for (size_t j = 0; j < kLanes; ++j) lanes[j] += words[i + j];
  }
  uint64_t out = 0;
  for (const uint64_t lane : lanes) out += lane;
  return out;
}

}  // namespace

double read_bandwidth(int threads) {
  const std::vector<uint64_t> memory(kWords, 1);
  const size_t team_size = static_cast<size_t>(std::max(threads, 1)), part = kWords / team_size;
  std::vector<uint64_t> sums(team_size);
  double best = 0;
  for (int pass = 0; pass < 5; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> team;
    for (size_t t = 0; t < team_size; ++t)
      team.emplace_back([&, t] { sums[t] += sum_of(memory.data() + t * part, part); });
    for (std::thread& one : team) one.join();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    // What was summed is used, so that the reading is not optimised away.
    if (sums[0] != 0) best = std::max(best, static_cast<double>(part * team_size * sizeof(uint64_t)) / seconds);
  }
  return best;
}

}  // namespace kvplug::report
