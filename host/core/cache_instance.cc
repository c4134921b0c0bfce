// SPDX-License-Identifier: Apache-2.0
#include "core/cache_instance.h"

namespace kvplug {

CacheInstance::CacheInstance(HostServices& host, const CachePlugin& plugin, std::vector<Part> parts,
                             std::shared_ptr<const QuantizerPair> quantizers)
    : host_(host),
      plugin_(plugin),
      parts_(std::move(parts)),
      quantizers_(std::move(quantizers)),
      owner_(host.open_owner("cache \"" + plugin.descriptor.id + "\"")) {
  for (Part& part : parts_) {
    part.spec.slots = nullptr;
    part.spec.n_slots = 0;
  }
}

CacheInstance::CacheInstance(HostServices& host, const Group& group, const StackParams& params)
    : CacheInstance(host, *group.plugin, group.parts, group.quantizers) {
  // From here on the destructor runs if anything is thrown.
  plugin_.library->check_usable();
  const std::vector<kvp_layer> layers = group.layers();
  kvp_cache_create create = create_args(group, layers, params);
  create.owner = owner_;
  call_plugin(*plugin_.library, "create", iface().create, &create, &self_);
  if (self_ == nullptr) plugin_.library->fail("create", KVP_INTERNAL, "answered OK without an instance");
}

CacheInstance::~CacheInstance() {
  if (self_ != nullptr) {
    try {
      iface().destroy(self_);
    } catch (...) {  // Breaks the contract; there is nobody left to tell but the log.
      host_.log(KVP_LOG_ERROR, "plugins", "plugin \"" + plugin_.library->id() + "\": destroy threw an exception");
    }
  }
  host_.close_owner(owner_);
}

std::unique_ptr<CacheInstance> CacheInstance::clone(const kvp_call& call_args) const {
  plugin_.library->check_usable();
  std::unique_ptr<CacheInstance> copy(new CacheInstance(host_, plugin_, parts_, quantizers_));
  call("clone", iface().clone, &call_args, copy->owner_, &copy->self_);
  if (copy->self_ == nullptr) plugin_.library->fail("clone", KVP_INTERNAL, "answered OK without an instance");
  return copy;
}

kvp_memory CacheInstance::memory(int32_t index) const {
  kvp_memory memory{};
  memory.struct_size = sizeof memory;
  call("memory", iface().memory, index, &memory);
  return memory;
}

void add_memory(kvp_memory& sum, const kvp_memory& part) {
  for (int tier = 0; tier < KVP_N_TIERS; ++tier) {
    for (int purpose = 0; purpose < KVP_N_PURPOSES; ++purpose) {
      sum.used[tier][purpose] += part.used[tier][purpose];
      sum.reserved[tier][purpose] += part.reserved[tier][purpose];
    }
    sum.peak[tier] += part.peak[tier];
  }
  sum.unquantized += part.unquantized;
}

}  // namespace kvplug
