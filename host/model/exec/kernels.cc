// SPDX-License-Identifier: Apache-2.0
#include "model/exec/kernels.h"

#include <string_view>

namespace kvplug::model {
namespace {

struct Level {
  const char* name;
  const Kernels* tables;
};

// Best first, those that this CPU runs.
const Level* levels() {
  static const Level all[] = {
#if defined(__x86_64__)
      {"avx512", kAvx512Kernels},
      {"avx2", kAvx2Kernels},
#endif
      {"baseline", kBaselineKernels},
      {nullptr, nullptr}};
#if defined(__x86_64__)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("f16c")) return all + 2;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  return avx512 ? all : all + 1;
#else
  return all;
#endif
}

}  // namespace

const char* kernel_level() { return levels()->name; }

const Kernels& kernels(Type type) {
  static const Kernels* const best = levels()->tables;
  return best[static_cast<int>(type)];
}

const Kernels* kernels_of(const char* name, Type type) {
  for (const Level* level = levels(); level->name != nullptr; ++level) {
    if (std::string_view(level->name) == name) return &level->tables[static_cast<int>(type)];
  }
  return nullptr;
}

}  // namespace kvplug::model
