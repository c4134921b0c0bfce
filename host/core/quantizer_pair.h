// SPDX-License-Identifier: Apache-2.0
// The two quantizers of a cache instance, one for keys and one for values: made by the host before the cache is probed,
// planned or created, and kept until the last cache that was given them has ended, clones included.
//
// A quantizer is made for one head width, so layers of other widths have a pair, and a cache instance, of their own.
// Immutable; may be shared by instances on any threads.
#pragma once

#include <kvplug/abi.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "core/options_schema.h"
#include "core/plugin_library.h"

namespace kvplug {

class HostServices;
struct StackParams;

class QuantizerPair {
 public:
  // Options are resolved for each role. Throws what the plugin answers, with its name; kUnsupported for a type, width
  // or device that it does not serve.
  QuantizerPair(HostServices& host, const QuantizerPlugin& plugin, const ResolvedOptions& key,
                const ResolvedOptions& value, int32_t key_dim, int32_t value_dim, const StackParams& params);

  const kvp_qhandle* key() const { return &key_.handle; }
  const kvp_qhandle* value() const { return &value_.handle; }
  const std::string& id() const { return plugin_.descriptor.id; }

  // Why packed tokens of such layers are unpacked before they are attended to; "" if they are read as they lie.
  std::string why_unpacked(const kvp_qattend_desc& desc) const;

 private:
  // One instance; a second one that fails leaves none behind.
  struct One {
    One(HostServices& services, const QuantizerPlugin& its, const kvp_qcreate& create);
    ~One();
    One(const One&) = delete;
    One& operator=(const One&) = delete;

    HostServices& host;
    const QuantizerPlugin& plugin;
    kvp_qhandle handle{};
  };

  const QuantizerPlugin& plugin_;
  One key_, value_;
};

}  // namespace kvplug
