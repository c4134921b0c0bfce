// SPDX-License-Identifier: Apache-2.0
// Tables of plugins made whole for this host: copied up to the shorter of the two sizes, required slots checked, absent
// optional slots answered with UNSUPPORTED. What is wrong is thrown as kPlugin with the library's path.
#pragma once

#include <kvplug/abi.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>

#include "core/error.h"

namespace kvplug {

// A growable struct as this host knows it; what the plugin's lacks reads as zero.
template <class Table>
Table copy_table(const void* given, const std::string& name, const std::filesystem::path& library) {
  size_t size = 0;
  std::memcpy(&size, given, sizeof size);
  // No table is this large: a size beyond is a lie or a missing struct_size, and must not be believed.
  if (size < 2 * sizeof(size_t) || size > 65536 || size % 8 != 0) {
    throw Error(Code::kPlugin, name + ": struct_size is " + std::to_string(size) + ", which cannot be", {},
                library.string());
  }
  Table table{};
  std::memcpy(&table, given, std::min(size, sizeof table));
  table.struct_size = sizeof table;
  return table;
}

std::string required_text(const char* text, const std::string& name, const std::filesystem::path& library);

kvp_cache_iface normalise_cache(const void* given, const std::string& name, const std::filesystem::path& library);
kvp_quantizer_iface normalise_quantizer(const void* given, const std::string& name,
                                        const std::filesystem::path& library);
// nullopt for NULL: the kind lacks the extension.
std::optional<kvp_attend_ext> normalise_attend(const void* given, const std::string& name,
                                               const std::filesystem::path& library);

// nullopt for NULL: the quantizer lacks the extension.
std::optional<kvp_qattend_ext> normalise_quant_attend(const void* given, const std::string& name,
                                                      const std::filesystem::path& library);

// nullopt for NULL; a hint that the table lacks answers UNSUPPORTED.
std::optional<kvp_offload_ext> normalise_offload(const void* given, const std::string& name,
                                                 const std::filesystem::path& library);

// nullopt for NULL: the kind lacks the extension.
std::optional<kvp_capture_ext> normalise_capture(const void* given, const std::string& name,
                                                 const std::filesystem::path& library);

}  // namespace kvplug
