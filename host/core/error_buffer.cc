// SPDX-License-Identifier: Apache-2.0
#include "core/error_buffer.h"

#include <kvplug/version.h>

#include <algorithm>
#include <cstring>

namespace kvplug {
namespace {

// Length of the well-formed UTF-8 sequence at `text`, 0 if there is none.
std::size_t sequence_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  const unsigned char second = byte(1);
  const bool overlong = (first == 0xe0 && second < 0xa0) || (first == 0xf0 && second < 0x90);
  const bool outside = (first == 0xed && second > 0x9f) || (first == 0xf4 && second > 0x8f);
  return overlong || outside ? 0 : length;
}

}  // namespace

std::string valid_utf8(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t length = sequence_length(text);
    if (length == 0) {
      result += '?';
    } else {
      result += text.substr(0, length);
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return result;
}

std::string ErrorText::text() const { return valid_utf8({text_, strnlen(text_, sizeof text_)}); }

kvp_status write_error(kvp_error* err, kvp_status code, std::string_view text) {
  if (err == nullptr) return code;
  if (KVP_HAS_FIELD(err, code)) err->code = code;
  if (KVP_HAS_FIELD(err, native_code)) err->native_code = 0;
  if (KVP_HAS_FIELD(err, cap) && err->buf != nullptr && err->cap > 0) {
    std::size_t fits = std::min(text.size(), err->cap - 1);
    // Step back over the bytes of a character that would be cut in two.
    while (fits > 0 && fits < text.size() && (static_cast<unsigned char>(text[fits]) & 0xc0) == 0x80) --fits;
    std::memcpy(err->buf, text.data(), fits);
    err->buf[fits] = '\0';
  }
  if (KVP_HAS_FIELD(err, len)) err->len = text.size();
  return code;
}

}  // namespace kvplug
