// SPDX-License-Identifier: Apache-2.0
// Exceptions of LibTorch, oneDNN and the standard library become kvplug::Error here, at the virtual methods that other
// rooms call.
#pragma once

#include <utility>

namespace kvplug::model {

// Only inside a catch block: rethrows the current exception as kvplug::Error.
[[noreturn]] void rethrow_translated();

template <class F>
decltype(auto) translated(F&& body) {
  try {
    return std::forward<F>(body)();
  } catch (...) {
    rethrow_translated();
  }
}

}  // namespace kvplug::model
