// SPDX-License-Identifier: Apache-2.0
// How a run is set up and why: settings with their origins, the cache of every layer with what it offers, what the run
// needs of it, what was replaced and for which reason.
#pragma once

#include <nlohmann/json.hpp>

#include "config/config.h"
#include "config/run.h"
#include "model/describe/description.h"

namespace kvplug {
class Registry;
}

namespace kvplug::report {

// executor: Executor::explain() where weights are loaded, else null.
nlohmann::json explain_run(Registry& registry, const config::Config& config, const config::Run& run,
                           const model::Description& model, const nlohmann::json& executor);

}  // namespace kvplug::report
