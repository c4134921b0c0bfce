// SPDX-License-Identifier: Apache-2.0
// The one way in which the host calls a plugin: status and text become a kvplug::Error that names the plugin, and an
// exception that escapes (which breaks the contract) is caught, blamed and treated as INTERNAL. A call that succeeds
// costs a few stores: nothing is allocated or formatted.
#pragma once

#include <exception>

#include "core/error_buffer.h"
#include "core/plugin_library.h"

namespace kvplug {

// The status as returned, and its text in `text`; never throws. For probes, whose refusals are answers.
template <class Fn, class... Args>
kvp_status try_plugin(ErrorText& text, Fn fn, Args... args) noexcept {
  try {
    return fn(args..., text.get());
  } catch (const std::exception& error) {
    return write_error(text.get(), KVP_INTERNAL, std::string("an exception left the plugin: ") + error.what());
  } catch (...) {
    return write_error(text.get(), KVP_INTERNAL, "an exception left the plugin");
  }
}

// `call`: the name of the slot, for messages. Throws kvplug::Error unless the plugin answers OK.
template <class Fn, class... Args>
void call_plugin(PluginLibrary& library, const char* call, Fn fn, Args... args) {
  ErrorText text;
  const kvp_status status = try_plugin(text, fn, args...);
  if (status != KVP_OK) [[unlikely]] {
    library.fail(call, status, text.text());
  }
}

}  // namespace kvplug
