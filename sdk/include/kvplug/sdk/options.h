// SPDX-License-Identifier: Apache-2.0
// Options as a plugin reads them. The host has checked them against the schema already; a plugin still refuses keys it
// does not know and values of another type, because not every caller is that host.
#pragma once

#include <kvplug/sdk/status.h>

#include <initializer_list>
#include <string_view>

namespace kvplug::sdk {

class Options {
 public:
  // Throws INVALID_ARGUMENT for a key that is not among `known`. The array is borrowed.
  Options(const kvp_option* options, size_t n, std::initializer_list<std::string_view> known)
      : options_(options), n_(n) {
    for (size_t i = 0; i < n; ++i) {
      bool found = false;
      for (std::string_view key : known) found = found || key == options[i].key;
      if (!found) fail(KVP_INVALID_ARGUMENT, "unknown option '", options[i].key, "'");
    }
  }

  bool boolean(std::string_view key, bool fallback) const {
    const kvp_option* option = find(key, KVP_OPTION_BOOLEAN, "boolean");
    return option == nullptr ? fallback : option->integer != 0;
  }

  int64_t integer(std::string_view key, int64_t fallback, int64_t low, int64_t high) const {
    const kvp_option* option = find(key, KVP_OPTION_INTEGER, "integer");
    if (option == nullptr) return fallback;
    if (option->integer < low || option->integer > high) {
      fail(KVP_INVALID_ARGUMENT, "option '", key, "' is ", option->integer, "; expected ", low, " to ", high);
    }
    return option->integer;
  }

  double number(std::string_view key, double fallback) const {
    const kvp_option* option = find(key, KVP_OPTION_NUMBER, "number");
    return option == nullptr ? fallback : option->number;
  }

  std::string_view text(std::string_view key, std::string_view fallback) const {
    const kvp_option* option = find(key, KVP_OPTION_TEXT, "text");
    return option == nullptr ? fallback : std::string_view(option->text);
  }

 private:
  const kvp_option* find(std::string_view key, int32_t type, const char* word) const {
    for (size_t i = 0; i < n_; ++i) {
      if (key != options_[i].key) continue;
      if (options_[i].type != type) fail(KVP_INVALID_ARGUMENT, "option '", key, "' must be of type ", word);
      return &options_[i];
    }
    return nullptr;
  }

  const kvp_option* options_;
  size_t n_;
};

}  // namespace kvplug::sdk
