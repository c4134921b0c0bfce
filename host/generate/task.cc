// SPDX-License-Identifier: Apache-2.0
#include "generate/task.h"

#include <algorithm>

#include "generate/memory_limit.h"
#include "generate/sampler.h"

namespace kvplug::generate {
namespace {

// input_ids are within 32 bits (checked with the run file); whether the model has them is the session's affair.
std::vector<int32_t> prompt_ids(const config::Prompt& prompt, const config::Run& run, const text::Tokenizer* tokenizer,
                                const text::ChatTemplate* chat, std::vector<std::string>& notices) {
  if (prompt.input_ids) return {prompt.input_ids->begin(), prompt.input_ids->end()};
  if (!tokenizer) {
    throw Error(Code::kModel, "the model folder has no tokenizer.json, so a prompt of text cannot be read",
                "give input_ids, or set tokenizer.path", prompt.where);
  }
  if (!prompt.messages) return tokenizer->encode(*prompt.text, run.tokenizer.add_special_tokens);
  auto ids = tokenizer->encode(render_messages(prompt.messages->dump(), run.tokenizer, chat, *tokenizer), false);
  if (tokenizer->begins_with_doubled_bos(ids)) {
    notices.push_back("prompt \"" + prompt.id + "\": the rendered template begins with two BOS tokens");
  }
  return ids;
}

// Prompts `members` as one session. Fills their results; throws what ended the batch.
void run_batch(const SessionContext& context, config::Run& run, const std::vector<TaskPrompt>& prompts,
               const std::vector<size_t>& members, const TaskHooks& hooks, TaskResult& out) {
  Session session(context, run);
  std::vector<config::Generation> settings;
  std::vector<std::optional<uint64_t>> seeds;
  for (const size_t number : members) {
    const TaskPrompt& prompt = prompts[number];
    try {
      session.append_ids(static_cast<uint32_t>(settings.size()), prompt.ids);
    } catch (const Error& e) {
      throw Error(e.code(), e.message(), e.hint(), e.where().empty() ? prompt.where : e.where());
    }
    settings.push_back(prompt.settings);
    // By the prompt's number, so that the size of a batch does not change what a row draws.
    seeds.push_back(prompt.seed ? *prompt.seed : row_seed(run.run.seed.value_or(0), number));
  }
  Generation generation(session, std::move(settings), std::move(seeds));
  Event event;
  while (generation.next(event)) {
    const uint32_t row = event.row;
    if (event.type == EventType::kToken && hooks.keep_logits) {
      const auto logits = generation.logits(row);
      auto& kept = out.prompts[members[row]].logits;
      kept.insert(kept.end(), logits.begin(), logits.end());
    }
    if (event.type == EventType::kNotice)
      out.notices.push_back("prompt \"" + prompts[members[row]].id + "\": " + event.text);
    event.row = static_cast<uint32_t>(members[row]);
    if (hooks.event && !hooks.event(event)) {
      generation.cancel();
      out.cancelled = true;
    }
  }
  if (run.cache.oom_fallback && !session.run().cache.oom_fallback) take_fallback(run);
  for (size_t i = 0; i < members.size(); ++i) {
    out.prompts[members[i]].row = generation.results()[i];
    out.prompts[members[i]].timings = generation.timings();
  }
  nlohmann::json stats = session.stats();
  nlohmann::json counters = out.stats.is_object() ? out.stats["counters"] : nlohmann::json::object();
  add_counters(counters, stats["counters"]);
  out.stats = std::move(stats);
  out.stats["counters"] = std::move(counters);
  out.placements = session.placements();
}

}  // namespace

std::string render_messages(std::string_view messages_json, const config::TokenizerSection& settings,
                            const text::ChatTemplate* chat, const text::Tokenizer& tokenizer) {
  if (!chat) {
    throw Error(Code::kConfig,
                settings.chat_template == "none"
                    ? "messages need a chat template, and tokenizer.chat_template is \"none\""
                    : "messages need a chat template, and the model folder has none",
                "give the prompt as text, or set tokenizer.chat_template to a .jinja file", "tokenizer.chat_template");
  }
  text::ChatOptions options;
  options.add_generation_prompt = settings.add_generation_prompt && !settings.continue_final_message;
  options.continue_final_message = settings.continue_final_message;
  options.kwargs_json = settings.chat_template_kwargs.dump();
  options.special_tokens = tokenizer.special_tokens();
  return chat->render(messages_json, options);
}

std::vector<TaskPrompt> encode_prompts(const config::Run& run, const std::vector<config::Prompt>& prompts,
                                       const text::Tokenizer* tokenizer, const text::ChatTemplate* chat,
                                       std::vector<std::string>& notices) {
  std::vector<TaskPrompt> out;
  for (const config::Prompt& prompt : prompts) {
    TaskPrompt& made = out.emplace_back(TaskPrompt{prompt.id, prompt.where, {}, prompt.seed, prompt.generation, {}});
    try {
      made.ids = prompt_ids(prompt, run, tokenizer, chat, notices);
    } catch (const Error& e) {
      made.error = Error(e.code(), e.message(), e.hint(), e.where().empty() ? prompt.where : e.where());
      if (run.run.stop_on_prompt_error) throw *made.error;
    }
  }
  return out;
}

TaskResult run_prompts(const SessionContext& context, config::Run& run, const std::vector<TaskPrompt>& prompts,
                       const TaskHooks& hooks) {
  TaskResult out;
  const auto fail = [&](size_t number, const Error& why) {
    PromptResult failed;
    failed.id = prompts[number].id;
    failed.error = why;
    failed.row.finish = Finish::kError;
    out.prompts[number] = std::move(failed);
  };
  out.prompts.resize(prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) out.prompts[i].id = prompts[i].id;
  const auto batch = static_cast<size_t>(run.input.batch_size);
  for (size_t first = 0; first < prompts.size() && !out.cancelled; first += batch) {
    std::vector<size_t> members;
    for (size_t number = first; number < std::min(first + batch, prompts.size()); ++number) {
      if (prompts[number].error) {
        fail(number, *prompts[number].error);
      } else {
        members.push_back(number);
      }
    }
    if (members.empty()) continue;
    try {
      run_batch(context, run, prompts, members, hooks, out);
    } catch (const Error& e) {
      if (run.run.stop_on_prompt_error) throw;
      // Which prompt it was shows when each runs alone: the others lose nothing.
      for (const size_t number : members) {
        try {
          if (members.size() == 1) throw;
          run_batch(context, run, prompts, {number}, hooks, out);
        } catch (const Error& own) {
          fail(number, own);
        }
      }
    }
  }
  return out;
}

}  // namespace kvplug::generate
