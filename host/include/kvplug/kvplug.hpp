// SPDX-License-Identifier: Apache-2.0
// The application API with C++ manners, header only and outside the binary promise: handles that release themselves, a
// failure as an exception with status and text. C++17.
//
//   kvplug::client::Host host = kvplug::client::make<kvplug::client::Host>(kvplug_host_create, nullptr);
//   kvplug::client::call(kvplug_host_add_plugin_path, host.get(), "plugins", KVPLUG_NTS);
#pragma once

#include <kvplug/kvplug.h>

#include <exception>
#include <memory>
#include <string>
#include <utility>

namespace kvplug::client {

class Failure : public std::exception {
 public:
  Failure(kvplug_status status, std::string text) : status_(status), text_(std::move(text)) {}
  kvplug_status status() const noexcept { return status_; }
  // "where: message", hints on the following lines.
  const std::string& text() const noexcept { return text_; }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  kvplug_status status_;
  std::string text_;
};

template <auto Release>
struct Releaser {
  template <class T>
  void operator()(T* handle) const noexcept {
    Release(handle);
  }
};
using Host = std::unique_ptr<kvplug_host, Releaser<kvplug_host_release>>;
using Config = std::unique_ptr<kvplug_config, Releaser<kvplug_config_release>>;
using Cache = std::unique_ptr<kvplug_cache, Releaser<kvplug_cache_release>>;
using Model = std::unique_ptr<kvplug_model, Releaser<kvplug_model_release>>;
using Session = std::unique_ptr<kvplug_session, Releaser<kvplug_session_release>>;
using Generation = std::unique_ptr<kvplug_generation, Releaser<kvplug_generation_release>>;
using Buffer = std::unique_ptr<kvplug_buf, Releaser<kvplug_buf_release>>;

// call(function, arguments...): gives the function an error buffer as its last argument and throws Failure.
template <class F, class... Args>
void call(F function, Args&&... args) {
  char text[8192] = "";
  kvp_error err{};
  err.struct_size = sizeof err;
  err.buf = text;
  err.cap = sizeof text;
  const kvplug_status status = function(std::forward<Args>(args)..., &err);
  if (status != KVP_OK) throw Failure(status, text);
}

// make<Host>(kvplug_host_create, arguments...): for functions whose last but one argument is the handle to fill.
template <class Handle, class F, class... Args>
Handle make(F function, Args&&... args) {
  typename Handle::pointer raw = nullptr;
  call(function, std::forward<Args>(args)..., &raw);
  return Handle(raw);
}

// text_from(function, arguments...): likewise for a kvplug_buf, as text.
template <class F, class... Args>
std::string text_from(F function, Args&&... args) {
  const Buffer buf = make<Buffer>(function, std::forward<Args>(args)...);
  return {static_cast<const char*>(kvplug_buf_data(buf.get())), kvplug_buf_size(buf.get())};
}

}  // namespace kvplug::client
