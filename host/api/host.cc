// SPDX-License-Identifier: Apache-2.0
#include <kvplug/kvplug.h>

#include "api/handles.h"
#include "api/model_library.h"
#include "report/machine.h"

using namespace kvplug;
using namespace kvplug::api;

namespace kvplug::api {

void give(kvplug_buf** out, std::string bytes) { *out = new kvplug_buf{std::move(bytes)}; }
void give(kvplug_buf** out, const nlohmann::json& json) {
  give(out, json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

}  // namespace kvplug::api

extern "C" {

const char* kvplug_version(void) { return HostServices::version(); }
uint32_t kvplug_abi_version(void) { return static_cast<uint32_t>(KVP_ABI_MAJOR) << 16 | KVP_ABI_MINOR; }
const char* kvplug_status_word(kvplug_status status) {
  return status == KVP_OK ? "ok" : code_word(static_cast<Code>(status));
}

const void* kvplug_buf_data(const kvplug_buf* buf) { return buf ? buf->bytes.c_str() : nullptr; }
size_t kvplug_buf_size(const kvplug_buf* buf) { return buf ? buf->bytes.size() : 0; }
void kvplug_buf_release(kvplug_buf* buf) { delete buf; }

kvplug_status kvplug_host_create(const kvplug_host_params* params, kvplug_host** out, kvp_error* err) {
  return border(err, [&] {
    need(out, "out");
    HostOptions options;
    if (params) {
      if (KVP_HAS_FIELD(params, log_level)) {
        options.log = params->log;
        options.log_user = params->log_user;
        options.log_level = params->log_level;
      }
      if (KVP_HAS_FIELD(params, mem_user)) options.allocator = {params->mem_alloc, params->mem_free, params->mem_user};
      if (KVP_HAS_FIELD(params, parallel)) options.parallel = params->parallel;
    }
    if ((options.allocator.alloc == nullptr) != (options.allocator.free == nullptr)) {
      throw Error(Code::kInvalidArgument, "mem_alloc and mem_free are given together or not at all");
    }
    auto host = std::make_unique<kvplug_host>();
    host->state = std::make_shared<HostState>(options);
    host->state->own_parallel = options.parallel == nullptr;
    if (const auto folder = library_folder(); !folder.empty()) {
      for (const auto& plugins : {folder.parent_path() / "plugins", folder / "kvplug" / "plugins"}) {
        if (std::filesystem::is_directory(plugins)) host->state->registry.add_search_path(plugins);
      }
    }
    *out = host.release();
  });
}

kvplug_host* kvplug_host_retain(kvplug_host* host) { return retain(host); }
void kvplug_host_release(kvplug_host* host) { release(host); }

kvplug_status kvplug_host_add_plugin_path(kvplug_host* host, const char* dir, size_t len, kvp_error* err) {
  return border(err, [&] {
    need(host, "host").state->registry.add_search_path(std::filesystem::absolute(text_of(dir, len)).lexically_normal());
  });
}

kvplug_status kvplug_host_load_plugin(kvplug_host* host, const char* path, size_t len, kvp_error* err) {
  return border(err, [&] { need(host, "host").state->registry.load(std::filesystem::absolute(text_of(path, len))); });
}

kvplug_status kvplug_host_describe(kvplug_host* host, uint32_t flags, kvplug_buf** json, kvp_error* err) {
  return border(err, [&] {
    need(json, "json");
    const Registry& registry = need(host, "host").state->registry;
    nlohmann::json out = registry.describe();
    out["schema_version"] = 1;
    out["kvplug"] = HostServices::version();
    out["abi"] = std::to_string(KVP_ABI_MAJOR) + "." + std::to_string(KVP_ABI_MINOR);
    out["kinds"] = registry.cache_kinds();
    out["quantizers"] = registry.quantizers();
    out["searched"] = registry.places();
    out["machine"] = report::describe_machine();
    if (flags & KVPLUG_DESCRIBE_MODEL) out["libraries"] = model_library().describe();
    give(json, out);
  });
}

}  // extern "C"
