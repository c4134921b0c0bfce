// SPDX-License-Identifier: Apache-2.0
#include <kvplug/kvplug.h>

#include "api/effective.h"

using namespace kvplug;
using namespace kvplug::api;

namespace {

// Relative paths of a text are taken from the folder of its origin.
std::filesystem::path base_of(const char* origin) {
  return std::filesystem::absolute(std::filesystem::path(origin ? origin : "").parent_path() / ".").lexically_normal();
}

}  // namespace

extern "C" {

kvplug_status kvplug_config_create(kvplug_host* host, kvplug_config** out, kvp_error* err) {
  return border(err, [&] {
    need(out, "out");
    *out = new kvplug_config{need(host, "host").state, {}};
  });
}

void kvplug_config_release(kvplug_config* config) { delete config; }

kvplug_status kvplug_config_merge_toml(kvplug_config* config, const char* text, size_t len, const char* origin,
                                       kvp_error* err) {
  return border(err, [&] {
    need(config, "config").config.merge_toml(text_of(text, len), origin ? origin : "toml", base_of(origin));
  });
}

kvplug_status kvplug_config_merge_json(kvplug_config* config, const char* text, size_t len, const char* origin,
                                       kvp_error* err) {
  return border(err, [&] {
    need(config, "config").config.merge_json(text_of(text, len), origin ? origin : "json", base_of(origin));
  });
}

kvplug_status kvplug_config_set(kvplug_config* config, const char* key, const char* toml_value, kvp_error* err) {
  return border(err, [&] { need(config, "config").config.set(&need(key, "key"), &need(toml_value, "toml_value")); });
}

kvplug_status kvplug_config_set_environment(kvplug_config* config, const char* name, const char* value,
                                            kvp_error* err) {
  return border(err, [&] {
    const std::pair<std::string, std::string> variable(&need(name, "name"), &need(value, "value"));
    need(config, "config").config.merge_environment(std::span(&variable, 1));
  });
}

kvplug_status kvplug_config_get(const kvplug_config* config, const char* key, kvplug_buf** json, kvp_error* err) {
  return border(err, [&] {
    need(json, "json");
    give(json, need(config, "config").config.get(&need(key, "key")));
  });
}

kvplug_status kvplug_config_check(const kvplug_config* config, kvplug_buf** json, kvp_error* err) {
  return border(err, [&] {
    const Effective effective = make_effective(*need(config, "config").host, config->config, ModelNeed::kNone);
    nlohmann::json notices = nlohmann::json::array();
    for (const config::Notice& n : effective.run.notices) notices.push_back({{"code", n.code}, {"text", n.text}});
    if (json) give(json, nlohmann::json{{"schema_version", 1}, {"digest", effective.run.digest}, {"notices", notices}});
  });
}

kvplug_status kvplug_config_effective(const kvplug_config* config, kvplug_buf** toml, kvp_error* err) {
  return border(err, [&] {
    need(toml, "toml");
    give(toml,
         make_effective(*need(config, "config").host, config->config, ModelNeed::kIfThere).config.effective_toml());
  });
}

}  // extern "C"
