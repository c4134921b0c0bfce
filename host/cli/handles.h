// SPDX-License-Identifier: Apache-2.0
// The C API with C++ manners: handles that release themselves, a failure as an exception that carries status and text.
#pragma once

#include <kvplug/kvplug.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace kvplug::cli {

// A call of the library that failed, or a wrong command line (status KVPLUG_E_CONFIG).
struct Failure {
  kvplug_status status;
  std::string text;  // "where: message", hints on the following lines
};

template <auto Release>
struct Releaser {
  template <class T>
  void operator()(T* handle) const {
    Release(handle);
  }
};
using Host = std::unique_ptr<kvplug_host, Releaser<kvplug_host_release>>;
using Config = std::unique_ptr<kvplug_config, Releaser<kvplug_config_release>>;
using Buffer = std::unique_ptr<kvplug_buf, Releaser<kvplug_buf_release>>;

// call(function, arguments...): passes an error buffer last and throws Failure.
template <class F, class... Args>
void call(F&& function, Args&&... args) {
  char text[4096] = "";
  kvp_error err{};
  err.struct_size = sizeof err;
  err.buf = text;
  err.cap = sizeof text;
  const kvplug_status status = function(std::forward<Args>(args)..., &err);
  if (status != KVP_OK) throw Failure{status, text};
}

// text_from(function, arguments...): for calls whose last but one argument is a kvplug_buf to fill.
template <class F, class... Args>
std::string text_from(F&& function, Args&&... args) {
  kvplug_buf* buf = nullptr;
  call(function, std::forward<Args>(args)..., &buf);
  const Buffer owner(buf);
  return {static_cast<const char*>(kvplug_buf_data(buf)), kvplug_buf_size(buf)};
}

template <class F, class... Args>
nlohmann::json json_from(F&& function, Args&&... args) {
  return nlohmann::json::parse(text_from(std::forward<F>(function), std::forward<Args>(args)...));
}

}  // namespace kvplug::cli
