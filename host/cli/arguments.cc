// SPDX-License-Identifier: Apache-2.0
#include "cli/arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "cli/handles.h"

namespace kvplug::cli {
namespace {

struct Flag {
  const char* names;
  const char* key;
  const char* help;
};

constexpr std::array kFlags{
    Flag{"-m,--model", "model.path", "folder of a Hugging Face model"},
    Flag{"--dtype", "model.dtype", "auto, float32, bfloat16 or float16"},
    Flag{"-n,--max-new-tokens", "generation.max_new_tokens", "tokens to generate"},
    Flag{"--max-length", "generation.max_length", "prompt and new tokens together"},
    Flag{"--do-sample", "generation.do_sample", "true: draw instead of taking the most likely token"},
    Flag{"--temperature,--temp", "generation.temperature", "flatter above 1, sharper below; needs do_sample"},
    Flag{"--top-k", "generation.top_k", "draw among the k most likely tokens"},
    Flag{"--top-p", "generation.top_p", "draw among the most likely tokens that hold this probability"},
    Flag{"--min-p", "generation.min_p", "drop tokens below this part of the most likely one"},
    Flag{"--repetition-penalty", "generation.repetition_penalty", "above 1: repeat less"},
    Flag{"--use-cache", "generation.use_cache", "false: compute everything again at every step"},
    Flag{"--cache-implementation,--cache", "generation.cache_implementation",
         "the cache kind: dynamic, vendor/name, ..."},
    Flag{"--kv-bits", "generation.cache_config.nbits", "bits of a quantized cache (quanto, hqq)"},
    Flag{"--kv-bits-key", "generation.cache_config.nbits_key", "the same for keys alone"},
    Flag{"--kv-bits-value", "generation.cache_config.nbits_value", "the same for values alone"},
    Flag{"--kv-group-size", "generation.cache_config.q_group_size", "values that share a scale"},
    Flag{"--residual-length", "generation.cache_config.residual_length", "newest tokens kept in full precision"},
    Flag{"--quantized-kv-start", "generation.cache_config.quantized_kv_start",
         "nothing is packed before so many tokens"},
    Flag{"--max-cache-len", "generation.max_cache_len", "capacity of a static cache, in tokens"},
    Flag{"--disable-compile", "generation.disable_compile", "true: no prepared decode step"},
    Flag{"--prefill-chunk-size", "generation.prefill_chunk_size", "feed the prompt in pieces of so many tokens"},
    Flag{"-s,--seed", "run.seed", "HF's set_seed(); left out: a fresh one, which is printed"},
    Flag{"-t,--threads", "run.threads", "computing threads, 0 = physical cores"},
    Flag{"--jsonl", "input.jsonl", "a file with one prompt a line"},
    Flag{"--batch-size", "input.batch_size", "prompts that run together"},
    Flag{"--chat-template", "tokenizer.chat_template", "auto, none, or a .jinja file"},
    Flag{"--format", "output.format", "text, json or jsonl"},
    Flag{"-o,--output", "output.path", "file for the result, - = standard output"},
    Flag{"--logits-path", "output.logits_path", "safetensors file for the raw logits"},
};

// bench and diff: the letters of llama-bench, lists with commas.
constexpr std::array kMeasureFlags{
    Flag{"-m,--model", "model.path", "folder of a Hugging Face model"},
    Flag{"--dtype", "model.dtype", "auto, float32, bfloat16 or float16"},
    Flag{"-t,--threads", "run.threads", "computing threads, 0 = physical cores"},
    Flag{"-s,--seed", "run.seed", "of the tokens that a bench reads"},
    Flag{"-o,--format", "output.format", "text, json, jsonl, csv or md"},
    Flag{"--output", "output.path", "file for the result, - = standard output"},
};

constexpr std::array kBenchFlags{
    Flag{"-p,--n-prompt", "bench.prompt_tokens", "lengths of prompts: -p 512,1024; 0 = none"},
    Flag{"-n,--n-gen", "bench.new_tokens", "numbers of decode steps: -n 128; 0 = none"},
    Flag{"-d,--n-depth", "bench.depth", "tokens in the cache before the clock starts: -d 0,4096"},
    Flag{"-b,--batch-size", "bench.batch_size", "rows computed together"},
    Flag{"-r,--repetitions", "bench.repetitions", "times that everything is measured"},
};

constexpr std::array kDiffFlags{
    Flag{"-f,--file", "diff.file", "text to score, instead of the prompts"},
    Flag{"-n,--tokens", "diff.tokens", "how much of each text, from its start"},
    Flag{"--chunk", "generation.prefill_chunk_size", "positions computed at a time; 128 where nobody says"},
    Flag{"--max-mean-kl", "diff.max_mean_kl", "more than this: exit code 7"},
    Flag{"--min-top1-agreement", "diff.min_top1_agreement", "less than this (0 to 1): exit code 7"},
    Flag{"--max-ppl-ratio", "diff.max_ppl_ratio", "more than this over the baseline's: exit code 7"},
};

struct Refused {
  const char* flag;
  const char* why;
};

constexpr std::array kRefused{
    Refused{"-c",
            "a context size is not set here: a dynamic cache grows with the tokens, a static one takes "
            "generation.max_cache_len"},
    Refused{"--ctx-size",
            "a context size is not set here: a dynamic cache grows with the tokens, a static one takes "
            "generation.max_cache_len"},
    Refused{"-ctk",
            "llama.cpp's types (q8_0: symmetric blocks of 32) are not the ones of this program: see "
            "generation.cache_config.nbits"},
    Refused{"-ctv",
            "llama.cpp's types (q8_0: symmetric blocks of 32) are not the ones of this program: see "
            "generation.cache_config.nbits"},
    Refused{"--cache-type-k",
            "llama.cpp's types (q8_0: symmetric blocks of 32) are not the ones of this program: see "
            "generation.cache_config.nbits"},
    Refused{"--cache-type-v",
            "llama.cpp's types (q8_0: symmetric blocks of 32) are not the ones of this program: see "
            "generation.cache_config.nbits"},
    Refused{"--max-kv-size",
            "it drops old tokens where it comes from, and no token is dropped here; generation.max_new_tokens bounds a "
            "run"},
    Refused{"--draft-model", "assisted decoding is not part of this release"},
    Refused{"--assistant", "assisted decoding is not part of this release"},
    Refused{"--prompt-cache", "snapshots are not part of this release"},
};

// --max_new_tokens reads as --max-new-tokens; values are left alone.
std::vector<std::string> normalised(int argc, char** argv) {
  std::vector<std::string> out;
  for (int i = 1; i < argc; ++i) {
    std::string word = argv[i];
    const std::string name = word.substr(0, word.find('='));
    for (const Refused& refused : kRefused) {
      if (name == refused.flag) throw Failure(KVPLUG_E_CONFIG, name + ": " + refused.why);
    }
    if (word.starts_with("--")) {
      for (size_t c = 2; c < name.size(); ++c) {
        if (word[c] == '_') word[c] = '-';
      }
    }
    out.push_back(std::move(word));
  }
  return out;
}

// "-n,--max-new-tokens" -> "--max-new-tokens"
std::string long_name(std::string_view names) {
  const size_t at = names.find("--");
  return std::string(names.substr(at, names.find(',', at) - at));
}

void add_flags(CLI::App& command, Arguments& out, std::span<const Flag> flags) {
  for (const Flag& flag : flags) {
    command
        .add_option_function<std::string>(
            flag.names,
            [&out, flag](const std::string& value) {
              const bool list = std::string_view(flag.key).starts_with("bench.") && value.find(',') != value.npos;
              out.settings.push_back({flag.key, list ? "[" + value + "]" : value, long_name(flag.names)});
            },
            flag.help)
        ->type_name("VALUE");
  }
}

void add_set(CLI::App& command, Arguments& out) {
  command
      .add_option_function<std::vector<std::string>>(
          "--set",
          [&out](const std::vector<std::string>& pairs) {
            for (const std::string& pair : pairs) {
              const size_t equal = pair.find('=');
              if (equal == std::string::npos) throw Failure(KVPLUG_E_CONFIG, "--set " + pair + ": expected key=value");
              out.settings.push_back({pair.substr(0, equal), pair.substr(equal + 1), "--set"});
            }
          },
          "any key of the run file: --set generation.top_p=0.9; repeatable")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
}

void add_settings(CLI::App& command, Arguments& out) {
  add_flags(command, out, kFlags);
  command
      .add_option_function<std::vector<std::string>>(
          "--stop",
          [&out](const std::vector<std::string>& texts) {
            out.settings.push_back({"generation.stop_strings", nlohmann::json(texts).dump(), "--stop"});
          },
          "text that ends the generation; repeatable")
      ->type_name("TEXT")
      ->allow_extra_args(false);
  add_set(command, out);
  command.add_flag("--dry-run", out.dry_run, "check and plan, then stop");
  command.add_flag("--print-effective-config", out.print_effective_config,
                   "print every key with its value and origin, then stop");
}

void add_common(CLI::App& command, Arguments& out) {
  command.add_flag("--json", out.json, "the answer, or the error, as JSON");
  command.add_flag("-q,--quiet", out.quiet, "no notices");
  command.add_flag("-v", out.verbose, "say more on standard error; -vv: everything");
}

}  // namespace

bool parse_arguments(int argc, char** argv, Arguments& out) {
  CLI::App app{
      "kvplug: text generation with key/value caches that are plugins.\n\n"
      "  kvplug run examples/quickstart.toml\n"
      "  kvplug generate -m ./SmolLM2-135M-Instruct -p \"My favourite condiment is\" -n 32\n"};
  app.set_version_flag("--version", std::string("kvplug ") + kvplug_version() + " (plugin ABI " +
                                        std::to_string(kvplug_abi_version() >> 16) + "." +
                                        std::to_string(kvplug_abi_version() & 0xffff) + ")");
  app.require_subcommand(1);
  app.failure_message(CLI::FailureMessage::simple);

  const auto sub = [&](CLI::App& parent, const char* name, const char* help, Command command) {
    CLI::App* added = parent.add_subcommand(name, help);
    added->callback([&out, command] { out.command = command; });
    add_common(*added, out);
    return added;
  };
  CLI::App* run = sub(app, "run", "do what a run file says", Command::kRun);
  run->add_option("FILE", out.files, "run file (TOML)")->required()->expected(1);
  add_settings(*run, out);
  CLI::App* generate = sub(app, "generate", "one prompt or many, without a run file", Command::kGenerate);
  generate->add_option("-p,--prompt", out.prompts, "text to continue; repeatable")->allow_extra_args(false);
  generate->add_option("-f,--file", out.prompt_files, "file with the text; repeatable")->allow_extra_args(false);
  generate->add_option("--system-prompt", out.system_prompt, "system message; -p is then a user's turn");
  generate->add_flag("--chat", out.chat, "-p is a user's turn, rendered by the chat template");
  generate->add_flag_callback(
      "--raw", [&out] { out.chat = false, out.settings.push_back({"tokenizer.chat_template", "none", "--raw"}); },
      "no chat template");
  add_settings(*generate, out);
  for (const auto& [name, help, command] :
       {std::tuple{"plan", "bytes a run will hold, before weights are read", Command::kPlan},
        std::tuple{"explain", "settings with their origins, the cache of every layer and why", Command::kExplain}}) {
    CLI::App* added = sub(app, name, help, command);
    added->add_option("FILE", out.files, "run file (TOML)")->required()->expected(1);
    add_settings(*added, out);
  }
  CLI::App* bench = sub(app, "bench", "speed and memory of caches", Command::kBench);
  bench->description(
      "Prefill and decode tokens/s and memory of the caches of [bench], in turns, beside the roof that this machine's\n"
      "memory sets. Rows are named as in llama-bench: pp512 is a prompt of 512 tokens, tg128 are 128 decode steps,\n"
      "@ 4096 the tokens that the cache held before. MBU is the share of the roof that was reached.\n\n"
      "  kvplug bench examples/bench.toml -p 512 -n 64 -d 0,4096 -r 5 -o md");
  bench->add_option("FILE", out.files, "run file (TOML)")->required()->expected(1);
  add_flags(*bench, out, kMeasureFlags);
  add_flags(*bench, out, kBenchFlags);
  add_set(*bench, out);
  CLI::App* diff = sub(app, "diff", "caches against a baseline on the same text", Command::kDiff);
  diff->description(
      "How far the next-token probabilities of a cache are from the baseline's, on a text that both read:\n"
      "KL divergence (natural logarithm), agreement of the most likely token, perplexity, the first token that "
      "becomes\n"
      "another, the layer from which attention drifts. A noise-floor row shows what two right answers differ by.\n"
      "Exit code 7: a limit of [diff] was missed.\n\n"
      "  kvplug diff examples/diff.toml -f book.txt -n 4096 --max-mean-kl 0.01");
  diff->add_option("FILE", out.files, "run file (TOML)")->required()->expected(1);
  add_flags(*diff, out, kMeasureFlags);
  add_flags(*diff, out, kDiffFlags);
  add_set(*diff, out);
  sub(app, "check", "validate run files; loads nothing", Command::kCheck)
      ->add_option("FILE", out.files, "run files (TOML)")
      ->required();
  sub(app, "doctor", "processor, memory, libraries, plugins", Command::kDoctor);
  CLI::App* plugin = app.add_subcommand("plugin", "the plugins that are found");
  plugin->require_subcommand(1);
  sub(*plugin, "list", "every plugin with what it provides", Command::kPluginList);
  sub(*plugin, "info", "one plugin: manifest, options", Command::kPluginInfo)
      ->add_option("NAME", out.files, "plugin id or kind")
      ->required()
      ->expected(1);
  try {
    // Even a command line that is refused is refused in the form asked for.
    out.json = std::any_of(argv + 1, argv + argc, [](const char* word) { return std::string_view(word) == "--json"; });
    std::vector<std::string> words = normalised(argc, argv);
    std::reverse(words.begin(), words.end());  // CLI11 takes them from the back
    app.parse(words);
    return true;
  } catch (const CLI::Success& done) {
    app.exit(done);
    if (!std::cout.flush()) throw Failure(KVP_IO, "standard output: could not be written");
    return false;
  } catch (const CLI::ParseError& e) {
    throw Failure(KVPLUG_E_CONFIG,
                  std::string(e.what()) + "\n  kvplug --help shows the commands, kvplug COMMAND --help their flags");
  }
}

}  // namespace kvplug::cli
