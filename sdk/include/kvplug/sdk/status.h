// SPDX-License-Identifier: Apache-2.0
// Errors inside a plugin and at its border. Inside, a failure is a thrown Fault (a status and a text that names the
// thing, the value and what was expected); at the border guard() turns every exception into a status and an error text,
// so that nothing ever unwinds across the C interface. An exception that is no Fault is INTERNAL: the instance is lost.
#pragma once

#include <kvplug/abi.h>

#include <cstring>
#include <exception>
#include <new>
#include <sstream>
#include <string>
#include <utility>

namespace kvplug::sdk {

class Fault : public std::exception {
 public:
  Fault(kvp_status status, std::string text) : status_(status), text_(std::move(text)) {}
  kvp_status status() const noexcept { return status_; }
  const std::string& text() const noexcept { return text_; }
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  kvp_status status_;
  std::string text_;
};

// fail(KVP_INVALID_ARGUMENT, "layer ", 7, " of ", 4): throws a Fault with the parts written one after the other.
template <class... Parts>
[[noreturn]] void fail(kvp_status status, const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  throw Fault(status, out.str());
}

// Fills the caller's error. The text is cut at a character where the buffer is short; `len` is that of the whole text.
// Thread-safe, never throws, never allocates.
inline void write_error(kvp_error* err, kvp_status status, const char* text, size_t len) noexcept {
  if (err == nullptr) return;
  if (KVP_HAS_FIELD(err, code)) err->code = status;
  if (KVP_HAS_FIELD(err, native_code)) err->native_code = 0;
  if (KVP_HAS_FIELD(err, cap) && err->buf != nullptr && err->cap > 0) {
    size_t n = len < err->cap ? len : err->cap - 1;
    if (n < len) {
      while (n > 0 && (static_cast<unsigned char>(text[n]) & 0xC0u) == 0x80u) --n;
    }
    std::memcpy(err->buf, text, n);
    err->buf[n] = '\0';
  }
  if (KVP_HAS_FIELD(err, len)) err->len = len;
}

// Runs body() and says how it ended. std::bad_alloc is OUT_OF_MEMORY: bodies take memory before they change anything.
template <class Body>
kvp_status guard(kvp_error* err, Body&& body) noexcept {
  const auto failed = [err](kvp_status status, const char* text) {
    write_error(err, status, text, std::strlen(text));
    return status;
  };
  try {
    body();
    return KVP_OK;
  } catch (const Fault& fault) {
    write_error(err, fault.status(), fault.text().data(), fault.text().size());
    return fault.status();
  } catch (const std::bad_alloc&) {
    return failed(KVP_OUT_OF_MEMORY, "out of memory");
  } catch (const std::exception& exception) {
    return failed(KVP_INTERNAL, exception.what());
  } catch (...) {
    return failed(KVP_INTERNAL, "an unknown exception was thrown");
  }
}

}  // namespace kvplug::sdk
