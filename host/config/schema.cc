// SPDX-License-Identifier: Apache-2.0
#include "config/schema.h"

#include <algorithm>
#include <array>

namespace kvplug::config {
namespace {

using enum Type;

constexpr double kMaxInt = 2147483647.0;
constexpr Range kCount{0, kMaxInt};
constexpr Range kPositive{1, kMaxInt};
constexpr Range kShare{0, 1};
constexpr Range kBelowOne{0, 1, false, true};
constexpr Range kAboveZero{0, std::numeric_limits<double>::infinity(), true};
constexpr Range kSeed{0, 9223372036854775807.0};
constexpr Range kUp{0, std::numeric_limits<double>::infinity()};
constexpr Range kLength{0, 16777216};
constexpr Range kAny{};

constexpr auto kKeys = std::to_array<Key>({
    {"config_version", kInteger, "1", "version of this format; required, always 1", {}, {1, 1}},

    {"run.task", kWord, R"("generate")", "`generate` new tokens, `plan` the bytes, `bench` the speed or `diff` caches",
     "generate|plan|bench|diff"},
    {"run.name", kString, R"("")", "label copied into every output"},
    {"run.seed", kInteger, "", "HF's set_seed(); without it a fresh seed is drawn and printed", {}, kSeed, {}, "0"},
    {"run.deterministic", kBool, "false",
     "tokens do not depend on batch size, row order or thread count (slower); a repeated run is always equal"},
    {"run.threads", kInteger, "0", "computing threads; 0 = physical cores", {}, {0, 1024}},
    {"run.log_level", kWord, R"("warning")", "what is written to standard error", "error|warning|info|debug"},
    {"run.on_prompt_error", kWord, R"("stop")", "what a prompt that cannot be run does to the others", "stop|continue"},

    {"model.path",
     kPath,
     "",
     "folder with config.json, *.safetensors, tokenizer.json",
     {},
     kAny,
     {},
     R"("./SmolLM2-135M-Instruct")"},
    {"model.dtype", kWord, R"("auto")", "of weights and K/V; `auto`: what the checkpoint says",
     "auto|float32|bfloat16|float16"},
    {"model.device", kWord, R"("auto")", "where to compute; one of several: cuda:N", "auto|cpu|cuda"},
    {"model.mmap", kBool, "true", "map the weight files instead of reading them"},
    {"model.use_generation_config", kBool, "true", "take defaults from generation_config.json in the model's folder"},

    {"tokenizer.path",
     kPath,
     "",
     "folder with tokenizer.json; default: model.path",
     {},
     kAny,
     {},
     R"("./SmolLM2-135M-Instruct")"},
    {"tokenizer.padding_side", kWord, R"("left")", "side on which shorter rows of a batch are filled up", "left"},
    {"tokenizer.add_special_tokens", kBool, "true", "let the tokenizer add its BOS/EOS to `text` prompts"},
    {"tokenizer.skip_special_tokens", kBool, "true", "leave special tokens out of the answer's text"},
    {"tokenizer.chat_template", kPath, R"("auto")",
     "`auto`: the model's own; `none`: messages are refused; or a template file", "auto|none"},
    {"tokenizer.add_generation_prompt", kBool, "true", "end a rendered chat with the start of the assistant's turn"},
    {"tokenizer.continue_final_message", kBool, "false", "let the model continue the last message instead"},
    {"tokenizer.chat_template_kwargs", kTable, "{}",
     "variables of the template, for example `enable_thinking = false`"},

    {"input.jsonl",
     kPath,
     "",
     "file of one JSON object a line; its prompts follow [[prompts]]",
     {},
     kAny,
     {},
     R"("prompts.jsonl")"},
    {"input.text_column", kString, R"("prompt")", "column that holds the text of a prompt"},
    {"input.messages_column", kString, R"("messages")", "column that holds chat messages"},
    {"input.batch_size", kInteger, "1", "prompts computed together", {}, {1, 65536}},
    {"input.limit", kInteger, "0", "how many prompts to run; 0 = all", {}, kCount},

    {"prompts[].id",
     kString,
     "",
     "name in the output; default: the prompt's number, from 0",
     {},
     kAny,
     {},
     R"("hello")"},
    {"prompts[].text",
     kString,
     "",
     "exactly one of text, file, messages, input_ids",
     {},
     kAny,
     {},
     R"("My favourite condiment is")"},
    {"prompts[].file", kPath, "", "text file with the prompt", {}, kAny, {}, R"("prompt.txt")"},
    {"prompts[].messages",
     kMessages,
     "",
     "chat, rendered with the model's template",
     {},
     kAny,
     {},
     R"([ { role = "user", content = "Hi" } ])"},
    {"prompts[].input_ids", kIds, "", "token ids, taken as they are", {}, kCount, {}, "[1, 2, 3]"},
    {"prompts[].seed", kInteger, "", "own generator of this row; default: derived from run.seed", {}, kSeed, {}, "42"},

    {"generation.max_length",
     kInteger,
     "20",
     "prompt and new tokens together; nobody's choice means 20 new tokens (HF)",
     {},
     kPositive},
    {"generation.max_new_tokens",
     kInteger,
     "",
     "new tokens at most; wins over max_length",
     {},
     kPositive,
     "null",
     "128"},
    {"generation.min_length",
     kInteger,
     "0",
     "no end token before prompt and new tokens are this many",
     {},
     kCount,
     "0"},
    {"generation.min_new_tokens", kInteger, "", "no end token before this many new tokens", {}, kCount, "null", "0"},
    {"generation.max_time", kNumber, "", "seconds after which the answer ends", {}, kAboveZero, "null", "30.0"},
    {"generation.stop_strings", kStrings, "", "texts that end the answer", {}, kAny, "null", R"(["\n\n"])"},

    {"generation.do_sample", kBool, "false", "false: the most probable token; true: draw", {}, kAny, "false"},
    {"generation.use_cache", kBool, "true", "false: compute the whole sequence again at every step"},
    {"generation.cache_implementation",
     kString,
     R"("dynamic")",
     "cache kind: a built-in word, or `vendor/name` of a plugin",
     {},
     kAny,
     R"("dynamic")"},
    {"generation.cache_config",
     kTable,
     "{}",
     "options of that kind; `kvplug plugin info KIND` lists them",
     {},
     kAny,
     "{}"},
    {"generation.max_cache_len",
     kInteger,
     "",
     "capacity of the static kinds, in tokens a row; default: what the run needs",
     {},
     kPositive,
     "null",
     "4096"},
    {"generation.disable_compile", kBool, "false", "true: no prepared decode step", {}, kAny, "false"},
    {"generation.prefill_chunk_size",
     kInteger,
     "",
     "feed the prompt in pieces of this many tokens; needs a cache",
     {},
     kPositive,
     "null",
     "512"},

    {"generation.temperature",
     kNumber,
     "1.0",
     "divides the logits; above 0 when drawing",
     {},
     {0, std::numeric_limits<double>::infinity()},
     "1.0"},
    {"generation.top_k", kInteger, "50", "draw among the k most probable; 0 = off", {}, kCount, "0"},
    {"generation.top_p",
     kNumber,
     "1.0",
     "draw among the most probable that reach this probability; 1.0 = off",
     {},
     kShare,
     "1.0"},
    {"generation.min_p",
     kNumber,
     "",
     "drop what is less probable than this share of the best",
     {},
     kShare,
     "null",
     "0.05"},
    {"generation.typical_p", kNumber, "1.0", "locally typical sampling; 1.0 = off", {}, {0, 1, true}, "1.0"},
    {"generation.epsilon_cutoff",
     kNumber,
     "0.0",
     "drop what is less probable than this; 0.0 = off",
     {},
     kBelowOne,
     "0.0"},
    {"generation.eta_cutoff", kNumber, "0.0", "eta sampling; 0.0 = off", {}, kBelowOne, "0.0"},
    {"generation.repetition_penalty",
     kNumber,
     "1.0",
     "above 1 makes tokens already seen less likely; 1.0 = off",
     {},
     kAboveZero,
     "1.0"},
    {"generation.no_repeat_ngram_size",
     kInteger,
     "0",
     "no sequence of this many tokens twice; 0 = off",
     {},
     kCount,
     "0"},
    {"generation.bad_words_ids", kIdLists, "", "token sequences that never appear", {}, kCount, "null", "[[42]]"},
    {"generation.suppress_tokens", kIds, "", "tokens that never appear", {}, kCount, "null", "[1]"},
    {"generation.begin_suppress_tokens", kIds, "", "tokens that do not come first", {}, kCount, "null", "[1]"},
    {"generation.forced_bos_token_id", kInteger, "", "the first new token", {}, kCount, "null", "0"},
    {"generation.forced_eos_token_id",
     kIds,
     "",
     "the last token when the length limit is reached",
     {},
     kCount,
     "null",
     "0"},
    {"generation.renormalize_logits", kBool, "false", "normalise again after all processors", {}, kAny, "false"},
    {"generation.remove_invalid_values", kBool, "false", "replace NaN and infinite logits", {}, kAny, "false"},

    {"generation.bos_token_id", kInteger, "", "from the checkpoint", {}, kCount, "null", "1"},
    {"generation.eos_token_id",
     kIds,
     "",
     "from the checkpoint; all of them stop, [] = none",
     {},
     kCount,
     "null",
     "[2, 3]"},
    {"generation.pad_token_id", kInteger, "", "from the checkpoint", {}, kCount, "null", "0"},

    {"generation.output_logits",
     kBool,
     "false",
     "keep the logits of every step, before the processors",
     {},
     kAny,
     "false"},
    {"generation.unset", kStrings, "[]", R"([generation] keys that go back to HF's None, for example `["top_k"]`)"},

    {"cache.negotiation.on_unsupported", kWord, R"("error")", "what to do when the kind cannot serve the model",
     "error|fallback"},
    {"cache.negotiation.fallback", kStrings, "[]", "kinds tried in order, before the run"},
    {"cache.negotiation.require", kWords, "[]", "capabilities that must really run", "fused_attention"},

    {"cache.oom_fallback.cache_implementation",
     kString,
     "",
     "kind to retry with, once, when memory runs out; no key = off",
     {},
     kAny,
     {},
     R"("offloaded")"},
    {"cache.oom_fallback.cache_config", kTable, "{}", "options of that kind"},

    {"memory.plan", kWord, R"("check")",
     "`check` refuses a run that cannot fit; `exact` also fails it when allocated bytes differ from planned ones",
     "off|check|exact"},
    {"memory.max_host_bytes",
     kSize,
     R"("auto")",
     "limit of weights, cache and scratch; `auto`: what the machine has",
     "auto",
     {1, 9223372036854775807.0}},
    {"memory.max_device_bytes",
     kSize,
     R"("auto")",
     "limit of weights and cache on the device; `auto`: what the device gives",
     "auto",
     {1, 9223372036854775807.0}},
    {"memory.headroom", kNumber, "0.05", "part of the limits that stays free", {}, kBelowOne},

    {"plugins.search_path", kPaths, "[]", "folders searched before KVPLUG_PLUGIN_PATH and the install folder"},
    {"plugins.min_conformance", kWord, R"("none")", "what the manifest's [conformance] must show", "none|basic|full"},
    {"plugins.load[].name", kString, R"("")", "kind that this plugin must provide"},
    {"plugins.load[].path",
     kPath,
     "",
     "a manifest, or a library with a manifest beside it; required",
     {},
     kAny,
     {},
     R"("./libacme_kivi2.so")"},
    {"plugins.load[].sha256", kString, R"("")", "of the library, 64 hex digits; empty = not checked"},

    {"output.format", kWord, R"("text")", "form of the result; `csv`, `md`: of `bench` and `diff`",
     "text|json|jsonl|csv|md"},
    {"output.path", kPath, R"("-")", "file of the result; `-` = standard output", "-"},
    {"output.stream", kBool, "true", "print text as it comes (text and jsonl)"},
    {"output.include", kWords, R"(["text"])", "what a result holds",
     "text|token_ids|logprobs|timings|cache|plan|config"},
    {"output.logits_path",
     kPath,
     "",
     "safetensors file for the raw logits of every new token",
     {},
     kAny,
     {},
     R"("logits.safetensors")"},
    {"output.overwrite", kBool, "false", "replace files that exist"},
    {"output.progress", kWord, R"("auto")", "progress on standard error", "auto|always|never"},
    {"output.color", kWord, R"("auto")", "colours in messages", "auto|always|never"},

    {"bench.prompt_tokens", kIds, "[512]", "lengths of prompts to time; 0 = none", {}, kLength},
    {"bench.new_tokens", kIds, "[128]", "numbers of decode steps to time; 0 = none", {}, kLength},
    {"bench.depth", kIds, "[0]", "tokens that a cache holds before the clock starts", {}, kLength},
    {"bench.batch_size", kIds, "[1]", "rows computed together", {}, {1, 65536}},
    {"bench.repetitions", kInteger, "5", "times that everything is measured, in turns", {}, {1, 10000}},
    {"bench.warmup", kInteger, "1", "rounds before those, whose times are dropped", {}, {0, 10000}},
    {"bench.cache[].cache_implementation",
     kString,
     "",
     "a cache to measure; no [[bench.cache]]: the one of [generation]",
     {},
     kAny,
     {},
     R"("static")"},
    {"bench.cache[].cache_config", kTable, "{}", "options of that kind"},

    {"diff.file", kPath, "", "text to score; without it the prompts", {}, kAny, {}, R"("text.txt")"},
    {"diff.tokens", kInteger, "4096", "how much of each text is scored, from its start", {}, {2, kMaxInt}},
    {"diff.max_mean_kl", kNumber, "0.0", "a candidate with more ends the program with code 7; 0 = no limit", {}, kUp},
    {"diff.min_top1_agreement", kNumber, "0.0", "likewise with less, from 0 to 1; 0 = no limit", {}, kShare},
    {"diff.max_ppl_ratio", kNumber, "0.0", "likewise with more perplexity over the baseline's; 0 = no limit", {}, kUp},
    {"diff.baseline.cache_implementation", kString, R"("dynamic")", "the cache that the others are held against"},
    {"diff.baseline.cache_config", kTable, "{}", "options of that kind"},
    {"diff.candidate[].cache_implementation",
     kString,
     "",
     "a cache to compare; no [[diff.candidate]]: the one of [generation]",
     {},
     kAny,
     {},
     R"("static")"},
    {"diff.candidate[].cache_config", kTable, "{}", "options of that kind"},
});

constexpr std::string_view kPromptGeneration = "prompts[].generation";

}  // namespace

std::span<const Key> keys() { return kKeys; }

const Key* find_key(std::string_view path) {
  if (path.starts_with(kPromptGeneration)) {
    path.remove_prefix(std::string_view("prompts[].").size());
    if (is_cache_key(path)) return nullptr;
  }
  const auto found = std::find_if(kKeys.begin(), kKeys.end(), [&](const Key& key) { return key.path == path; });
  return found == kKeys.end() ? nullptr : &*found;
}

bool is_section(std::string_view path) {
  if (path.empty() || path == kPromptGeneration) return true;
  return std::any_of(kKeys.begin(), kKeys.end(), [&](const Key& key) {
    return key.path.size() > path.size() && key.path.starts_with(path) && key.path[path.size()] == '.';
  });
}

bool is_list_section(std::string_view path) {
  return path == "prompts" || path == "plugins.load" || path == "bench.cache" || path == "diff.candidate";
}

std::vector<std::string> words_below(std::string_view section) {
  const bool of_prompt = section == kPromptGeneration;
  if (of_prompt) section = "generation";
  const std::string prefix = section.empty() ? "" : std::string(section) + ".";
  std::vector<std::string> words;
  for (const Key& key : kKeys) {
    if (!key.path.starts_with(prefix) || (of_prompt && is_cache_key(key.path))) continue;
    const std::string_view rest = key.path.substr(prefix.size());
    const std::string word(rest.substr(0, rest.find_first_of(".[")));
    if (words.empty() || words.back() != word) words.push_back(word);
  }
  if (section == "prompts[]") words.emplace_back("generation");
  return words;
}

bool is_cache_key(std::string_view path) {
  return path == "generation.use_cache" || path == "generation.cache_implementation" ||
         path.starts_with("generation.cache_config") || path == "generation.max_cache_len" ||
         path == "generation.disable_compile" || path == "generation.prefill_chunk_size";
}

std::string schema_path(std::string_view path) {
  std::string result;
  bool inside = false;
  for (const char c : path) {
    if (c == ']') inside = false;
    if (!inside) result += c;
    if (c == '[') inside = true;
  }
  return result;
}

std::vector<std::string> split_words(std::string_view words) {
  std::vector<std::string> result;
  while (!words.empty()) {
    const std::size_t bar = words.find('|');
    result.emplace_back(words.substr(0, bar));
    words.remove_prefix(bar == std::string_view::npos ? words.size() : bar + 1);
  }
  return result;
}

std::string describe_range(const Range& range, bool integer) {
  const auto number = [&](double value) {
    return integer ? std::to_string(static_cast<long long>(value)) : nlohmann::json(value).dump();
  };
  const bool has_min = range.min != -std::numeric_limits<double>::infinity();
  const bool has_max = range.max != std::numeric_limits<double>::infinity() && range.max < 9e18;
  if (has_min && has_max && range.min == range.max) return "expected " + number(range.min);
  std::string text = "expected ";
  if (has_min && has_max && !range.above_min && !range.below_max)
    return text + number(range.min) + " to " + number(range.max);
  if (has_min) text += range.above_min ? "more than " + number(range.min) : number(range.min) + " or more";
  if (has_min && has_max) text += " and ";
  if (has_max) text += (range.below_max ? "less than " : "at most ") + number(range.max);
  return text;
}

nlohmann::json fallback_of(const Key& key) {
  return key.fallback.empty() ? nlohmann::json() : nlohmann::json::parse(key.fallback);
}

}  // namespace kvplug::config
