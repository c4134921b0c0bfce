// SPDX-License-Identifier: Apache-2.0
#include "report/machine.h"

#include <kvplug/sdk/attention.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <thread>

namespace kvplug::report {
namespace {

std::string after_colon(const std::string& line) {
  const size_t colon = line.find(':');
  if (colon == std::string::npos) return {};
  const size_t start = line.find_first_not_of(" \t", colon + 1);
  return start == std::string::npos ? std::string() : line.substr(start);
}

uint64_t meminfo_bytes(const char* key) {
  std::ifstream in("/proc/meminfo");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(key)) return std::stoull(after_colon(line)) * 1024;  // "… kB"
  }
  return 0;
}

uint64_t number_in_file(const char* path) {
  std::ifstream in(path);
  uint64_t value = 0;
  return in >> value ? value : 0;  // "max" reads as no number
}

}  // namespace

uint64_t available_host_bytes() {
  uint64_t bytes = meminfo_bytes("MemAvailable");
  const uint64_t limit = number_in_file("/sys/fs/cgroup/memory.max");
  const uint64_t used = number_in_file("/sys/fs/cgroup/memory.current");
  if (limit != 0) bytes = std::min(bytes == 0 ? limit : bytes, limit > used ? limit - used : 0);
  return bytes;
}

nlohmann::json describe_machine() {
  nlohmann::json out;
  static constexpr const char* kInteresting[] = {"avx2",        "fma",         "f16c",        "avx512f",  "avx512bw",
                                                 "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_bf16", "amx_int8"};
  std::ifstream in("/proc/cpuinfo");
  std::set<std::pair<std::string, std::string>> cores;
  std::string physical;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("model name")) out["cpu"] = after_colon(line);
    if (line.starts_with("physical id")) physical = after_colon(line);
    if (line.starts_with("core id")) cores.emplace(physical, after_colon(line));
    if (line.starts_with("flags") && !out.contains("features")) {
      std::istringstream words(after_colon(line));
      std::set<std::string> flags;
      for (std::string word; words >> word;) flags.insert(word);
      out["features"] = nlohmann::json::array();
      for (const char* name : kInteresting) {
        if (flags.contains(name)) out["features"].push_back(name);
      }
    }
  }
  out["logical_cores"] = std::thread::hardware_concurrency();
  out["physical_cores"] = cores.empty() ? std::thread::hardware_concurrency() : cores.size();
  out["memory_bytes"] = meminfo_bytes("MemTotal");
  out["available_bytes"] = available_host_bytes();
  out["attention_kernel"] = sdk::attend_level();
  return out;
}

}  // namespace kvplug::report
