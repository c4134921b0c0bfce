// SPDX-License-Identifier: Apache-2.0
#include "api/effective.h"

#include <algorithm>

namespace kvplug::api {
namespace {

int32_t log_level(const std::string& word) {
  return word == "error"   ? KVP_LOG_ERROR
         : word == "info"  ? KVP_LOG_INFO
         : word == "debug" ? KVP_LOG_DEBUG
                           : KVP_LOG_WARNING;
}

void apply_plugins(Registry& registry, const config::PluginsSection& plugins) {
  registry.set_min_conformance(plugins.min_conformance);
  for (const std::string& folder : plugins.search_path) registry.add_search_path(folder);
  for (const config::PluginLoad& load : plugins.load) {
    try {
      const Manifest& manifest = registry.load(load.path, load.sha256);
      const auto provides = [&](const Provided& p) { return p.name == load.name; };
      if (!load.name.empty() && std::none_of(manifest.provides.begin(), manifest.provides.end(), provides)) {
        throw Error(Code::kPlugin, manifest.library_path.string() + " does not provide \"" + load.name + "\"");
      }
    } catch (const Error& e) {
      throw Error(e.code(), e.what(), "", load.where);
    }
  }
}

}  // namespace

config::KindTable kind_table(const Registry& registry) {
  config::KindTable table;
  for (const std::string& kind : registry.cache_kinds()) {
    const OptionsSchema* schema = registry.schema(KVP_IFACE_CACHE, kind);
    table.schemas.emplace(kind, schema ? *schema : OptionsSchema());
  }
  table.quantizers = registry.quantizer_schemas();
  table.searched = registry.places();
  return table;
}

Effective make_effective(HostState& host, const config::Config& config, ModelNeed need) {
  Effective out{config, config.resolve(nullptr), std::nullopt};
  if (config.get("run.log_level")["origin"] != "default") host.services.set_log_level(log_level(out.run.run.log_level));
  apply_plugins(host.registry, out.run.plugins);
  if (need != ModelNeed::kNone) {
    if (out.run.model.path.empty()) {
      if (need == ModelNeed::kRequired) {
        throw Error(Code::kConfig, "no model is named",
                    "set model.path to a folder with config.json, *.safetensors and tokenizer.json", "model.path");
      }
    } else {
      const std::filesystem::path absolute = out.run.model.path;
      const bool exists = std::filesystem::exists(absolute);
      try {
        // The path as written is what a hub id is recognised by.
        out.model = reading_model(
            [&] { return model::describe_model(exists ? absolute : std::filesystem::path(out.run.model.path_given)); });
      } catch (const Error& e) {
        if (need == ModelNeed::kRequired) {
          const std::string at = config.where("model.path");
          if (exists || at.empty()) throw;
          throw Error(e.code(), e.message() + ": " + e.where(), e.hint(), at);
        }
      }
    }
    if (out.model && out.run.model.use_generation_config) {
      out.config.set_checkpoint(out.model->generation_config.dump(),
                                (out.model->folder / "generation_config.json").string());
    }
  }
  const config::KindTable kinds = kind_table(host.registry);
  out.run = out.config.resolve(&kinds);
  return out;
}

}  // namespace kvplug::api
