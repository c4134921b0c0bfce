// SPDX-License-Identifier: Apache-2.0
// From a config handle to a run that can be carried out: the file's plugins are made known, the checkpoint's
// generation_config.json becomes the weakest layer, everything is resolved against the kinds that exist.
#pragma once

#include <optional>

#include "api/handles.h"

namespace kvplug::api {

struct Effective {
  config::Config config;
  config::Run run;
  std::optional<model::Description> model;  // present when asked for
};

enum class ModelNeed { kNone, kIfThere, kRequired };

// kIfThere: a model that cannot be read is left out; kRequired: its error is thrown.
Effective make_effective(HostState& host, const config::Config& config, ModelNeed need);

// Runs f, which reads the files of a checkpoint: whatever is wrong with them is a model that cannot be read.
template <class F>
auto reading_model(F&& f) {
  try {
    return f();
  } catch (const Error& e) {
    switch (e.code()) {
      case Code::kNotFound:
      case Code::kCorrupt:
      case Code::kIo:
      case Code::kUnsupported: throw Error(Code::kModel, e.message(), e.hint(), e.where());
      default: throw;
    }
  }
}

config::KindTable kind_table(const Registry& registry);

}  // namespace kvplug::api
