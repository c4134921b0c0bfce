// SPDX-License-Identifier: Apache-2.0
// What tokenizer_config.json (and, in older folders, special_tokens_map.json) says beyond tokenizer.json: the names of
// the special tokens, tokens to add, and whether BOS and EOS are put around a text. Both files may be missing.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace kvplug::text {

struct TokenizerSettings {
  // "bos_token" -> "<s>"; only names the folder defines, of: bos, eos, unk, sep, pad, cls, mask (each with "_token").
  std::map<std::string, std::string> special_tokens;
  // The settings object of kvtext_tokenizer_load.
  nlohmann::json shim_settings;
};

// Throws Error (kModel, kIo) with the path and key for files that are there but malformed.
TokenizerSettings read_tokenizer_settings(const std::filesystem::path& folder);

}  // namespace kvplug::text
