// SPDX-License-Identifier: Apache-2.0
// The one document a run gives (docs/run-file.md, Output): fixed keys, more may be added.
#pragma once

#include <nlohmann/json.hpp>

#include "config/run.h"
#include "generate/task.h"
#include "model/describe/description.h"

namespace kvplug::report {

// One element of `results`. tokenized: prompts' rows hold text.
nlohmann::json result_json(const generate::PromptResult& prompt, const config::Run& run);
// The rows of one generation, named by their numbers.
nlohmann::json results_json(const std::vector<generate::RowResult>& rows, const generate::Timings& timings,
                            const config::Run& run);

nlohmann::json run_document(const generate::TaskResult& task, const config::Run& run, const model::Description& model,
                            kvp_dtype dtype, double load_s);

}  // namespace kvplug::report
