// SPDX-License-Identifier: Apache-2.0
// The words that cache_implementation may hold, as data: built-in kinds, retired words of published files with what
// they map to, words refused with a reason. Whether a built-in kind exists in this build is the registry's affair: a
// word listed here without a plugin is answered "is not part of this release".
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvplug {

struct RetiredKind {
  std::string_view word, now;
};

// Every plain word a cache or quantizer plugin may be called by; all other names are `vendor/name`.
std::span<const std::string_view> builtin_cache_kinds();
// True for the kinds that max_cache_len is for: the static ones, and any vendor's.
bool has_capacity(std::string_view kind);
// The built-in kinds that must have one.
bool is_static(std::string_view kind);
std::span<const std::string_view> builtin_quantizers();
std::span<const RetiredKind> retired_kinds();

// True for a plain built-in word, and for `vendor/name` with lower-case letters, digits, `_`, `-`, `.` on both sides.
bool valid_kind_name(std::string_view name, std::span<const std::string_view> builtin);

struct KindChoice {
  std::string kind;    // what to look up in the registry
  std::string notice;  // "" or why the word was mapped
};

// `word` as written by the user. `registered`: kinds that plugins provide. `places`: every path that was searched.
// Throws kConfig naming the word, the known kinds and the places when it cannot be served.
KindChoice choose_kind(std::string_view word, const std::vector<std::string>& registered,
                       const std::vector<std::string>& places);

}  // namespace kvplug
