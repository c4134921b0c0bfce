// SPDX-License-Identifier: Apache-2.0
// One instance of a cache plugin inside a stack: made, called and destroyed through here, under an owner token of its
// own. Calls throw kvplug::Error that names the plugin; a call that succeeds allocates nothing.
#pragma once

#include <memory>
#include <vector>

#include "core/host_services.h"
#include "core/negotiate.h"
#include "core/plugin_call.h"

namespace kvplug {

class CacheInstance {
 public:
  CacheInstance(HostServices& host, const Group& group, const StackParams& params);
  ~CacheInstance();
  CacheInstance(const CacheInstance&) = delete;
  CacheInstance& operator=(const CacheInstance&) = delete;

  std::unique_ptr<CacheInstance> clone(const kvp_call& call) const;

  const CachePlugin& plugin() const { return plugin_; }
  const kvp_cache_iface& iface() const { return plugin_.iface; }
  kvp_cache* self() const { return self_; }
  const std::vector<Part>& parts() const { return parts_; }  // slots are not kept

  // slot: a member of iface() or of an extension; `name` for messages.
  template <class Fn, class... Args>
  void call(const char* name, Fn slot, Args... args) const {
    call_plugin(*plugin_.library, name, slot, self_, args...);
  }

  void lengths(int32_t index, int64_t query_len, kvp_lengths& out) const {
    call("lengths", iface().lengths, index, query_len, &out);
  }
  kvp_memory memory(int32_t index) const;
  // Calls add(name, value) for each counter.
  template <class Add>
  void counters(Add add) const;

 private:
  CacheInstance(HostServices& host, const CachePlugin& plugin, std::vector<Part> parts,
                std::shared_ptr<const QuantizerPair> quantizers);

  HostServices& host_;
  const CachePlugin& plugin_;
  std::vector<Part> parts_;
  const std::shared_ptr<const QuantizerPair> quantizers_;  // outlives self_
  uint64_t owner_;
  kvp_cache* self_ = nullptr;
};

template <class Add>
void CacheInstance::counters(Add add) const {
  // The count may grow between the two questions; what was written is what is read.
  size_t n = 0;
  iface().counters(self_, nullptr, &n);
  std::vector<kvp_counter> found(std::min<size_t>(n, 4096));
  size_t written = found.size();
  if (written == 0 || iface().counters(self_, found.data(), &written) != KVP_OK) return;
  found.resize(std::min(written, found.size()));
  for (const kvp_counter& counter : found) {
    if (counter.name != nullptr) add(valid_utf8(counter.name), counter.value);
  }
}

// Element by element; struct_size stays.
void add_memory(kvp_memory& sum, const kvp_memory& part);

}  // namespace kvplug
