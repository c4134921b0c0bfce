// SPDX-License-Identifier: Apache-2.0
// The application API as the program uses it: the C++ header, and JSON answers parsed.
#pragma once

#include <kvplug/kvplug.hpp>
#include <nlohmann/json.hpp>

namespace kvplug::cli {

using client::call;
using client::Config;
using client::Failure;
using client::Host;
using client::make;
using client::text_from;

template <class F, class... Args>
nlohmann::json json_from(F&& function, Args&&... args) {
  return nlohmann::json::parse(text_from(std::forward<F>(function), std::forward<Args>(args)...));
}

}  // namespace kvplug::cli
