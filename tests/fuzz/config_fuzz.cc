// SPDX-License-Identifier: Apache-2.0
// libFuzzer: any bytes as a run file (TOML or JSON), as generation_config.json, as a --set value. An Error is a fine
// answer; what resolves must print an effective config that resolves to the same values.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "config/config.h"
#include "core/error.h"

namespace {

void try_run(const kvplug::config::Config& config) {
  const auto run = config.resolve();
  kvplug::config::Config again;
  again.merge_toml(config.effective_toml(), "effective", "/");
  if (again.resolve().digest != run.digest) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  kvplug::config::Config config;
  try {
    switch (data[0] % 4) {
      case 0: config.merge_toml(text, "fuzz.toml", "/"); break;
      case 1: config.merge_json(text, "fuzz.json", "/"); break;
      case 2: config.set_checkpoint(text); break;
      default: {
        const std::size_t equals = text.find('=');
        if (equals == std::string_view::npos) return 0;
        config.set(text.substr(0, equals), text.substr(equals + 1));
      }
    }
  } catch (const kvplug::Error&) {
    return 0;
  }
  try {
    try_run(config);
  } catch (const kvplug::Error&) {
    // A contradiction; but what resolved once must do so again.
    bool resolves = true;
    try {
      config.resolve();
    } catch (const kvplug::Error&) {
      resolves = false;
    }
    if (resolves) std::abort();
  }
  return 0;
}
