// SPDX-License-Identifier: Apache-2.0
// Keys that are known but not in the schema: features planned for later (named as such instead of "unknown key"), and
// keys that Hugging Face writes without an effect here (accepted and listed by explain).
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace kvplug::config {

struct UnbuiltKey {
  std::string_view path;  // a key, or a section with everything below it
  std::string_view
      neutral;  // JSON text of the value that means "not used"; "" = none, "*" = any: alone it changes no token
  std::string_view hint;  // what to do instead, may be empty
};

// The entry that covers `schema_path`, or null.
const UnbuiltKey* find_unbuilt(std::string_view schema_path);
std::span<const UnbuiltKey> unbuilt_keys();

// HF's bookkeeping words below [generation].
std::span<const std::string_view> keys_without_effect();

}  // namespace kvplug::config
