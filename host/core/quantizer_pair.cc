// SPDX-License-Identifier: Apache-2.0
#include "core/quantizer_pair.h"

#include "core/cache_stack.h"
#include "core/host_services.h"
#include "core/plugin_call.h"

namespace kvplug {
namespace {

kvp_qcreate create_args(int32_t role, int32_t head_dim, const ResolvedOptions& options, const StackParams& params) {
  kvp_qcreate create{};
  create.struct_size = sizeof create;
  create.role = role;
  create.head_dim = head_dim;
  create.options = options.data();
  create.n_options = options.size();
  create.dtype = params.dtype;
  create.device_type = params.device_type;
  create.device_id = params.device_id;
  return create;
}

}  // namespace

QuantizerPair::One::One(HostServices& services, const QuantizerPlugin& its, const kvp_qcreate& create)
    : host(services), plugin(its) {
  plugin.library->check_usable();
  kvp_quantizer* self = nullptr;
  const char* call =
      create.role == KVP_ROLE_KEY ? "create of the quantizer for keys" : "create of the quantizer for values";
  call_plugin(*plugin.library, call, plugin.iface.create, &create, &self);
  if (self == nullptr) plugin.library->fail(call, KVP_INTERNAL, "answered OK without an instance");
  handle = {sizeof handle, &plugin.iface, self, plugin.descriptor.id.c_str()};
}

QuantizerPair::One::~One() {
  try {
    plugin.iface.destroy(handle.self);
  } catch (...) {  // Breaks the contract; there is nobody left to tell but the log.
    host.log(KVP_LOG_ERROR, "plugins", "plugin \"" + plugin.library->id() + "\": destroy threw an exception");
  }
}

QuantizerPair::QuantizerPair(HostServices& host, const QuantizerPlugin& plugin, const ResolvedOptions& key,
                             const ResolvedOptions& value, int32_t key_dim, int32_t value_dim,
                             const StackParams& params)
    : plugin_(plugin),
      key_(host, plugin, create_args(KVP_ROLE_KEY, key_dim, key, params)),
      value_(host, plugin, create_args(KVP_ROLE_VALUE, value_dim, value, params)) {}

std::string QuantizerPair::why_unpacked(const kvp_qattend_desc& desc) const {
  const std::string name = "\"" + id() + "\"";
  if (!plugin_.attend) return name + " has no " KVP_EXT_QUANT_ATTEND;
  ErrorText text;
  uint64_t workspace = 0;
  const kvp_status status = try_plugin(text, plugin_.attend->probe, key_.handle.self, value(), &desc, &workspace);
  if (status == KVP_OK) return "";
  if (status != KVP_UNSUPPORTED) plugin_.library->fail("quant-attend.probe", status, text.text());
  return name + ": " + text.text();
}

}  // namespace kvplug
