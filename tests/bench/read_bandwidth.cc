// SPDX-License-Identifier: Apache-2.0
// Prints how many bytes per second N threads read from 1 GB of memory: the best of five passes.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <thread>
#include <vector>

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
  const size_t words = size_t{1} << 27;
  const std::vector<uint64_t> memory(words, 1);
  double best = 0;
  std::vector<uint64_t> sums(static_cast<size_t>(threads) * 8);
  for (int pass = 0; pass < 5; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    std::vector<std::thread> team;
    for (int t = 0; t < threads; ++t) {
      team.emplace_back([&, t] {
        const size_t begin = words / static_cast<size_t>(threads) * static_cast<size_t>(t),
                     n = words / static_cast<size_t>(threads);
        uint64_t a[32] = {};  // enough independent sums for the vector units
        for (size_t i = begin; i + 32 <= begin + n; i += 32) {
          for (size_t j = 0; j < 32; ++j) a[j] += memory[i + j];
        }
        for (const uint64_t x : a) sums[static_cast<size_t>(t) * 8] += x;
      });
    }
    for (std::thread& one : team) one.join();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = std::max(best, static_cast<double>(words * 8) / seconds);
  }
  std::cout << best << "\n";
  return sums[0] == 0;
}
