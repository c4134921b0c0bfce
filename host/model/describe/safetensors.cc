// SPDX-License-Identifier: Apache-2.0
#include "model/describe/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <fstream>
#include <string_view>

#include "core/error.h"
#include "model/describe/json_file.h"

namespace kvplug::model {
namespace {

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference library

struct ElementType {
  std::string_view name;
  uint32_t bytes;
  kvp_dtype dtype;
};

constexpr std::array<ElementType, 16> kTypes{{
    {"F32", 4, {KVP_DTYPE_FLOAT, 32, 1}},
    {"BF16", 2, {KVP_DTYPE_BFLOAT, 16, 1}},
    {"F16", 2, {KVP_DTYPE_FLOAT, 16, 1}},
    {"F64", 8, {}},
    {"I64", 8, {}},
    {"U64", 8, {}},
    {"I32", 4, {}},
    {"U32", 4, {}},
    {"I16", 2, {}},
    {"U16", 2, {}},
    {"I8", 1, {}},
    {"U8", 1, {}},
    {"BOOL", 1, {}},
    {"F8_E4M3", 1, {}},
    {"F8_E5M2", 1, {}},
    {"F8_E8M0", 1, {}},
}};

[[noreturn]] void corrupt(const std::filesystem::path& file, const std::string& message, const std::string& hint = {}) {
  throw Error(Code::kCorrupt, message, hint, file.string());
}

// A non-negative integer of the header; nlohmann keeps those as unsigned.
uint64_t natural(const nlohmann::json& value, const std::filesystem::path& file, const std::string& what) {
  if (!value.is_number_unsigned())
    corrupt(file, what + ": expected a whole number of 0 or more, found " + value.dump());
  return value.get<uint64_t>();
}

TensorInfo read_entry(const std::string& name, const nlohmann::json& entry, const std::filesystem::path& file,
                      uint32_t file_index, uint64_t data_start, uint64_t data_bytes) {
  const std::string tensor = "tensor \"" + name + "\"";
  if (!entry.is_object() || !entry.contains("dtype") || !entry.contains("shape") || !entry.contains("data_offsets")) {
    corrupt(file, tensor + ": expected an object with dtype, shape and data_offsets");
  }
  const auto& dtype = entry["dtype"];
  const auto& shape = entry["shape"];
  const auto& offsets = entry["data_offsets"];
  const auto* type = std::find_if(kTypes.begin(), kTypes.end(),
                                  [&](const ElementType& t) { return dtype.is_string() && dtype == t.name; });
  if (type == kTypes.end()) corrupt(file, tensor + ": unknown dtype " + dtype.dump());
  if (!shape.is_array() || shape.size() > 8) corrupt(file, tensor + ": shape must be a list of at most 8 sizes");
  if (!offsets.is_array() || offsets.size() != 2) corrupt(file, tensor + ": data_offsets must be [begin, end]");

  TensorInfo info;
  info.name = name;
  info.dtype = type->dtype;
  info.file = file_index;
  uint64_t expected = type->bytes;
  for (const auto& dim : shape) {
    const uint64_t size = natural(dim, file, tensor + ": shape");
    if (size > INT64_MAX || __builtin_mul_overflow(expected, size, &expected)) {
      corrupt(file, tensor + ": the sizes of shape " + shape.dump() + " overflow");
    }
    info.shape.push_back(static_cast<int64_t>(size));
  }
  const uint64_t begin = natural(offsets[0], file, tensor + ": data_offsets");
  const uint64_t end = natural(offsets[1], file, tensor + ": data_offsets");
  if (begin > end) corrupt(file, tensor + ": data_offsets " + offsets.dump() + " end before they begin");
  if (end > data_bytes) {
    corrupt(file,
            tensor + ": data_offsets " + offsets.dump() + " reach past the " + std::to_string(data_bytes) +
                " bytes of data in the file",
            "the file is truncated: download it again");
  }
  if (end - begin != expected) {
    corrupt(file, tensor + ": shape " + shape.dump() + " of " + std::string(type->name) + " needs " +
                      std::to_string(expected) + " bytes, data_offsets " + offsets.dump() + " give " +
                      std::to_string(end - begin));
  }
  info.offset = data_start + begin;
  info.bytes = end - begin;
  return info;
}

}  // namespace

std::vector<TensorInfo> read_safetensors_header(const std::filesystem::path& file, uint32_t file_index) {
  static_assert(std::endian::native == std::endian::little);
  std::error_code ec;
  const uint64_t file_bytes = std::filesystem::file_size(file, ec);
  if (ec) throw Error(Code::kNotFound, "cannot be read: " + ec.message(), "", file.string());
  std::ifstream in(file, std::ios::binary);
  uint64_t header_bytes = 0;
  if (file_bytes < 8 || !in.read(reinterpret_cast<char*>(&header_bytes), 8)) {
    corrupt(file, "has " + std::to_string(file_bytes) + " bytes, too few for a safetensors file", "download it again");
  }
  if (header_bytes > kMaxHeaderBytes || header_bytes > file_bytes - 8) {
    corrupt(file,
            "its header claims " + std::to_string(header_bytes) + " bytes, the file has " + std::to_string(file_bytes),
            "not a safetensors file, or truncated: download it again");
  }
  std::string text(header_bytes, '\0');
  if (!in.read(text.data(), static_cast<std::streamsize>(header_bytes))) {
    throw Error(Code::kIo, "could not be read to the end of its header", "", file.string());
  }
  if (!text.empty() && text.back() == '\0') {
    corrupt(file, "its header is padded with NUL bytes; the format asks for spaces",
            "write the file again with a newer safetensors");
  }
  const nlohmann::json header = parse_json(text, file);
  if (!header.is_object()) corrupt(file, "its header is not a JSON object");

  const uint64_t data_start = 8 + header_bytes, data_bytes = file_bytes - data_start;
  std::vector<TensorInfo> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    tensors.push_back(read_entry(name, entry, file, file_index, data_start, data_bytes));
  }
  std::sort(tensors.begin(), tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return a.offset != b.offset ? a.offset < b.offset : a.bytes < b.bytes;
  });
  uint64_t at = data_start;
  for (const TensorInfo& t : tensors) {
    if (t.offset != at) {
      corrupt(file,
              "tensor \"" + t.name + "\" begins at byte " + std::to_string(t.offset) +
                  (t.offset < at ? " inside the one before it, which ends at " : ", after a gap that begins at ") +
                  std::to_string(at));
    }
    at += t.bytes;
  }
  if (at != file_bytes) {
    corrupt(file, std::to_string(file_bytes - at) + " bytes at its end, from byte " + std::to_string(at) +
                      " on, belong to no tensor");
  }
  return tensors;
}

std::string dtype_name(kvp_dtype dtype) {
  for (const ElementType& t : kTypes) {
    if (t.dtype.bits != 0 && t.dtype.code == dtype.code && t.dtype.bits == dtype.bits) return std::string(t.name);
  }
  return "another type";
}

}  // namespace kvplug::model
