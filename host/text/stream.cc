// SPDX-License-Identifier: Apache-2.0
// How an id reads depends on its neighbours: a first word loses its leading space, bytes join into characters. So a
// window of the last ids is decoded each time and only what is new and certain in its text is given out. Not certain
// are
//  - a trailing U+FFFD: the bytes of a character that later ids may complete;
//  - a run of byte-fallback tokens: one invalid byte anywhere in the run turns all of it into U+FFFD.
#include "text/stream.h"

#include <string_view>

namespace kvplug::text {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD
constexpr size_t kContext = 8;                             // ids kept for context: more than the bytes of a character
constexpr size_t kWindow = 2 * kContext;                   // longer windows are shortened

size_t stable_size(const std::string& text) {
  return text.ends_with(kReplacement) ? text.size() - kReplacement.size() : text.size();
}

}  // namespace

std::string StreamDecoder::push(int32_t id) {
  const TokenTraits traits = tokenizer_->traits(id);
  // decode() drops these ids before it looks at neighbours, so the characters around them still join.
  if (!traits.known || (traits.special && skip_special_)) return {};
  window_.push_back(id);
  if (traits.byte) return {};
  const std::string text = tokenizer_->decode(window_, skip_special_);
  std::string out = release(text, stable_size(text));
  if (window_.size() > kWindow) shorten_window(text);
  return out;
}

std::string StreamDecoder::finish() {
  const std::string text = tokenizer_->decode(window_, skip_special_);
  std::string out = release(text, text.size());
  window_.clear();
  released_ = 0;
  return out;
}

std::string StreamDecoder::release(const std::string& text, size_t stable) {
  if (stable <= released_) return {};
  std::string out = text.substr(released_, stable - released_);
  released_ = stable;
  return out;
}

// Keeps the last ids. What they read as without the dropped ones may differ at its start but not at its end, so the
// part not yet released keeps its length.
void StreamDecoder::shorten_window(const std::string& text) {
  size_t cut = window_.size() - kContext;
  while (cut > 0 && tokenizer_->traits(window_[cut]).byte) --cut;  // never inside a run of bytes
  std::vector<int32_t> shorter(window_.begin() + static_cast<std::ptrdiff_t>(cut), window_.end());
  const size_t pending = text.size() - released_;
  const size_t size = tokenizer_->decode(shorter, skip_special_).size();
  if (size < pending) return;
  window_ = std::move(shorter);
  released_ = size - pending;
}

}  // namespace kvplug::text
