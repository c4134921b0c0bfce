// SPDX-License-Identifier: Apache-2.0
// A Hugging Face tokenizer: tokenizer.json as it is, with the special tokens of tokenizer_config.json. Text is UTF-8.
// Immutable once loaded, so one object serves any number of threads.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

struct kvtext_tokenizer;

namespace kvplug::text {

// What is known of one id without decoding it.
struct TokenTraits {
  bool known = false;    // false: beyond the vocabulary, as in the padded rows of an output layer
  bool special = false;  // left out of decoded text when special tokens are skipped
  bool byte = false;     // a byte-fallback token: its text depends on the byte tokens that follow
};

class Tokenizer {
 public:
  // Throws Error: kNotFound without tokenizer.json, kModel for a malformed file, kIo for an unreadable one.
  static std::shared_ptr<const Tokenizer> load(const std::filesystem::path& folder);

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // add_special: put BOS, EOS and the like around the text, as the tokenizer's own rules say. A rendered chat is
  // encoded without, since the template has put them. Throws Error (kInvalidArgument) for text that is not UTF-8.
  std::vector<int32_t> encode(std::string_view text, bool add_special) const;

  // Ids beyond the vocabulary (negative ones too) decode to nothing. Spaces are not cleaned up.
  std::string decode(std::span<const int32_t> ids, bool skip_special) const;

  // Tokens, added ones included. The model's output layer may have more rows.
  size_t vocab_size() const;
  TokenTraits traits(int32_t id) const;

  // The id of a token given by its exact text in the vocabulary.
  std::optional<int32_t> token_to_id(std::string_view token) const;
  // The reverse, as the vocabulary spells it ("Ġthe"); empty for unknown ids.
  std::string id_to_token(int32_t id) const;

  std::optional<int32_t> bos_id() const { return special_id("bos_token"); }
  std::optional<int32_t> eos_id() const { return special_id("eos_token"); }
  std::optional<int32_t> pad_id() const { return special_id("pad_token"); }

  // "bos_token" -> "<s>" and so on, for chat templates.
  const std::map<std::string, std::string>& special_tokens() const { return special_tokens_; }

  // True if the ids begin with BOS twice: the sign of a template's text that was encoded with add_special.
  bool begins_with_doubled_bos(std::span<const int32_t> ids) const;

 private:
  Tokenizer(kvtext_tokenizer* handle, std::map<std::string, std::string> special_tokens);
  std::optional<int32_t> special_id(const char* name) const;

  kvtext_tokenizer* handle_;
  std::map<std::string, std::string> special_tokens_;
  std::map<std::string, int32_t> special_ids_;  // same keys, those in the vocabulary
};

}  // namespace kvplug::text
