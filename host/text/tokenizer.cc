// SPDX-License-Identifier: Apache-2.0
// The shim does the work; here are the files, the error messages and the types.
#include "text/tokenizer.h"

#include "core/error.h"
#include "text/files.h"
#include "text/shim_call.h"
#include "text/special_tokens.h"

namespace kvplug::text {

std::shared_ptr<const Tokenizer> Tokenizer::load(const std::filesystem::path& folder) {
  const auto path = folder / "tokenizer.json";
  const auto content = read_file(path);
  if (!content) {
    throw Error(Code::kNotFound, "there is no tokenizer.json",
                "folders with only tokenizer.model or vocab.json: load them with Transformers' AutoTokenizer and "
                "save_pretrained(), which writes it; or set tokenizer.path; or give the prompt as input_ids",
                folder.string());
  }
  TokenizerSettings settings = read_tokenizer_settings(folder);
  const std::string shim_settings = settings.shim_settings.dump();
  kvtext_tokenizer* handle = nullptr;
  const auto failure = failure_of([&](kvtext_bytes* error) {
    return kvtext_tokenizer_load(view_of(*content), view_of(shim_settings), &handle, error);
  });
  if (failure) throw Error(Code::kModel, "cannot use this tokenizer: " + *failure, {}, path.string());
  return std::shared_ptr<const Tokenizer>(new Tokenizer(handle, std::move(settings.special_tokens)));
}

Tokenizer::Tokenizer(kvtext_tokenizer* handle, std::map<std::string, std::string> special_tokens)
    : handle_(handle), special_tokens_(std::move(special_tokens)) {
  for (const auto& [name, token] : special_tokens_) {
    if (const auto id = token_to_id(token)) special_ids_[name] = *id;
  }
}

Tokenizer::~Tokenizer() { kvtext_tokenizer_free(handle_); }

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special) const {
  kvtext_ids ids{};
  const auto failure = failure_of([&](kvtext_bytes* error) {
    return kvtext_tokenizer_encode(handle_, view_of(text), add_special ? 1 : 0, &ids, error);
  });
  if (failure) throw Error(Code::kInvalidArgument, "cannot encode the text: " + *failure);
  const std::unique_ptr<kvtext_ids, void (*)(kvtext_ids*)> guard(&ids, kvtext_ids_free);
  return std::vector<int32_t>(ids.data, ids.data + ids.size);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  // A negative id becomes one above 2^31, which no vocabulary has.
  const auto* unsigned_ids = reinterpret_cast<const uint32_t*>(ids.data());
  ShimBytes text;
  const auto failure = failure_of([&](kvtext_bytes* error) {
    return kvtext_tokenizer_decode(handle_, unsigned_ids, ids.size(), skip_special ? 1 : 0, text.out(), error);
  });
  if (failure) throw Error(Code::kInternal, "cannot decode ids: " + *failure);
  return text.str();
}

size_t Tokenizer::vocab_size() const { return kvtext_tokenizer_vocab_size(handle_); }

TokenTraits Tokenizer::traits(int32_t id) const {
  const uint32_t flags = kvtext_tokenizer_token_flags(handle_, static_cast<uint32_t>(id));
  return {(flags & KVTEXT_TOKEN_KNOWN) != 0, (flags & KVTEXT_TOKEN_SPECIAL) != 0, (flags & KVTEXT_TOKEN_BYTE) != 0};
}

std::optional<int32_t> Tokenizer::token_to_id(std::string_view token) const {
  const int64_t id = kvtext_tokenizer_token_to_id(handle_, view_of(token));
  if (id < 0 || id > INT32_MAX) return std::nullopt;
  return static_cast<int32_t>(id);
}

std::string Tokenizer::id_to_token(int32_t id) const {
  ShimBytes token;
  kvtext_tokenizer_id_to_token(handle_, static_cast<uint32_t>(id), token.out(), nullptr);
  return token.str();
}

std::optional<int32_t> Tokenizer::special_id(const char* name) const {
  const auto it = special_ids_.find(name);
  if (it == special_ids_.end()) return std::nullopt;
  return it->second;
}

bool Tokenizer::begins_with_doubled_bos(std::span<const int32_t> ids) const {
  const auto bos = bos_id();
  return bos && ids.size() >= 2 && ids[0] == *bos && ids[1] == *bos;
}

}  // namespace kvplug::text
