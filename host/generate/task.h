// SPDX-License-Identifier: Apache-2.0
// A run's prompts from first to last: text, messages or ids become rows, rows become batches, every batch a session
// and a generation. What comes out is data for the run document; events go to the caller as they are computed.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "generate/generation.h"
#include "text/chat_template.h"

namespace kvplug::generate {

// A prompt whose ids are known, so that it can be planned for and run.
struct TaskPrompt {
  std::string id, where;
  std::vector<int32_t> ids;
  std::optional<uint64_t> seed;
  config::Generation settings;
  std::optional<Error> error;  // run.on_prompt_error = "continue": why there are no ids
};

struct PromptResult {
  std::string id;
  RowResult row;
  Timings timings;             // of its batch
  std::optional<Error> error;  // run.on_prompt_error = "continue": what ended this prompt
  std::vector<float> logits;   // [new tokens, vocab], raw; kept only on request
};

struct TaskResult {
  std::vector<PromptResult> prompts;
  std::vector<LayerPlacement> placements;  // of the last batch; empty with use_cache = false
  nlohmann::json stats;                    // Session::stats() of the last batch, counters summed over all
  std::vector<std::string> notices;
  bool cancelled = false;
};

struct TaskHooks {
  // Event::row is the number of the prompt. False cancels the run.
  std::function<bool(const Event&)> event;
  bool keep_logits = false;
};

// Messages (a JSON list; the order of keys is the template's to see) through the chat template. Throws kModel / kConfig
// when messages meet a folder without a template.
std::string render_messages(std::string_view messages_json, const config::TokenizerSection& settings,
                            const text::ChatTemplate* chat, const text::Tokenizer& tokenizer);

// tokenizer and chat are NULL where the model's folder has none: said when a prompt needs one.
std::vector<TaskPrompt> encode_prompts(const config::Run& run, const std::vector<config::Prompt>& prompts,
                                       const text::Tokenizer* tokenizer, const text::ChatTemplate* chat,
                                       std::vector<std::string>& notices);

// Throws what ends the whole run. Where memory runs out, `run` takes the kind of [cache.oom_fallback] for the rest of
// it.
TaskResult run_prompts(const SessionContext& context, config::Run& run, const std::vector<TaskPrompt>& prompts,
                       const TaskHooks& hooks);

}  // namespace kvplug::generate
