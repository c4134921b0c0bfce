// SPDX-License-Identifier: Apache-2.0
// One value against one key: type, range, allowed words. Gives the value in its normal form (sizes as integers, one id
// as a list of one, paths absolute), or throws Error(kConfig).
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"
#include "config/document.h"
#include "config/schema.h"

namespace kvplug::config {

// `where` as Error wants it; base_dir is what relative paths start from.
nlohmann::json check_value(const Key& key, const Node& node, const std::string& where,
                           const std::filesystem::path& base_dir);

// One option of the cache kind `kind` (a name in `kinds`) against all that its options are; a key that only another
// kind has is called so. Gives the value in its normal form.
nlohmann::json check_cache_option(const std::string& kind, const KindTable& kinds, const KindOptions& options,
                                  const std::string& option, const nlohmann::json& value, const std::string& where);

// "unknown key" with the nearest known one: `word` under a section called `title` whose words are `known`.
[[noreturn]] void throw_unknown_key(const std::string& word, const std::string& title,
                                    const std::vector<std::string>& known, const std::string& where,
                                    const std::string& elsewhere = {});

}  // namespace kvplug::config
