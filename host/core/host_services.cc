// SPDX-License-Identifier: Apache-2.0
#include "core/host_services.h"

#include <kvplug/version.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "core/error_buffer.h"
#include "core/parallel.h"

namespace kvplug {
namespace {

// The log sinks of the living hosts. A call under way holds a reference; a host that ends waits for it.
class Sinks {
 public:
  static Sinks& get() {
    static Sinks& sinks = *new Sinks;
    return sinks;
  }

  void add(std::shared_ptr<LogSink> sink) {
    const std::lock_guard lock(mutex_);
    sinks_.push_back(std::move(sink));
  }

  void remove(const std::shared_ptr<LogSink>& sink) {
    {
      const std::lock_guard lock(mutex_);
      std::erase(sinks_, sink);
    }
    while (sink.use_count() > 1) std::this_thread::yield();
  }

  void write(int32_t level, const char* area, std::string_view text) {
    std::vector<std::shared_ptr<LogSink>> sinks;
    {
      const std::lock_guard lock(mutex_);
      std::copy_if(sinks_.begin(), sinks_.end(), std::back_inserter(sinks),
                   [&](const auto& sink) { return sink->wants(level); });
    }
    for (const auto& sink : sinks) sink->write(level, area, text);
  }

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<LogSink>> sinks_;
};

// The four functions that plugins call. Nothing may leave them as an exception.
void plugin_log(void*, int32_t level, const char* area, const char* text, size_t len) {
  try {
    const std::string line = valid_utf8({text == nullptr ? "" : text, text == nullptr ? 0 : len});
    Sinks::get().write(std::clamp(level, KVP_LOG_ERROR, KVP_LOG_DEBUG), area == nullptr ? "plugin" : area, line);
  } catch (const std::exception&) {  // A line lost for want of memory.
  }
}

int32_t plugin_alloc(void*, const kvp_mem* mem, void** out, kvp_error* err) {
  return Accounts::get().alloc(mem, out, err);
}

void plugin_free(void*, const kvp_mem* mem, void* ptr) {
  const std::string complaint = Accounts::get().free(mem, ptr);
  if (!complaint.empty()) plugin_log(nullptr, KVP_LOG_ERROR, "memory", complaint.data(), complaint.size());
}

const void* plugin_extension(void*, const char* id) {
  return id != nullptr && std::strcmp(id, KVP_EXT_HOST_PARALLEL) == 0 ? host_parallel_table() : nullptr;
}

constexpr kvp_host kTable = {sizeof(kvp_host), KVP_ABI_MAJOR, KVP_ABI_MINOR, nullptr,     "kvplug",
                             KVPLUG_VERSION,   plugin_log,    plugin_alloc,  plugin_free, plugin_extension};

}  // namespace

HostServices::HostServices(const HostOptions& options)
    : domain_(std::make_shared<MemoryDomain>(options.allocator)),
      sink_(std::make_shared<LogSink>(options.log, options.log_user, options.log_level)) {
  Sinks::get().add(sink_);
  if (options.parallel != nullptr) set_parallel(options.parallel);
}

HostServices::~HostServices() {
  if (parallel_ != nullptr && current_host_parallel() == parallel_) set_host_parallel(nullptr);
  Sinks::get().remove(sink_);
}

const kvp_host* HostServices::table() { return &kTable; }
const char* HostServices::version() { return KVPLUG_VERSION; }

void HostServices::log(int32_t level, const char* area, std::string_view text) const {
  sink_->write(level, area, text);
}

void HostServices::set_parallel(const kvp_host_parallel* parallel) {
  parallel_ = parallel;
  set_host_parallel(parallel);
}

}  // namespace kvplug
