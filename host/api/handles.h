// SPDX-License-Identifier: Apache-2.0
// The handles of kvplug.h and the border that every call passes: exceptions become a status and a text, a second
// thread in a one-thread handle becomes KVPLUG_E_BUSY. Children hold shared pointers to what their parents hold, so
// any order of release is fine.
#pragma once

#include <kvplug/kvplug.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "config/config.h"
#include "core/cache_stack.h"
#include "core/error.h"
#include "core/error_buffer.h"
#include "core/host_services.h"
#include "core/registry.h"
#include "generate/generation.h"
#include "generate/session.h"
#include "model/executor.h"
#include "text/chat_template.h"

namespace kvplug::api {

struct HostState {
  explicit HostState(const HostOptions& options) : services(options), registry(services) {}
  HostServices services;
  Registry registry;
  bool own_parallel = true;  // false: the application gave a thread pool, which then serves the run level too
};

struct ModelState {
  std::shared_ptr<HostState> host;
  std::shared_ptr<model::Executor> executor;
  std::shared_ptr<const text::Tokenizer> tokenizer;  // NULL where the folder has none
  std::shared_ptr<const text::ChatTemplate> chat;    // NULL likewise
  config::Config config;                             // as loaded, with the checkpoint's defaults
  std::vector<kvp_layer> layers;

  generate::SessionContext context() const { return {executor, tokenizer, &host->services, &host->registry}; }
};

struct CacheState {
  std::shared_ptr<HostState> host;
  std::shared_ptr<CacheStack> stack;
  std::atomic<bool> busy{false};
  std::atomic<bool> lent{false};  // to a session
};

struct SessionState {
  std::shared_ptr<ModelState> model;
  std::shared_ptr<CacheState> cache;  // handed in, else NULL
  config::Config config;              // the session's own, checkpoint included
  std::unique_ptr<generate::Session> session;
  std::atomic<bool> busy{false};
  std::atomic<bool> generating{false};  // a generation is open: nothing else may change the session
  ~SessionState() {
    session.reset();
    if (cache) cache->lent = false;
  }
};

struct Counted {
  std::atomic<uint32_t> references{1};
};

template <class Handle>
Handle* retain(Handle* handle) {
  if (handle) handle->references.fetch_add(1, std::memory_order_relaxed);
  return handle;
}

template <class Handle>
void release(Handle* handle) {
  if (handle && handle->references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete handle;
}

// Runs f, which throws on failure, at the border of a C call.
template <class F>
kvplug_status border(kvp_error* err, F&& f) noexcept {
  try {
    f();
    return KVP_OK;
  } catch (const PluginFault& e) {
    return write_error(err, KVPLUG_E_PLUGIN, e.what());
  } catch (const Error& e) {
    return write_error(err, static_cast<int32_t>(e.code()), e.what());
  } catch (const std::bad_alloc&) {
    return write_error(err, KVP_OUT_OF_MEMORY, "out of memory");
  } catch (const std::exception& e) {
    return write_error(err, KVP_INTERNAL, e.what());
  } catch (...) {
    return write_error(err, KVP_INTERNAL, "unknown exception");
  }
}

// Holds a one-thread handle for one call.
class Turn {
 public:
  explicit Turn(std::atomic<bool>& busy) : busy_(busy) {
    if (busy_.exchange(true, std::memory_order_acquire)) {
      throw Error(Code::kBusy, "the handle is in use on another thread");
    }
  }
  ~Turn() { busy_.store(false, std::memory_order_release); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  std::atomic<bool>& busy_;
};

template <class T>
const T& need(const T* argument, const char* name) {
  if (!argument) throw Error(Code::kInvalidArgument, std::string(name) + " is NULL");
  return *argument;
}
template <class T>
T& need(T* argument, const char* name) {
  if (!argument) throw Error(Code::kInvalidArgument, std::string(name) + " is NULL");
  return *argument;
}

inline std::string_view text_of(const char* text, size_t len) {
  if (!text && len != 0) throw Error(Code::kInvalidArgument, "a text is NULL");
  if (!text) return {};
  return len == KVPLUG_NTS ? std::string_view(text) : std::string_view(text, len);
}

void give(kvplug_buf** out, std::string bytes);
void give(kvplug_buf** out, const nlohmann::json& json);

}  // namespace kvplug::api

struct kvplug_buf {
  std::string bytes;
};
struct kvplug_host : kvplug::api::Counted {
  std::shared_ptr<kvplug::api::HostState> state;
};
struct kvplug_config {
  std::shared_ptr<kvplug::api::HostState> host;
  kvplug::config::Config config;
};
struct kvplug_cache : kvplug::api::Counted {
  std::shared_ptr<kvplug::api::CacheState> state;
};
struct kvplug_model : kvplug::api::Counted {
  std::shared_ptr<kvplug::api::ModelState> state;
};
struct kvplug_session {
  std::shared_ptr<kvplug::api::SessionState> state;
};
struct kvplug_generation {
  ~kvplug_generation() {
    generation.reset();
    close();
  }
  // The session may be changed again: at the end of the decode, or with this handle.
  void close() {
    if (std::exchange(open, false)) session->generating = false;
  }
  bool open = false;
  std::shared_ptr<kvplug::api::SessionState> session;
  std::unique_ptr<kvplug::generate::Generation> generation;
  kvplug::generate::Event event;  // the current one; its text is lent to the caller
  std::atomic<bool> busy{false};
};
