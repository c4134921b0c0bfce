// SPDX-License-Identifier: Apache-2.0
#include "report/measure.h"

#include "core/host_services.h"
#include "report/plan.h"

namespace kvplug::report {

void tell(const MeasureContext& context, const std::string& what, uint64_t done, uint64_t total) {
  if (context.progress && !context.progress(what, done, total)) throw Error(Code::kCancelled, "stopped on request");
}

nlohmann::json document_head(const config::Run& run, const model::Executor& executor) {
  const model::Description& model = executor.description();
  return {{"schema_version", 1},
          {"kvplug", HostServices::version()},
          {"name", run.run.name},
          {"config_digest", run.digest},
          {"model",
           {{"path", model.folder.string()},
            {"model_type", model.model_type},
            {"dtype", dtype_word(executor.options().dtype)},
            {"device", "cpu"},
            {"layers", model.layers.size()},
            {"parameters", model.parameters}}}};
}

nlohmann::json cache_json(const config::NamedCache& cache) {
  return {{"cache", cache.cache_implementation}, {"cache_config", cache.cache_config}};
}

nlohmann::json error_json(const Error& error) {
  return {{"code", code_word(error.code())},
          {"message", error.message()},
          {"hint", error.hint()},
          {"where", error.where()}};
}

}  // namespace kvplug::report
