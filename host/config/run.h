// SPDX-License-Identifier: Apache-2.0
// The typed result of a run file: every value checked, every layer (default, checkpoint, file, environment, flag)
// already merged. The sections and names are those of docs/run-file.md; generation is Hugging Face's GenerationConfig
// under its own names. An optional field has no default; a field that `unset` put back to HF's None holds the value
// that switches it off (top_k 0, top_p 1.0, ...), so no reader needs to know that None exists.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace kvplug::config {

// Where a value comes from, weakest first.
enum class Source { kDefault, kCheckpoint, kFile, kEnvironment, kFlag };

struct Origin {
  Source source = Source::kDefault;
  std::string text = "default";  // "default", "generation_config.json", "run.toml:14:3", "KVPLUG_RUN__SEED", "--set"
  friend bool operator==(const Origin&, const Origin&) = default;
};

// Something the user should hear once; never a failure. `code` is stable: kind_mapped, sampling_off,
// max_length_overridden, length_unreachable, cache_off, max_cache_len_ignored, not_built.
struct Notice {
  std::string code, text;
  friend bool operator==(const Notice&, const Notice&) = default;
};

struct RunSection {
  std::string task;              // generate | plan | bench | diff
  std::string name;              // label copied into every output
  std::optional<uint64_t> seed;  // absent: the program draws one and prints it
  bool deterministic = false;
  int threads = 0;                   // 0 = physical cores
  std::string log_level;             // error | warning | info | debug
  bool stop_on_prompt_error = true;  // run.on_prompt_error == "stop"
  friend bool operator==(const RunSection&, const RunSection&) = default;
};

struct ModelSection {
  std::string path;        // absolute, empty when the file names no model
  std::string path_given;  // as written, for messages (a hub id is recognised by it)
  std::string dtype;       // auto | float32 | bfloat16 | float16
  std::string device;      // auto (cpu) | cpu | cuda | cuda:N
  bool mmap = true;
  bool use_generation_config = true;
  friend bool operator==(const ModelSection&, const ModelSection&) = default;
};

struct TokenizerSection {
  std::string path;  // absolute; model.path when not given
  bool add_special_tokens = true;
  bool skip_special_tokens = true;
  std::string chat_template;  // auto | none | absolute path of a template file
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  nlohmann::json chat_template_kwargs = nlohmann::json::object();
  friend bool operator==(const TokenizerSection&, const TokenizerSection&) = default;
};

struct InputSection {
  std::optional<std::string> jsonl;  // absolute path; its prompts follow [[prompts]] (config/input.h reads it)
  std::string text_column, messages_column;
  int64_t batch_size = 1;
  int64_t limit = 0;  // prompts in all, 0 = no limit
  friend bool operator==(const InputSection&, const InputSection&) = default;
};

struct Generation {
  // length
  int64_t max_length = 20;
  bool max_length_given = false;  // by anyone; false: HF's default 20 means 20 new tokens
  std::optional<int64_t> max_new_tokens;
  int64_t min_length = 0;
  std::optional<int64_t> min_new_tokens;
  std::optional<double> max_time;  // seconds
  std::vector<std::string> stop_strings;
  // strategy and cache
  bool do_sample = false;
  bool use_cache = true;
  std::string cache_implementation = "dynamic";            // retired words are already mapped
  Source cache_source = Source::kDefault;                  // >= kFile: the user named the kind
  nlohmann::json cache_config = nlohmann::json::object();  // checked against the kind's options schema
  std::optional<int64_t> max_cache_len;  // capacity of kinds that have one; absent: what the run needs
  bool disable_compile = false;          // no prepared step
  std::optional<int64_t> prefill_chunk_size;
  // logits
  double temperature = 1.0;
  int64_t top_k = 50;  // 0 = off
  double top_p = 1.0;
  std::optional<double> min_p;
  double typical_p = 1.0;
  double epsilon_cutoff = 0.0;
  double eta_cutoff = 0.0;
  double repetition_penalty = 1.0;
  int64_t no_repeat_ngram_size = 0;
  std::vector<std::vector<int64_t>> bad_words_ids;
  std::vector<int64_t> suppress_tokens, begin_suppress_tokens;
  std::optional<int64_t> forced_bos_token_id;
  std::vector<int64_t> forced_eos_token_id;  // one id or several; empty = off
  bool remove_invalid_values = false;
  bool renormalize_logits = false;
  // special tokens, absent where nobody says
  std::optional<int64_t> bos_token_id;
  std::vector<int64_t> eos_token_id;  // all of them stop
  bool eos_token_id_given = false;    // false: nobody said; true and empty: the user wants no stop id
  std::optional<int64_t> pad_token_id;
  // what to return
  bool output_logits = false;
  friend bool operator==(const Generation&, const Generation&) = default;
};

// Exactly one of text, file, messages, input_ids is set; in what read_prompts() gives, `file` has become text.
struct Prompt {
  std::string id;  // unique; "0", "1", ... by position when not given
  std::optional<std::string> text;
  std::optional<std::string> file;         // absolute path
  std::optional<nlohmann::json> messages;  // [{"role": ..., "content": ...}, ...]
  std::optional<std::vector<int64_t>> input_ids;
  std::optional<uint64_t> seed;  // own generator of this row
  Generation generation;         // [generation] with this prompt's own keys above it
  std::string where;             // "run.toml:7:1: prompts[0]" or "prompts.jsonl:3", for messages
};

struct NegotiationSection {
  bool fallback_on_unsupported = false;  // cache.negotiation.on_unsupported == "fallback"
  std::vector<std::string> fallback;
  std::vector<std::string> require;
  friend bool operator==(const NegotiationSection&, const NegotiationSection&) = default;
};

// What a run that is out of memory is tried again with.
struct OomFallback {
  std::string cache_implementation;
  nlohmann::json cache_config = nlohmann::json::object();  // checked against the kind's options schema
  friend bool operator==(const OomFallback&, const OomFallback&) = default;
};

struct CacheSection {
  NegotiationSection negotiation;
  std::optional<OomFallback> oom_fallback;
  friend bool operator==(const CacheSection&, const CacheSection&) = default;
};

struct MemorySection {
  std::string plan;                          // off | check | exact
  std::optional<uint64_t> max_host_bytes;    // absent = "auto"
  std::optional<uint64_t> max_device_bytes;  // likewise; only with a device
  double headroom = 0.05;                    // part of the limits that stays free
  friend bool operator==(const MemorySection&, const MemorySection&) = default;
};

struct PluginLoad {
  std::string name;    // the kind it must provide, may be empty
  std::string path;    // absolute; a manifest or a library with a manifest beside it
  std::string sha256;  // of the library, empty = not checked
  std::string where;   // "run.toml:20:1: plugins.load[0]"
  friend bool operator==(const PluginLoad& a, const PluginLoad& b) {
    return a.name == b.name && a.path == b.path && a.sha256 == b.sha256;
  }
};

struct PluginsSection {
  std::vector<std::string> search_path;  // absolute folders
  std::string min_conformance;           // none | basic | full
  std::vector<PluginLoad> load;
  friend bool operator==(const PluginsSection&, const PluginsSection&) = default;
};

struct OutputSection {
  std::string format;  // text | json | jsonl | csv | md
  std::string path;    // "-" = standard output, else absolute
  bool stream = true;
  std::vector<std::string> include;        // text, token_ids, logprobs, timings, cache, plan, config
  std::optional<std::string> logits_path;  // absolute
  bool overwrite = false;
  std::string progress;  // auto | always | never
  std::string color;     // auto | always | never
  friend bool operator==(const OutputSection&, const OutputSection&) = default;
};

// A cache that is measured beside others.
struct NamedCache {
  std::string cache_implementation;
  nlohmann::json cache_config = nlohmann::json::object();  // checked against the kind's options schema
  friend bool operator==(const NamedCache&, const NamedCache&) = default;
};

struct BenchSection {
  std::vector<int64_t> prompt_tokens, new_tokens, depth, batch_size;
  int64_t repetitions = 5, warmup = 1;
  std::vector<NamedCache> cache;  // never empty
  friend bool operator==(const BenchSection&, const BenchSection&) = default;
};

struct DiffSection {
  std::optional<std::string> file;  // absolute path
  int64_t tokens = 4096;
  double max_mean_kl = 0, min_top1_agreement = 0, max_ppl_ratio = 0;  // 0 = no limit
  NamedCache baseline;
  std::vector<NamedCache> candidate;  // never empty
  friend bool operator==(const DiffSection&, const DiffSection&) = default;
};

struct Run {
  RunSection run;
  ModelSection model;
  TokenizerSection tokenizer;
  InputSection input;
  std::vector<Prompt> prompts;  // of the file; config/input.h reads their files and input.jsonl
  Generation generation;
  CacheSection cache;
  MemorySection memory;
  PluginsSection plugins;
  OutputSection output;
  BenchSection bench;
  DiffSection diff;

  std::string max_cache_len_where;  // "run.toml:9: generation.max_cache_len", for messages
  std::vector<Notice> notices;
  std::vector<std::string> without_effect;  // HF keys accepted and listed by explain
  std::string digest;                       // "sha256:..." of the effective values
};

}  // namespace kvplug::config
