// SPDX-License-Identifier: Apache-2.0
// What one host (kvplug_host) offers the plugins: log, accounted memory, threads.
//
// Plugins keep the kvp_host table from their entry call for ever, and a library is loaded once a process. So there is
// one table a process, in static storage; what it does follows from the owner token (memory) or goes to every living
// host (log). A HostServices may end while plugins stay loaded: its blocks are booked on until they are freed.
// Thread-safe. The destructor waits for log calls that are under way: do not destroy a host inside its log callback.
#pragma once

#include <kvplug/host.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "core/accounts.h"
#include "core/log.h"

namespace kvplug {

struct HostOptions {
  LogFn log = nullptr;  // NULL: silent
  void* log_user = nullptr;
  int32_t log_level = KVP_LOG_WARNING;
  EngineAllocator allocator;                    // outlives the last block taken from it
  const kvp_host_parallel* parallel = nullptr;  // NULL: our own; outlives the host
};

class HostServices {
 public:
  explicit HostServices(const HostOptions& options = {});
  ~HostServices();
  HostServices(const HostServices&) = delete;
  HostServices& operator=(const HostServices&) = delete;

  static const kvp_host* table();  // what plugin entries get
  static const char* version();    // of the product

  void log(int32_t level, const char* area, std::string_view text) const;
  void set_log_level(int32_t level) { sink_->set_level(level); }

  MemoryDomain& memory() { return *domain_; }
  // A token for one cache instance; `name` stands in messages about its memory, as in `cache "dynamic"`.
  uint64_t open_owner(std::string name) { return Accounts::get().open(domain_, std::move(name)); }
  void close_owner(uint64_t owner) { Accounts::get().close(owner); }

  // Threads of plugins from now on, in the whole process (run level: LibTorch's pool). NULL: our own.
  void set_parallel(const kvp_host_parallel* parallel);

 private:
  std::shared_ptr<MemoryDomain> domain_;
  std::shared_ptr<LogSink> sink_;
  const kvp_host_parallel* parallel_ = nullptr;
};

}  // namespace kvplug
