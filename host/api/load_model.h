// SPDX-License-Identifier: Apache-2.0
// Tokenizer, template and weights of an effective run.
#pragma once

#include "api/effective.h"

namespace kvplug::api {

struct TextState {
  std::shared_ptr<const text::Tokenizer> tokenizer;  // NULL where the folder has none
  std::shared_ptr<const text::ChatTemplate> chat;    // NULL likewise
};
TextState load_text(const Effective& effective);

std::shared_ptr<ModelState> load_model(const std::shared_ptr<HostState>& host, Effective effective, TextState text,
                                       const model::Progress& progress);
model::LoadOptions load_options(const config::Run& run, const model::Description& model);
// The template that [tokenizer] asks for; NULL where there is none.
std::shared_ptr<const text::ChatTemplate> load_chat_template(const config::TokenizerSection& settings,
                                                             const std::filesystem::path& folder);
// A C progress callback as the executor wants it.
model::Progress progress_of(kvplug_progress_fn fn, void* user);

}  // namespace kvplug::api
