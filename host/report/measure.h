// SPDX-License-Identifier: Apache-2.0
// What bench and diff have in common: where they run, how they tell of progress, what their documents begin with.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "config/run.h"
#include "core/error.h"
#include "model/executor.h"
#include "text/tokenizer.h"

namespace kvplug {
class Registry;
}

namespace kvplug::report {

struct MeasureContext {
  Registry* registry = nullptr;
  std::shared_ptr<model::Executor> executor;
  std::shared_ptr<const text::Tokenizer> tokenizer;  // NULL where the folder has none
  // What is done now, steps done and to do. False: stop (kCancelled).
  std::function<bool(const std::string& what, uint64_t done, uint64_t total)> progress;
};

void tell(const MeasureContext& context, const std::string& what, uint64_t done, uint64_t total);

// {"schema_version", "kvplug", "name", "config_digest", "model": {...}}
nlohmann::json document_head(const config::Run& run, const model::Executor& executor);
// {"cache", "cache_config"}
nlohmann::json cache_json(const config::NamedCache& cache);
nlohmann::json error_json(const Error& error);  // {"code", "message", "hint", "where"}

}  // namespace kvplug::report
