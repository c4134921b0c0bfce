// SPDX-License-Identifier: Apache-2.0
// The header of a safetensors file: 8 bytes little-endian length, JSON, then raw data. Everything the header claims is
// compared with the file before anything is believed: offsets in range, ordered, without gap or overlap, byte counts
// equal to shape times element size, the data reaching exactly to the end of the file. A gap is refused with its
// position, as the reference library does; an overlap always.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "model/describe/description.h"

namespace kvplug::model {

// Tensors of one file in the order of their data; TensorInfo::file is set to `file_index`, offset counts from the start
// of the file. dtype {0,0,0} marks an element type that no layer here can use (it may still be present and unused).
// Throws kNotFound, kIo, kCorrupt with the tensor's name.
std::vector<TensorInfo> read_safetensors_header(const std::filesystem::path& file, uint32_t file_index);

// "F32", "BF16", "F16" for messages; "another type" for the rest.
std::string dtype_name(kvp_dtype dtype);

}  // namespace kvplug::model
